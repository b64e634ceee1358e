"""How alike networks are, drawn as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesemble.landscape.similarity import Similarity
from bayesemble.plots.style import SURFACE, new_axes
from bayesemble.settings import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LABELS = 12  # more would overlap


def plot_similarity(result: Similarity, ax: Axes | None = None, what: str = "cosine") -> Axes:
    """Draw one matrix of a comparison, with a colour bar; networks are named by member and epoch.

    Args:
        result: From `landscape.similarity`.
        ax: Where to draw; None makes a new figure.
        what: "cosine", "difference" or "jensen_shannon", which only classes have.
    """
    titles = {
        "cosine": "cosine of the weights",
        "difference": result.difference_name,
        "jensen_shannon": "Jensen-Shannon divergence (nats)",
    }
    require(what in titles, f"what is one of {', '.join(titles)}, not {what!r}")
    matrix = getattr(result, what)
    require(matrix is not None, "numbers have no Jensen-Shannon divergence; draw what='difference' instead")
    axes = new_axes(ax, width=5.0, height=4.2)
    image = axes.imshow(matrix.numpy(), cmap=SURFACE)
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, label=titles[what])
    name, labels = _labels(result.names)
    step = -(-len(labels) // _MOST_LABELS)
    axes.set_xticks(range(0, len(labels), step), labels[::step], rotation=90 if name == "member, epoch" else 0)
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    axes.set(xlabel=name, ylabel=name)
    axes.grid(visible=False)
    return axes


def _labels(names: list[tuple[int, int | None]]) -> tuple[str, list[str]]:
    """What networks are told apart by, and the words for each."""
    if all(epoch is None for _, epoch in names):
        return "member", [str(member) for member, _ in names]
    if len({member for member, _ in names}) == 1:
        return f"epoch of member {names[0][0]}", [str(epoch) for _, epoch in names]
    return "member, epoch", [f"{member}, {epoch}" for member, epoch in names]
