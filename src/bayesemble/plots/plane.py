"""A plane in weight space as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayesemble.landscape.plane import Plane
from bayesemble.plots.style import SURFACE, new_axes
from bayesemble.settings import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 0.9  # the share of the networks, from the lowest values on, that unbounded colour scales tell apart
_LEVELS = 25
_INK = "#111111"  # on white marks, whatever the colour of the page


def plot_plane(
    result: Plane, ax: Axes | None = None, what: Literal["loss", "error", "difference"] = "loss", reference: int = 0
) -> Axes:
    """Draw loss, error or difference over a plane, with its members marked by their places in the ensemble.

    Far from the members losses are so large that nothing else could be seen: what has no bound is clipped at its 90%
    quantile over the grid, or at the largest value of a member if that is more; the colour bar says so.

    Args:
        result: What `plane` or `radial_plane` gave.
        ax: Axes to draw on; None makes a figure.
        what: The quantity.
        reference: For the difference: from which of the members that span the plane, counted from 0.
    """
    require(what in ("loss", "error", "difference"), f"what is 'loss', 'error' or 'difference', got {what!r}")
    num = len(result.members)
    require(0 <= reference < num, f"reference is a number from 0 to {num - 1}, got {reference}")
    surface, own = getattr(result, what), getattr(result.at_corners, what)
    if what == "difference":
        surface, own = surface[..., reference], own[:, reference]
    axes = new_axes(ax, width=5.6, height=4.4)
    low, high, clipped = _range(surface, own, bounded=result.classes and what != "loss")
    levels = torch.linspace(low, high, _LEVELS, dtype=torch.float64).tolist()
    heights = surface.nan_to_num(high).clamp(levels[0], levels[-1]).numpy()
    ends = "max" if clipped else "neither"
    drawn = axes.contourf(result.x.numpy(), result.y.numpy(), heights, levels, cmap=SURFACE, extend=ends)
    words = _label(result, what, reference) + (f", clipped at {high:.3g}" if clipped else "")
    axes.figure.colorbar(drawn, ax=axes, label=words, ticks=levels[::6], format="%.3g")
    _mark_members(axes, result)
    axes.set(aspect="equal", xlabel="distance in weight space", ylabel="distance in weight space")
    return axes


def _range(surface: Tensor, own: Tensor, bounded: bool) -> tuple[float, float, bool]:
    """The lowest and highest value that have a colour of their own, and whether there are higher ones."""
    finite = surface[surface.isfinite()]
    require(len(finite) > 0, "no network on this plane has a finite value; make the margin smaller")
    low, high = float(finite.min()), float(finite.max())
    if not bounded:
        high = min(high, max(float(finite.quantile(_SHOWN)), float(own.max())))
    high = max(high, low + 1e-9 + 1e-6 * abs(low))  # contours of a constant need a range too
    return low, high, bool((surface > high).any() or surface.isnan().any())


def _label(result: Plane, what: str, reference: int) -> str:
    if what == "loss":
        return "loss in nats"
    if what == "error":
        return "share of wrong classes" if result.classes else "root mean squared error"
    kind = "share of other classes than" if result.classes else "root mean squared difference from"
    return f"{kind} member {result.members[reference]}"


def _mark_members(axes: Axes, result: Plane) -> None:
    x, y = result.corners.T.tolist()
    axes.scatter(x, y, s=140, color="white", edgecolors=_INK, zorder=3)
    for across, up, place in zip(x, y, result.members, strict=True):
        axes.annotate(str(place), (across, up), ha="center", va="center", color=_INK, fontsize=8, zorder=4)
    if len(result.members) == 2:
        axes.scatter([0.0], [0.0], marker="+", s=80, color="white", zorder=3)
        axes.annotate("origin", (0.0, 0.0), (6, 6), textcoords="offset points", color="white", fontsize=8, zorder=4)
