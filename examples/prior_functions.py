"""What implicit ensembles can say before they have seen data: functions drawn from dropout, EMP and a Gaussian prior.

    python examples/prior_functions.py prior.png

One hidden layer of 100 units with a sign as activation, so that every function is a staircase. Left: dropout at two
rates, one set of weights, of which each function leaves out some units. Then EMP, five components for each of the two
layers, 25 functions in all. Right: every function with weights of its own. After figure 3 of Chang et al. (2019).
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bayesemble as be


class Sign(nn.Module):
    """-1 or 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(x)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 100), Sign(), nn.Linear(100, 1))


def main(path: str) -> None:
    prior = be.NormalPrior(std={"0.*": 1.0, "2.weight": 0.1, "2.bias": 0.1})  # outputs of about size 1
    task = be.Task(network, be.Gaussian(), prior)
    x = torch.linspace(-3, 3, 601).unsqueeze(1)
    panels = {
        "dropout, rate 0.005": be.Dropout(rate=0.005, select="output"),
        "dropout, rate 0.1": be.Dropout(rate=0.1, select="output"),
        "EMP, 5 components": be.EMP(components=5, select="all"),
        "Gaussian prior": None,
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 3.2), sharey=True, layout="constrained")
    for axis, (title, method) in zip(axes, panels.items(), strict=True):
        functions = be.prior_predictive(task, method, x, num=8).member_mean.squeeze(-1)
        for function in functions:
            axis.plot(x.squeeze(1), function, linewidth=1)
        axis.set(title=title, xlabel="x")
        spread = float(functions.std(0).mean())
        axis.text(0.03, 0.03, f"spread {spread:.2f}", transform=axis.transAxes)
    axes[0].set_ylabel("f(x)")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "prior.png")
