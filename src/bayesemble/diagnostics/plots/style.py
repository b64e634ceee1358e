"""What all figures have in common: axes, colours, and the way a missing matplotlib is reported.

A figure of methods is drawn by one call for each. Call again with the same axes for the next one: it takes the next
colour, and everything drawn for it has the group id `method-{label}`, by which a page can switch it on and off. The
diagonal, the data and the like belong to no method; they are drawn once.

The first eight colours are those of Okabe & Ito (2008) but for the yellow, which people with any kind of colour vision
tell apart; surfaces use viridis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bayesemble.core.arrays import NumpyArray, numbers
from bayesemble.core.lazy import import_extra

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#8C6D31",
    "#000000",
    "#7F3C8D",
    "#A5A5A5",
)
SURFACE = "viridis"
GREY = "#767676"


def colour(number: int) -> str:
    """The colour of the thing with this number; after the last one, the first comes again."""
    return PALETTE[number % len(PALETTE)]


def new_axes(ax: Axes | None = None, width: float = 5.0, height: float = 3.8) -> Axes:
    """The axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    _, axes = load_pyplot().subplots(figsize=(width, height), layout="constrained")
    return axes


def load_pyplot() -> Any:
    """Import matplotlib, or say which extra has it."""
    return import_extra("matplotlib.pyplot", "figures need matplotlib", "'bayesemble[plots]'")


def method_axes(ax: Axes | None, label: str | None, color: str | None) -> tuple[Axes, str, str]:
    """Axes to draw a method on, its group id and its colour: its own if it has been drawn before, else the next one.

    A method without a name is called by its number.
    """
    ax = new_axes(ax)
    groups = (child.get_gid() or "" for child in ax.get_children())
    known = list(dict.fromkeys(group for group in groups if group.startswith("method-")))
    group = f"method-{len(known) if label is None else label}"
    number = known.index(group) if group in known else len(known)
    return ax, group, color or colour(number)


def mark(group: str, artists: Iterable[Artist]) -> None:
    """Say which method the artists belong to."""
    for artist in artists:
        artist.set_gid(group)


def is_drawn(ax: Axes, group: str) -> bool:
    """Whether something with this group id has been drawn, which is drawn once for all methods."""
    return any(child.get_gid() == group for child in ax.get_children())


def draw_diagonal(ax: Axes, through: float = 0.0) -> None:
    """Draw the line y = x, once; it does not stretch the axes beyond the point it is laid through."""
    if not is_drawn(ax, "reference"):
        line = ax.axline((through, through), slope=1, color=GREY, linestyle=":", linewidth=1, zorder=1)
        mark("reference", [line])


def entry(label: str | None, part: str) -> str:
    """The words in the legend for one part of what is drawn of a method."""
    return part if label is None else f"{label}: {part}"


def with_legend(ax: Axes, location: str = "best") -> Axes:
    """Draw the legend anew, if anything has a name; each entry belongs to the method it names."""
    handles, _ = ax.get_legend_handles_labels()
    if not handles:
        return ax
    look: dict[str, Any] = {"loc": location, "frameon": False, "fontsize": "small"}
    legend = ax.legend(**look)
    for handle, icon, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        first: Any = handle[0] if isinstance(handle, tuple) else handle  # bars come as one tuple
        mark(first.get_gid(), [text] if icon is None else [icon, text])
    return ax


def whole_ticks(ax: Axes) -> None:
    """Mark whole numbers only along the x axis, which counts something."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def as_array(values: Any) -> NumpyArray:
    """Numbers of any kind as an array that can be drawn."""
    return numbers(values, "values").detach().cpu().double().numpy()
