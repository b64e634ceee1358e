"""A prior over functions: scales of weights whose networks look like draws of a Gaussian process.

    python examples/match_prior.py match_prior.png

A network of two hidden layers of 50 sine units, with the prior N(0, 1) on all weights, is asked to look like a Gaussian
process with an RBF kernel of length 1 on 25 points. Left to right: before, after, and draws of the process.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bayesemble as be


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 50), Sine(), nn.Linear(50, 50), Sine(), nn.Linear(50, 1))


def main(path: str, num: int = 1000, steps: int = 100) -> None:
    x = torch.linspace(-3, 3, 25).unsqueeze(1)
    task = be.Task(network, be.Gaussian(noise=0.1))
    matched = be.match_prior(task, inputs=x, kernel=be.kernels.RBF(bandwidth=1.0), num=num, steps=steps)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, part in zip(axes, ("before", "after", "wanted"), strict=True):
        be.plots.plot_matched_prior(matched, part, axis)
    axes[2].set_ylim(axes[1].get_ylim())
    figure.savefig(path, dpi=100)
    print(f"distance {matched.distance_before:.3g} before, {matched.distance_after:.3g} after")
    print({name: round(scale, 3) for name, scale in matched.prior.std.items()})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "match_prior.png")
