"""Ensembles against the truth: y = x sin x seen on two sides of a gap, a small network, and HMC as the reference.

    python benchmarks/gap.py --out gap --figure docs/gap.png      # five seeds

For each seed: the standard deviation of the function (not of the noise) on the data, in the gap and outside, of HMC and
of each method; the table has the mean over seeds of log(std / std of HMC) in each region, 0 being perfect. HMC counts
only if R-hat of its functions is below 1.05. The figure shows the first seed.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be
from bayesemble.data.toy import sine_gap

GRID = torch.linspace(0, 7, 141, dtype=torch.float64)
REGIONS = {
    "data": ((GRID >= 1.5) & (GRID <= 2.5)) | ((GRID >= 4.5) & (GRID <= 6)),
    "gap": (GRID > 2.7) & (GRID < 4.3),
    "outside": (GRID < 1.2) | (GRID > 6.3),
}
CENTRE, WIDTH, LEVEL, HEIGHT = 3.9, 1.7, -0.5, 2.2  # rough units of inputs and targets, the same for all seeds


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1)).double()


def methods(members: int) -> dict[str, Any]:
    common: dict[str, Any] = {"num_members": members, "learning_rate": 0.01, "schedule": "cosine"}
    found: dict[str, Any] = {"deep ensemble": be.DeepEnsemble(**common)}
    for space, calibrate in product(("weight", "function"), (True, False)):
        words, own = "calibrated" if calibrate else "as published", common | {"space": space, "calibrate": calibrate}
        if space == "function":
            own["prior_every"] = 1
        for estimator in ("kde", "sge", "ssge"):
            found[f"{estimator}, rbf, {space}, {words}"] = be.Repulsive(**own, estimator=estimator)
        found[f"kde, laplace, {space}, {words}"] = be.Repulsive(**own, kernel="laplace")
        found[f"SVGD, {space}, {words}"] = be.Stein(**own)
    return found


def fit(method: Any, seed: int, steps: int) -> be.Ensemble:
    x, y = sine_gap(np.random.default_rng(seed))
    task = be.Task(make_model, be.Gaussian(noise=0.25 / HEIGHT), be.NormalPrior(1.0))
    data = ((x - CENTRE) / WIDTH, (y - LEVEL) / HEIGHT)
    return be.fit(task, method, data, epochs=steps, seed=seed, executor="vmap", progress=False)


def look(ensemble: be.Ensemble) -> dict[str, list[float]]:
    """Mean and standard deviation of the function on the grid, in the units of the data."""
    predictive = ensemble.predict(_inputs())
    return {
        "mean": (LEVEL + HEIGHT * predictive.mean).tolist(),
        "std": (HEIGHT * predictive.epistemic.sqrt()).tolist(),
    }


def reference(seed: int, steps: int) -> dict[str, Any]:
    ensemble = fit(be.HMC(num_members=4), seed, steps)
    return look(ensemble) | {"convergence": be.convergence(ensemble, _inputs())}


def log_ratios(own: list[float], truth: list[float]) -> dict[str, float]:
    ratio = torch.tensor(own).log() - torch.tensor(truth).log()
    return {name: float(ratio[rows].mean()) for name, rows in REGIONS.items()}


def summarise(rows: list[dict[str, Any]]) -> Table:
    truth = {row["seed"]: row["std"] for row in rows if row["method"] == "HMC"}
    table = Table("method", *(f"log ratio, {region}" for region in REGIONS))
    for name in dict.fromkeys(row["method"] for row in rows if row["method"] != "HMC"):
        found = [log_ratios(row["std"], truth[row["seed"]]) for row in rows if row["method"] == name]
        cells = []
        for region in REGIONS:
            values = [one[region] for one in found]
            cells.append(results.mean_and_error(values, 2))
        table.add_row(name, *cells)
    return table


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    shown = ("HMC", "deep ensemble", "kde, rbf, weight, calibrated", "kde, rbf, weight, as published")
    shown += ("kde, rbf, function, calibrated", "SVGD, weight, as published")
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex=True, sharey=True, layout="constrained")
    x, y = sine_gap(np.random.default_rng(0))
    for axis, name in zip(axes.flat, shown, strict=True):
        row = next(row for row in rows if row["method"] == name and row["seed"] == 0)
        mean, std = np.array(row["mean"]), np.array(row["std"])
        axis.fill_between(GRID, mean - 2 * std, mean + 2 * std, alpha=0.3, linewidth=0)
        axis.plot(GRID, mean, linewidth=1.5)
        axis.plot(GRID, GRID * GRID.sin(), color="black", linewidth=0.8, linestyle=":")
        axis.plot(x, y, ".", color="black", markersize=2)
        axis.set(title=name, ylim=(-7, 7))
    figure.savefig(path, dpi=110)


def _inputs() -> Tensor:
    return ((GRID - CENTRE) / WIDTH).unsqueeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--hmc-steps", type=int, default=400)
    parser.add_argument("--only", default="", help="methods whose names contain this")
    parser.add_argument("--out", type=Path, default=Path("gap.jsonl"))
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = results.read(arguments.out)
    for seed in range(arguments.seeds):
        for name, method in ({"HMC": None} | methods(arguments.members)).items():
            done = any(row["method"] == name and row["seed"] == seed for row in rows)
            if done or arguments.only not in name:
                continue
            start = time.perf_counter()
            found = reference(seed, arguments.hmc_steps) if method is None else look(fit(method, seed, arguments.steps))
            row = {"method": name, "seed": seed, **found, "seconds": time.perf_counter() - start}
            rows.append(results.append(arguments.out, row))
    Console(width=130).print(summarise(rows))
    for row in rows:
        if row["method"] == "HMC":
            print(f"HMC, seed {row['seed']}: {row['convergence']}")
    if arguments.figure is not None:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
