"""Comparisons for the tests of pages: one that is trained in a few seconds, and ones made of numbers."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bayesemble.apps.compare.compare import compare
from bayesemble.apps.compare.request import Request
from bayesemble.apps.compare.results import Comparison, Result

METHODS = "map,deep_ensemble,repulsive"


def compared(
    data: str, methods: str, out: Path, jobs: int = 1, say: Any = lambda words: None, **options: Any
) -> Comparison:
    """Compare methods without progress bars; options are those of a request."""
    return compare(Request(data=data, methods=methods, **options), out, jobs=jobs, progress=False, say=say)


def tiny(folder: Path, data: str = "two_moons", methods: str = METHODS, seeds: int = 2) -> Comparison:
    """Train small ensembles for two epochs."""
    return compared(data, methods, folder, members=3, epochs=2, seeds=seeds)


COSTS = ("train_seconds", "gradient_evaluations")


def made(
    scores: dict[str, dict[str, list[float]]],
    failed: dict[str, str] | None = None,
    together: Mapping[str, int] = MappingProxyType({}),
) -> Comparison:
    """Results by method and score: a list has one value per seed. Seconds and gradients count as costs."""
    results = []
    for label, named in scores.items():
        for seed in range(len(next(iter(named.values())))):
            values = {name: found[seed] for name, found in named.items()}
            cost = {name: values.pop(name) for name in COSTS if name in values}
            shared = together.get(label, 1)
            results.append(Result(label, seed, f"runs/{label}/seed-{seed}", values, cost, together=shared))
    for label, reason in (failed or {}).items():
        results.append(Result(label, 9, f"runs/{label}/seed-9", failure=reason))
    data = {"name": "made", "kind": "classification", "num_classes": 3, "num_train": 80, "num_test": 20, "ood": False}
    return Comparison({"data": "made"}, data, results)
