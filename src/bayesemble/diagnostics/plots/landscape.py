"""The loss landscape: planes, paths, sharpness, similarity and trajectories of members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape.embeddings import Embedding
from bayesemble.diagnostics.landscape.hessians import Sharpness
from bayesemble.diagnostics.landscape.paths import Path
from bayesemble.diagnostics.landscape.planes import Plane
from bayesemble.diagnostics.landscape.similarities import Similarity
from bayesemble.diagnostics.plots.style import GREY, SURFACE, colour, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_SHARE_BEFORE_CLIPPING = 0.9  # of the networks, from the lowest values on, where the colour scale has no bound
_CONTOUR_LEVELS = 25
_INK_ON_WHITE = "#111111"  # whatever the colour of the page


def plot_plane(
    result: Plane, ax: Axes | None = None, what: Literal["loss", "error", "difference"] = "loss", reference: int = 0
) -> Axes:
    """Draw loss, error or difference over a plane, with its members marked by their numbers in the ensemble.

    Far from the members losses are so large that nothing else could be seen: what has no bound is clipped at its 90%
    quantile over the grid, or at the largest value of a member if that is more; the colour bar says so.

    Args:
        result: What `plane` or `radial_plane` gave.
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
    levels = torch.linspace(low, high, _CONTOUR_LEVELS, dtype=torch.float64).tolist()
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
        high = min(high, max(float(finite.quantile(_SHARE_BEFORE_CLIPPING)), float(own.max())))
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
    axes.scatter(x, y, s=140, color="white", edgecolors=_INK_ON_WHITE, zorder=3)
    for across, up, member in zip(x, y, result.members, strict=True):
        axes.annotate(str(member), (across, up), ha="center", va="center", color=_INK_ON_WHITE, fontsize=8, zorder=4)
    if len(result.members) == 2:
        axes.scatter([0.0], [0.0], marker="+", s=80, color="white", zorder=3)
        axes.annotate("origin", (0.0, 0.0), (6, 6), textcoords="offset points", color="white", fontsize=8, zorder=4)


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


def plot_sharpness(result: Sharpness, ax: Axes | None = None) -> Axes:
    """Draw the largest Hessian eigenvalue of each member against its error, numbered as in the ensemble."""
    axes = new_axes(ax)
    errors, sharpest = result.error.tolist(), result.eigenvalues[:, 0].tolist()
    axes.scatter(errors, sharpest, color=colour(0))
    for member, point in enumerate(zip(errors, sharpest, strict=True)):
        axes.annotate(str(member), point, (5, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("share of wrong classes" if result.classes else "root mean squared error")
    axes.set_ylabel("largest eigenvalue of the Hessian")
    return axes


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
