"""What repulsion buys on Fashion-MNIST, with MNIST as foreign data: deep ensemble, all repulsive variants, SVGD.

    python benchmarks/repulsion.py --folder DATA                          # the main variants
    python benchmarks/repulsion.py --folder DATA --grid                   # every variant

DATA holds `fashion-mnist/*-ubyte.gz` and `mnist/*-ubyte.gz`. All methods have the same network (784-100-100-10), prior
N(0, 1), members, steps, Adam with cosine decay and batches of 128. One line per run goes to the output file as it is
done; a run that is there already is not repeated. Means and standard errors over seeds are printed at the end.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import results
import torch
from images import load_images
from rich.console import Console
from rich.table import Table
from torch import Tensor

import bayesemble as be
from bayesemble import metrics
from bayesemble.models import mlp

SCORES = ("accuracy", "nll", "ece", "auroc_entropy", "auroc_mi", "entropy_ratio", "disagreement_ratio")


def variants(grid: bool) -> Iterator[tuple[str, Any]]:
    """Names and methods; the settings of all are completed in `run`."""
    yield "deep ensemble", (be.DeepEnsemble, {})
    if not grid:
        for space, calibrate in product(("weight", "function"), (True, False)):
            words = "calibrated" if calibrate else "as published"
            yield f"kde, {space} space, {words}", (be.Repulsive, {"space": space, "calibrate": calibrate})
            yield f"SVGD, {space} space, {words}", (be.Stein, {"space": space, "calibrate": calibrate})
        return
    for space, calibrate, kernel in product(("weight", "function"), (True, False), ("rbf", "laplace")):
        settings = {"space": space, "calibrate": calibrate, "kernel": kernel}
        words = f"{kernel}, {space} space, {'calibrated' if calibrate else 'as published'}"
        if space == "weight" and calibrate:  # fewer members than weights: one force, whatever estimator and kernel
            if kernel == "rbf":
                yield f"any estimator and kernel, {space} space, calibrated", (be.Repulsive, settings)
                yield f"SVGD, {words}", (be.Stein, settings)
            continue
        for estimator in ("kde", "sge", "ssge"):
            yield f"{estimator}, {words}", (be.Repulsive, settings | {"estimator": estimator})
        if kernel == "rbf":
            yield f"SVGD, {words}", (be.Stein, settings)


def load(folder: Path, name: str, part: int) -> tuple[Tensor, Tensor]:
    found = load_images(folder, name)[part]
    return torch.as_tensor(found.images).flatten(1), torch.as_tensor(found.labels)


def run(method: Any, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Train and score one ensemble."""
    x, y = load(arguments.folder, "fashion-mnist", 0)
    task = be.Task(lambda: mlp(784, [100, 100], 10), be.Categorical(), be.NormalPrior(1.0))
    start = time.perf_counter()
    ensemble = be.fit(
        task,
        method,
        (x[: arguments.rows], y[: arguments.rows]),
        epochs=arguments.epochs,
        batch_size=128,
        seed=seed,
        executor="vmap",
        progress=False,
    )
    seconds = time.perf_counter() - start
    x_test, y_test = load(arguments.folder, "fashion-mnist", 1)
    own, ood = ensemble.predict(x_test), ensemble.predict(load(arguments.folder, "mnist", 1)[0])
    return {
        "accuracy": metrics.accuracy(own, y_test),
        "nll": metrics.nll(own, y_test),
        "ece": metrics.expected_calibration_error(own, y_test),
        "auroc_entropy": metrics.ood_auroc(own, ood, "entropy"),
        "auroc_mi": metrics.ood_auroc(own, ood, "mutual_information"),
        "entropy_ratio": float(ood.entropy.mean() / own.entropy.mean()),
        "disagreement_ratio": float(ood.member_std.mean() / own.member_std.mean()),
        "seconds": seconds,
    }


def summarise(rows: list[dict[str, Any]]) -> Table:
    table = Table("method", *SCORES)
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for score in SCORES:
            values = [row[score] for row in rows if row["method"] == name]
            cells.append(results.mean_and_error(values, 4))
        table.add_row(name, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid", action="store_true", help="every estimator and kernel")
    parser.add_argument("--out", type=Path, default=Path("repulsion.jsonl"))
    arguments = parser.parse_args()
    rows = results.read(arguments.out)
    for seed in range(arguments.seeds):
        for name, (kind, settings) in variants(arguments.grid):
            if any(row["method"] == name and row["seed"] == seed for row in rows):
                continue
            method = kind(num_members=arguments.members, learning_rate=1e-3, schedule="cosine", **settings)
            rows.append(results.append(arguments.out, {"method": name, "seed": seed, **run(method, arguments, seed)}))
    Console(width=180).print(summarise(rows))


if __name__ == "__main__":
    main()
