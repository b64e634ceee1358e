"""Diversity against accuracy: how far from a reference can networks be, and how good are they there?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape.measure import chosen_members, measure, members_of
from bayesemble.diagnostics.landscape.neighbourhoods import KINDS, accuracy_and_brier, mean_probs, samples
from bayesemble.training.ensemble import Ensemble

PLANE_SCALES = {"random": 70.0, "dropout": 0.1, "diagonal": 10.0, "pca": 6.0}
"""The largest scales in the paper's plane of diversity and accuracy."""


@dataclass(frozen=True, eq=False)
class DiversityAccuracy:
    """How good networks are and how far from a reference, by kind; "member" are the other members."""

    accuracy: dict[str, Tensor]
    """(network,), share of right classes."""
    disagreement: dict[str, Tensor]
    """(network,), share of rows with another class than the reference."""
    reference_accuracy: float
    num_classes: int


def independent_limit(accuracy: Any, reference_accuracy: float, num_classes: int) -> Tensor:
    """Disagreement of a network of accuracy a with a reference of accuracy r if their errors are independent.

    d(a) = r (1 - a) + a (1 - r) + (1 - r) (1 - a) (C - 2) / (C - 1): errors fall on the C - 1 wrong classes evenly.
    Not a bound: networks that avoid one another's answers disagree more.
    """
    a, r = torch.as_tensor(accuracy, dtype=torch.float64), reference_accuracy
    return r * (1 - a) + a * (1 - r) + (1 - r) * (1 - a) * (num_classes - 2) / (num_classes - 1)


def perturbed_limit(accuracy: Any, reference_accuracy: float, num_classes: int) -> Tensor:
    """Disagreement with a reference of accuracy r of its own answers, changed at random until their accuracy is a.

    d(a) = (r - a) / (r - (1 - r) / (C - 1)), from a = r (1 - d) + (1 - r) d / (C - 1). Not a bound, and without
    meaning for a reference at chance, r = 1 / C.
    """
    a, r = torch.as_tensor(accuracy, dtype=torch.float64), reference_accuracy
    return (r - a) / (r - (1 - r) / (num_classes - 1))


def diversity_accuracy(
    ensemble: Ensemble,
    data: Any,
    *,
    train: Any = None,
    reference: int = 0,
    kinds: Sequence[str] = KINDS,
    num: int = 30,
    last: int = 10,
    scales: Mapping[str, float] | None = None,
    seed: int = 0,
) -> DiversityAccuracy:
    """Place networks around a reference member, and the other members, by accuracy a and disagreement d with it.

    On the plane of a and d / (1 - a) the networks of one subspace lie near `perturbed_limit`, independent ones near
    `independent_limit`. The scale of a "diagonal" or "pca" sample is drawn too: U(0, 1) times the largest.

    Args:
        ensemble: Of any method; see `sample_subspace`, also for `train`, `num`, `last` and `seed`.
        data: `(x, y)` with classes, a `Dataset` or a `DataLoader`.
        reference: The member that all others are compared with.
        kinds: Which subspaces to sample.
        scales: The largest scale of some kinds; the others take that of the paper, see `PLANE_SCALES`.

    Reference: Fort, Hu & Lakshminarayanan (2019).
    """
    require(set(kinds) <= set(KINDS), f"kinds are some of {', '.join(KINDS)}, not {', '.join(kinds)}")
    members, index = members_of(ensemble), torch.tensor(chosen_members(ensemble, [reference]))
    own = members.take(index)
    probs, labels = mean_probs(ensemble, [own], data)
    others = (members.part(0, reference), members.part(reference + 1, members.num_members))
    parts: dict[str, Iterable[Members]] = {"member": [part for part in others if part.num_members]}
    largest = PLANE_SCALES | dict(scales or {})
    for kind in kinds:
        shares = torch.rand(num, generator=seeds.generator(seed, "scale", kind), dtype=torch.float64)
        scale = largest[kind] * (shares if kind in ("diagonal", "pca") else torch.ones_like(shares))
        parts[kind] = samples(ensemble, reference, kind, num, last, scale, seed, train)
    if members.num_members == 1:
        del parts["member"]
    found = {kind: measure(ensemble, some, data, references=own) for kind, some in parts.items()}
    return DiversityAccuracy(
        {kind: 1 - measured.error for kind, measured in found.items()},
        {kind: measured.difference[:, 0] for kind, measured in found.items()},
        accuracy_and_brier(probs, labels)[0],
        probs.shape[-1],
    )
