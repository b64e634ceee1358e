"""The members of several methods by how good and how different they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayesemble.landscape.diversity import DiversityAccuracy, independent_limit, perturbed_limit
from bayesemble.plots.style import as_array, draw_legend, mark, method_look, new_axes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_NO_ERRORS = 0.9995  # the plane ends where a network makes no errors


def plot_member_diversity(
    result: DiversityAccuracy, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw networks by their accuracy a and their disagreement with a reference d / (1 - a), one method per call.

    The solid line is where networks with independent errors lie, the dashed one where random changes of the reference's
    answers lead; both go through the accuracies of this method alone. A network without errors has no place here.

    Args:
        result: The result of `bayesemble.landscape.diversity_accuracy`, or of the members of a prediction.
        ax: Axes to draw on; None makes new ones.
        label: Name of the method.
        color: Its colour; None takes the next one.
    """
    ax = new_axes(ax)
    group, color = method_look(ax, label, color)
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
    draw_legend(ax)
    return ax
