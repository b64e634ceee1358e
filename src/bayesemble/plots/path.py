"""Networks along a path between two members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesemble.landscape.path import Path
from bayesemble.plots.style import colour, new_axes
from bayesemble.settings import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = {"loss": "loss (nats)", "error": "error", "difference": "difference from an end"}


def plot_path(
    result: Path, ax: Axes | None = None, *, what: str = "loss", label: str | None = None, number: int = 0
) -> Axes:
    """Loss, error, or difference from both ends along a path.

    Args:
        result: From `landscape.path`.
        ax: Where to draw; None makes new axes. Several paths can be drawn on the same.
        what: "loss", "error" or "difference".
        label: Name in the legend; None is the kind of the path.
        number: Which colour.
    """
    require(what in _LABELS, f"what is one of {', '.join(_LABELS)}, not {what!r}")
    ax = new_axes(ax)
    name = label or result.kind
    values = getattr(result, what)
    if what == "difference":
        for end, style in enumerate(("-", "--")):
            text = f"{name}, from member {result.members[end]}"
            ax.plot(result.positions, values[:, end], style, color=colour(number), label=text)
    else:
        ax.plot(result.positions, values, color=colour(number), marker=".", label=name)
    ax.set_xlabel(f"position on the path from member {result.members[0]} (0) to member {result.members[1]} (1)")
    ax.set_ylabel(_LABELS[what])
    ax.legend()
    return ax
