"""Members as samples: a deep ensemble, repulsive ensembles and SVGD on densities that can be drawn.

    python examples/samples.py samples.png

Two weights are all there is; the "network" returns its own log density, and the likelihood passes it on. Upper row: a
mixture of two Gaussians; lower row: Neal's funnel. A deep ensemble climbs to the modes; members that repel one another
spread over the density.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.types import Leaves
from bayesemble.task.likelihoods import Gaussian


@dataclass(frozen=True)
class Density(Gaussian):
    """Outputs are log densities already."""

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        return outputs.squeeze(-1)


def mixture(w: Tensor) -> Tensor:
    centres = torch.tensor([[-2.0, 0.0], [2.0, 1.0]], dtype=w.dtype)
    return torch.logsumexp(-(w - centres).square().sum(-1) / (2 * 0.7**2), -1)


def funnel(w: Tensor) -> Tensor:
    """v ~ Normal(0, 1.5), u ~ Normal(0, exp(v / 2))."""
    u, v = w
    return -((v / 1.5) ** 2) / 2 - (u * torch.exp(-v / 2)) ** 2 / 2 - v / 2


class Point(nn.Module):
    def __init__(self, log_density: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2) * 1.5)
        self.log_density = log_density

    def forward(self, x: Tensor) -> Tensor:
        return self.log_density(self.weight).expand(len(x), 1)


def sample(log_density: Callable[[Tensor], Tensor], method: be.DeepEnsemble | be.Repulsive | be.Stein) -> Tensor:
    task = be.Task(lambda: Point(log_density), Density(), prior=None)
    data = (torch.zeros(1, 1), torch.zeros(1, 1))
    ensemble = be.fit(task, method, data, epochs=1500, executor="vmap", progress=False)
    return ensemble.state.members.params["weight"]


def main(path: str) -> None:
    common = {"num_members": 100, "learning_rate": 0.03, "schedule": "cosine"}
    methods = {
        "deep ensemble": be.DeepEnsemble(**common),
        "repulsive (default)": be.Repulsive(**common),
        "repulsive, ssge": be.Repulsive(**common, estimator="ssge", threshold=0.99),
        "SVGD": be.Stein(**common),
    }
    figure, axes = plt.subplots(2, 4, figsize=(12, 6), layout="constrained")
    first, second = torch.meshgrid(torch.linspace(-5, 5, 80), torch.linspace(-5, 5, 80), indexing="xy")
    points = torch.stack([first, second], -1).reshape(-1, 2)
    for row, log_density in zip(axes, (mixture, funnel), strict=True):
        heights = torch.vmap(log_density)(points).exp().reshape(80, 80)
        for axis, (name, method) in zip(row, methods.items(), strict=True):
            w = sample(log_density, method)
            axis.contourf(first, second, heights, levels=12, cmap="Blues")
            axis.plot(*w.T, ".", color="black", markersize=4)
            axis.set(title=name, xticks=[], yticks=[], xlim=(-5, 5), ylim=(-5, 5))
    figure.savefig(path, dpi=110)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "samples.png")
