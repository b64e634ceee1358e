"""Figures of predicted numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bayesemble.diagnostics.plots.style import (
    GREY,
    as_array,
    draw_diagonal,
    entry,
    is_drawn,
    mark,
    method_axes,
    with_legend,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bayesemble.metrics.curves import Bands


def plot_bands(
    bands: Bands,
    ax: Axes | None = None,
    *,
    data: tuple[Any, Any] | None = None,
    input_name: str = "Input",
    target_name: str = "Target",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw a prediction along its only input: the mean, bands of doubt, and hatched their epistemic part.

    Args:
        bands: The result of `bayesemble.metrics.curves.prediction_bands` with the inputs as positions.
        data: Points `(x, y)`, drawn once for all methods.
        input_name: What the input is, with its unit.
        target_name: What the target is, with its unit.
    """
    ax, group, color = method_axes(ax, label, color)
    position, mean = as_array(bands.position), as_array(bands.mean)
    drawn: list[Artist] = [*ax.plot(position, mean, color=color, linewidth=1.8, label=entry(label, "mean"))]
    for number, (name, low, high) in enumerate(
        zip(bands.names, as_array(bands.low), as_array(bands.high), strict=True)
    ):
        opacity, words = 0.4 * (1 - number / len(bands.names)), entry(label, name)
        drawn.append(ax.fill_between(position, low, high, color=color, alpha=opacity, linewidth=0, label=words))
    inner = ax.fill_between(position, as_array(bands.epistemic_low), as_array(bands.epistemic_high))
    inner.set(facecolor="none", edgecolor=color, linestyle="--", linewidth=0.8, hatch="////", alpha=0.5)
    inner.set_label(entry(label, "epistemic part"))
    drawn.append(inner)
    mark(group, drawn)
    if data is not None and not is_drawn(ax, "data"):
        x, y = (as_array(values).ravel() for values in data)
        mark("data", ax.plot(x, y, linestyle="", marker=".", markersize=4, color=GREY, zorder=3, label="data"))
    ax.set(xlabel=input_name, ylabel=target_name)
    return with_legend(ax)


def plot_predictions(
    bands: Bands,
    ax: Axes | None = None,
    *,
    target_name: str = "target",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw predicted against true values: the mean, and a bar from end to end of the widest band.

    Args:
        bands: The result of `bayesemble.metrics.curves.prediction_bands` with the targets as positions.
        target_name: What the target is, with its unit.
    """
    ax, group, color = method_axes(ax, label, color)
    position, mean = as_array(bands.position), as_array(bands.mean)
    draw_diagonal(ax, float(position[0]))
    words = entry(label, f"mean and {bands.names[-1]}")
    points = ax.plot(position, mean, linestyle="", marker="o", markersize=3, color=color, label=words)
    # Not error bars: the mean of a skewed mixture can lie outside its own central interval.
    bars = ax.vlines(position, as_array(bands.low)[-1], as_array(bands.high)[-1], color=color, alpha=0.4, linewidth=1)
    mark(group, [*points, bars])
    ax.set(xlabel=f"True {target_name}", ylabel=f"Predicted {target_name}")
    return with_legend(ax, "upper left")
