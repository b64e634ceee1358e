"""How good and how different networks are: of one ensemble, of several methods, of neighbourhoods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape.diversity import DiversityAccuracy, independent_limit, perturbed_limit
from bayesemble.diagnostics.landscape.neighbourhoods import SubspaceEnsembles
from bayesemble.diagnostics.plots.style import GREY, as_array, colour, mark, method_axes, new_axes, with_legend

if TYPE_CHECKING:
    from matplotlib.artist import Artist
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


_NO_ERRORS = 0.9995  # the plane ends where a network makes no errors


def plot_member_diversity(
    result: DiversityAccuracy, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw networks by their accuracy a and their disagreement with a reference d / (1 - a), one method per call.

    The solid line is where networks with independent errors lie, the dashed one where random changes of the reference's
    answers lead; both go through the accuracies of this method alone. A network without errors has no place here.

    Args:
        result: The result of `bayesemble.landscape.diversity_accuracy`, or of the members of a prediction.
    """
    ax, group, color = method_axes(ax, label, color)
    accuracy, apart = (torch.cat(list(some.values())).double() for some in (result.accuracy, result.disagreement))
    wrong = accuracy < 1
    accuracy, apart = accuracy[wrong], apart[wrong]
    points = ax.scatter(
        as_array(accuracy), as_array(apart / (1 - accuracy)), s=22, color=color, alpha=0.75, linewidths=0, label=label
    )
    drawn: list[Artist] = [points]
    around = torch.cat([accuracy, torch.tensor([result.reference_accuracy], dtype=torch.float64)])
    grid = torch.linspace(float(around.min()) - 0.01, min(float(around.max()) + 0.01, _NO_ERRORS), 60).double()
    for limit, style in ((independent_limit, "-"), (perturbed_limit, "--")):
        there = grid if limit is independent_limit else grid[grid <= result.reference_accuracy]
        height = limit(there, result.reference_accuracy, result.num_classes) / (1 - there)
        drawn += ax.plot(as_array(there), as_array(height), linestyle=style, color=color, linewidth=0.9, alpha=0.55)
    mark(group, drawn)
    ax.set(xlabel="Accuracy (share of rows)", ylabel="Disagreement / error rate")
    ax.set_ylim(bottom=0)
    return with_legend(ax)
