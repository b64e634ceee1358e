"""Paths of members through training, drawn on a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesemble.landscape.trajectory import Embedding
from bayesemble.plots.style import GREY, colour, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES = {"tsne": "t-SNE axis", "pca": "principal component"}


def plot_embedding(result: Embedding, ax: Axes | None = None) -> Axes:
    """Draw the path of each member's predictions: a line through its epochs, a star at the last of them."""
    axes = new_axes(ax)
    for number, (member, path) in enumerate(zip(result.members, result.points.numpy(), strict=True)):
        x, y = path.T
        axes.plot(x, y, "o-", color=colour(number), markersize=3, linewidth=1, label=f"member {member}")
        axes.plot(x[-1:], y[-1:], "*", color=colour(number), markersize=12, markeredgecolor="white")
    name = _AXES[result.kind]
    axes.plot([], [], "*", color=GREY, markersize=9, label=f"epoch {result.epochs[-1]}, the last")
    axes.set(xlabel=f"{name} 1", ylabel=f"{name} 2")
    axes.legend()
    return axes
