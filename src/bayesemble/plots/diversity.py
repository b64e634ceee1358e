"""Diversity against accuracy, and ensembles of subspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayesemble.landscape.diversity import DiversityAccuracy, independent_limit, perturbed_limit
from bayesemble.landscape.subspaces import SubspaceEnsembles
from bayesemble.plots.style import GREY, colour, new_axes
from bayesemble.settings import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {
    "member": "independent members",
    "random": "random directions",
    "dropout": "dropout",
    "diagonal": "diagonal Gaussian",
    "pca": "low-rank Gaussian",
    "average": "weight average",
}
_MARKERS = dict(zip(_NAMES, "o^sDvP", strict=True))
_COLOURS = {kind: colour(number) for number, kind in enumerate(_NAMES)}  # the same kind looks alike in all figures


def plot_diversity_accuracy(result: DiversityAccuracy, ax: Axes | None = None) -> Axes:
    """Draw each network by its accuracy a and its disagreement with the reference d / (1 - a).

    The lines are what independent errors and random changes of the reference's answers give; the star is the reference.
    A network without errors has no place on this plane.
    """
    axes, reference, classes = new_axes(ax, width=5.6), result.reference_accuracy, result.num_classes
    lowest = min([1 / classes, reference, *(float(one.min()) for one in result.accuracy.values())])
    highest = max([1 / classes, reference, *(float(one.max()) for one in result.accuracy.values())])
    grid = torch.linspace(lowest, min(highest, 0.995), 200, dtype=torch.float64)
    upper = independent_limit(grid, reference, classes) / (1 - grid)
    axes.plot(grid.numpy(), upper.numpy(), "-", color=GREY, label="independent errors")
    below = grid[grid <= reference]
    lower = perturbed_limit(below, reference, classes) / (1 - below)
    axes.plot(below.numpy(), lower.numpy(), "--", color=GREY, label="random changes")
    for kind, accuracy in result.accuracy.items():
        wrong = accuracy < 1
        a, d = accuracy[wrong], result.disagreement[kind][wrong]
        axes.scatter(
            a.numpy(), (d / (1 - a)).numpy(), s=18, color=_COLOURS[kind], marker=_MARKERS[kind], label=_NAMES[kind]
        )
    axes.plot([reference], [0], "*", color="black", markersize=13, linestyle="none", label="reference")
    axes.set(xlabel="accuracy", ylabel="disagreement with the reference / error rate")
    axes.legend(fontsize="small")
    return axes


def plot_subspace_ensembles(result: SubspaceEnsembles, ax: Axes | None = None, what: str = "accuracy") -> Axes:
    """Draw the accuracy (or, with `what="brier"`, the Brier score) of ensembles of subspaces against their size."""
    titles = {"accuracy": "accuracy", "brier": "Brier score"}
    require(what in titles, f"what is one of {', '.join(titles)}, not {what!r}")
    axes = new_axes(ax)
    for kind, values in getattr(result, what).items():
        name = "members alone" if kind == "member" else _NAMES[kind]
        axes.plot(result.sizes, values.numpy(), marker=_MARKERS[kind], color=_COLOURS[kind], markersize=5, label=name)
    axes.set_xticks(result.sizes)
    axes.set(xlabel="number of members", ylabel=titles[what])
    axes.legend(fontsize="small")
    return axes
