"""Figures of what is believed before data are seen, and of the prior that members are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bayesemble.core.settings import require
from bayesemble.core.types import tensors_of
from bayesemble.diagnostics.plots.style import as_array, colour, entry, mark, method_axes, new_axes, with_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayesemble.diagnostics.learned_prior import LearnedPrior
    from bayesemble.diagnostics.match_prior import MatchedPrior

_LARGEST = 900.0  # the area of a point mass that has all the weight, in square points
_PARTS = ("before", "after", "wanted")


def plot_matched_prior(matched: MatchedPrior, part: str = "after", ax: Axes | None = None) -> Axes:
    """Draw functions along their only input: of the prior before or after matching, or those that were wanted.

    Args:
        matched: The result of `be.match_prior` with inputs `(row, 1)`; of several outputs the first is drawn.
        part: "before", "after" or "wanted".
        ax: Axes to draw on.
    """
    require(part in _PARTS, f"part is one of {', '.join(_PARTS)}, not {part!r}")
    inputs = tensors_of(matched.inputs)
    require(len(inputs) == 1 and inputs[0][0].numel() == 1, "functions of one input can be drawn, these have several")
    x = as_array(inputs[0]).ravel()
    order = np.argsort(x)
    functions = as_array(getattr(matched, part)).reshape(-1, len(x), int(np.prod(matched.after.shape[2:])))[:, :, 0]
    ax = new_axes(ax)
    for number, function in enumerate(functions):
        ax.plot(x[order], function[order], linewidth=1, color=colour(number), alpha=0.9)
    ax.set(xlabel="Input", ylabel="Function", title=part)
    return ax


def plot_learned_prior(
    learned: LearnedPrior, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw the point masses of a learned prior on their plane: a ring for the prior weight, filled by the posterior's.

    Areas are in proportion to weights. Filled rings are members that the data leave as they were; empty ones are those
    that Bayes' rule does without.

    Args:
        learned: The result of `be.learned_prior`.
    """
    ax, group, color = method_axes(ax, label, color)
    x, y = as_array(learned.positions).T
    before, after = as_array(learned.prior_weights), as_array(learned.posterior_weights)
    words = (entry(label, "prior weight"), entry(label, "posterior weight"))
    rings = ax.scatter(x, y, s=_LARGEST * before, facecolors="none", edgecolors=color, linewidths=1.2, label=words[0])
    discs = ax.scatter(x, y, s=_LARGEST * after, color=color, alpha=0.45, linewidths=0, label=words[1])
    mark(group, [rings, discs])
    ax.margins(0.2)
    ax.set(xlabel="First direction of the weights", ylabel=f"Second ({learned.share:.0%} of all distances shown)")
    return with_legend(ax)
