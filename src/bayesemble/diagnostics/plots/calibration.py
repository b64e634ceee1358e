"""Figures of calibration: do things happen as often as they were given probability?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesemble.core.settings import require
from bayesemble.diagnostics.plots.style import (
    GREY,
    as_array,
    draw_diagonal,
    is_drawn,
    mark,
    method_axes,
    with_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayesemble.metrics import Reliability
    from bayesemble.metrics.curves import IntervalCoverage

LARGEST_MARKER = 120.0
"""Area of the marker of the fullest bin, in square points; the others have theirs in proportion to their rows."""


def plot_reliability(
    table: Reliability, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw accuracy against confidence per bin; the area of a marker goes by the rows in the bin.

    Below the diagonal the prediction is too sure of itself.

    Args:
        table: The result of `bayesemble.metrics.reliability`.
    """
    ax, group, color = method_axes(ax, label, color)
    confidence, accuracy, count = (as_array(values) for values in (table.confidence, table.accuracy, table.count))
    draw_diagonal(ax)
    lines = ax.plot(confidence, accuracy, color=color, linewidth=1.2, label=label)
    areas = LARGEST_MARKER * count / max(count.max(initial=0.0), 1.0)
    points = ax.scatter(confidence, accuracy, s=areas, color=color, alpha=0.7, linewidths=0)
    mark(group, [*lines, points])
    ax.set(xlabel="Confidence (probability)", ylabel="Accuracy (share of rows)")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return with_legend(ax, "upper left")


def plot_coverage(
    curve: IntervalCoverage, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw the share of targets inside the central interval against its level; below the diagonal it is too narrow.

    Args:
        curve: The result of `bayesemble.metrics.curves.interval_coverage`.
    """
    ax, group, color = method_axes(ax, label, color)
    draw_diagonal(ax)
    level, observed = as_array(curve.level), as_array(curve.observed)
    mark(group, ax.plot(level, observed, marker="o", markersize=3, color=color, label=label))
    ax.set(xlabel="Level of the interval (probability)", ylabel="Targets inside (share)")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return with_legend(ax, "upper left")


def plot_pit(
    values: Any, ax: Axes | None = None, *, bins: int = 20, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw a histogram of PIT values, as a density; a calibrated prediction follows the line at 1.

    Heaped at both ends it is too sure of itself, heaped in the middle too cautious.

    Args:
        values: The result of `bayesemble.metrics.pit`, of any shape.
        bins: Number of bins.
    """
    shares = as_array(values)
    sensible = shares.size > 0 and bool(((shares >= 0) & (shares <= 1)).all())
    require(sensible, "PIT values are probabilities in [0, 1], at least one of them; see bayesemble.metrics.pit")
    ax, group, color = method_axes(ax, label, color)
    if not is_drawn(ax, "reference"):
        mark("reference", [ax.axhline(1.0, color=GREY, linestyle=":", linewidth=1)])
    heights, edges = np.histogram(shares, bins=bins, range=(0.0, 1.0), density=True)
    fill = ax.stairs(heights, edges, fill=True, color=color, alpha=0.15)
    outline = ax.stairs(heights, edges, color=color, linewidth=1.5, label=label)
    mark(group, [fill, outline])
    ax.set(xlabel="PIT value (probability)", ylabel="Density (1 if calibrated)", xlim=(0.0, 1.0))
    return with_legend(ax)
