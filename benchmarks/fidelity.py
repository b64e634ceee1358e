"""How near every method comes to Hamiltonian Monte Carlo, at the same number of gradient evaluations.

    python benchmarks/fidelity.py --out fidelity.jsonl              # two problems, three seeds

Two problems whose posterior HMC samples well: y = x sin x seen on both sides of a gap (1-10-10-1 tanh, known noise),
and two moons (2-10-10-2 tanh, 80 rows); prior N(0, 1). A gradient evaluation is that of one network on all rows. Every
method of the registry gets the same number of them in training, shared out among its members and draws; what it does
afterwards (slice sampling, curvature) is extra. Regression: ratio of the standard deviation of the function to that of
HMC, and the Wasserstein distance of the predictive distributions. Classification: agreement and total variation over a
square around the data.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_moons
from torch import Tensor, nn

import bayesemble as be
from bayesemble.data.toy import sine_gap
from bayesemble.methods import METHODS, make_method, method_class

SCORES = {
    "gap": ("epistemic_std_ratio", "log_std_error", "wasserstein"),
    "moons": ("agreement", "total_variation"),
}
MEMBERS = 10


def network(inputs: int, outputs: int, dropout: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(inputs, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(10, outputs)).double()


def problem(name: str, seed: int, dropout: float = 0.0) -> tuple[be.Task, tuple[Any, Any], Tensor]:
    """Task, data, and the rows at which predictions are compared."""
    if name == "gap":
        x, y = sine_gap(np.random.default_rng(seed))
        data = ((x - 3.9) / 1.7, (y + 0.5) / 2.2)
        grid = (torch.linspace(0, 7, 141, dtype=torch.float64).unsqueeze(1) - 3.9) / 1.7
        noise = be.Gaussian(noise=0.25 / 2.2)
        return be.Task(lambda: network(1, 1, dropout), noise, be.NormalPrior(1.0)), data, grid
    x, y = make_moons(80, noise=0.25, random_state=seed)
    side = torch.linspace(-2.5, 3.0, 25, dtype=torch.float64)
    task = be.Task(lambda: network(2, 2, dropout), be.Categorical(), be.NormalPrior(1.0))
    return task, (x, y), torch.cartesian_prod(side, side)


def settings(name: str) -> dict[str, Any]:
    """One member for what stands for many networks by itself, several for all others; steps that fit the problem."""
    fields = {field for cls in method_class(name).__mro__ for field in getattr(cls, "__annotations__", {})}
    single = name in ("map", "emp", "ecmp", "dropout", "dropconnect", "mc_dropout", "explicit")
    found: dict[str, Any] = {} if name == "map" else {"num_members": 1 if single else MEMBERS}
    if "draws" in fields:
        found["draws"] = 100
    if name in ("emp", "ecmp"):
        found["select"] = "all"  # these networks have no norm layers
    if name == "csgmcmc":
        found |= {"num_members": 4}
    elif "learning_rate" in fields:
        found |= {"learning_rate": 0.01}
    return found | ({"schedule": "cosine"} if "schedule" in fields and name not in ("csgmcmc", "snapshot") else {})


def run(name: str, which: str, seed: int, evaluations: int, reference: be.Predictive) -> dict[str, Any]:
    method = make_method(name, **settings(name))
    task, data, rows = problem(which, seed, dropout=0.05 if name == "mc_dropout" else 0.0)
    epochs = evaluations // (method.num_members * getattr(method, "training_draws", 1))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ensemble = be.fit(task, method, data, epochs=epochs, seed=seed, executor="vmap", progress=False)
        found = be.fidelity(ensemble.predict(rows), reference)
    return {"members": method.num_members, "epochs": epochs, "seconds": time.perf_counter() - start} | found


def hmc(which: str, seed: int, transitions: int) -> tuple[be.Predictive, dict[str, Any]]:
    task, data, rows = problem(which, seed)
    ensemble = be.fit(task, be.HMC(num_members=4), data, epochs=transitions, seed=seed, executor="vmap", progress=False)
    return ensemble.predict(rows), {"convergence": be.convergence(ensemble, rows)}


def summarise(which: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(which, "members", *SCORES[which], "seconds")
    own = [row for row in rows if row["problem"] == which]
    for name in dict.fromkeys(row["method"] for row in own):
        mine = [row for row in own if row["method"] == name]
        cells = []
        for score in (*SCORES[which], "seconds"):
            values = [row[score] for row in mine]
            cells.append(results.mean_and_error(values, 3))
        table.add_row(name, str(mine[0]["members"]), *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=20_000)
    parser.add_argument("--transitions", type=int, default=400, help="of HMC, the reference")
    parser.add_argument("--methods", default=",".join(name for name in METHODS if name != "hmc"))
    parser.add_argument("--out", type=Path, default=Path("fidelity.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = results.read(arguments.out)
    for which in SCORES:
        for seed in range(arguments.seeds):
            done = {row["method"] for row in rows if (row["problem"], row["seed"]) == (which, seed)}
            todo = [name for name in arguments.methods.split(",") if name not in done]
            if not todo:
                continue
            reference, notes = hmc(which, seed, arguments.transitions)
            print(which, seed, notes, flush=True)
            for name in todo:
                found = run(name, which, seed, arguments.evaluations, reference)
                rows.append(results.append(arguments.out, {"problem": which, "method": name, "seed": seed, **found}))
    for which in SCORES:
        Console(width=130).print(summarise(which, rows))


if __name__ == "__main__":
    main()
