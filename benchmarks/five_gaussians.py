"""Doubt on foreign inputs in the plane: five Gaussian classes on a circle, foreign points in its middle and outside.

    python benchmarks/five_gaussians.py       # five seeds

AUROC by mutual information, foreign against test points, of each seed; network 2-10-10-5, prior N(0, 1), full batches.
"""

import argparse
import statistics
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import bayesemble as be
from bayesemble.data import toy
from bayesemble.models import mlp


def auroc(method: Any, seed: int, steps: int) -> float:
    generator = np.random.default_rng(seed)
    x, y = toy.five_gaussians(generator, 40)
    x_test, _ = toy.five_gaussians(generator, 20)
    ood = toy.five_gaussians_ood(generator)
    task = be.Task(lambda: mlp(2, [10, 10], 5), be.Categorical(), be.NormalPrior(1.0))
    ensemble = be.fit(task, method, (x, y), epochs=steps, seed=seed, executor="vmap", progress=False)
    return be.metrics.ood_auroc(ensemble.predict(x_test), ensemble.predict(ood), "mutual_information")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common: dict[str, Any] = {"num_members": arguments.members, "learning_rate": 0.01}
    methods = {
        "deep ensemble": be.DeepEnsemble(**common),
        "repulsive, weight space": be.Repulsive(**common),
        "repulsive, function space": be.Repulsive(**common, space="function"),
        "SVGD": be.Stein(**common),
    }
    table = Table("method", "mean", *(f"seed {seed}" for seed in range(arguments.seeds)))
    for name, method in methods.items():
        found = [auroc(method, seed, arguments.steps) for seed in range(arguments.seeds)]
        table.add_row(name, f"{statistics.fmean(found):.3f}", *(f"{value:.3f}" for value in found))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
