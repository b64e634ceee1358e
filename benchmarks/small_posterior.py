"""How near cyclical SG-MCMC comes to a posterior that is known: logistic regression with 25 rows and two weights.

    python benchmarks/small_posterior.py                     # chains of default settings, all rows in each step
    python benchmarks/small_posterior.py --batch-size 8

Variances of the collected networks as shares of the true ones, which a sum over a grid gives, with standard errors over
chains; then the same with the falling step of the paper alone.
"""

import argparse
import math

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be

ROWS, PRIOR_STD = 25, 1.5
METHODS = {
    "default": be.CyclicalSGMCMC(num_members=100),
    "excess_variance=None, exploration=0.8": be.CyclicalSGMCMC(num_members=100, excess_variance=None, exploration=0.8),
}


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    return x, (x.sum(1) + torch.randn(ROWS, generator=generator, dtype=torch.float64) > 0).double()


def true_variances(x: Tensor, y: Tensor) -> Tensor:
    """Of both weights, from a grid that reaches far beyond the posterior."""
    axis = torch.linspace(-7, 9, 700, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    likelihood = nn.functional.logsigmoid((2 * y - 1) * (points @ x.T)).sum(1)
    weights = (likelihood - points.square().sum(1) / (2 * PRIOR_STD**2)).softmax(0)
    mean = weights @ points
    return weights @ (points - mean) ** 2


def shares(method: be.CyclicalSGMCMC, steps: int, batch_size: int | None) -> list[str]:
    x, y = rows()
    variance = true_variances(x, y)
    task = be.Task(lambda: nn.Linear(2, 1, bias=False).double(), be.Bernoulli(), be.NormalPrior(PRIOR_STD))
    epochs = steps // (1 if batch_size is None else ROWS // batch_size)
    ensemble = be.fit(task, method, (x, y), epochs=epochs, batch_size=batch_size, executor="vmap", progress=False)
    draws = ensemble.draw().params["weight"].flatten(1).unflatten(0, (method.num_members, -1))
    own = ((draws - draws.mean((0, 1))) ** 2 / variance).mean(1)
    errors = own.std(0) / math.sqrt(len(own))
    return [f"{share:.2f} +- {error:.2f}" for share, error in zip(own.mean(0), errors, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", default="150,300,600,1200,3000")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("settings", "steps", "first weight", "second weight")
    for name, method in METHODS.items():
        for steps in map(int, arguments.steps.split(",")):
            table.add_row(name, str(steps), *shares(method, steps, arguments.batch_size))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
