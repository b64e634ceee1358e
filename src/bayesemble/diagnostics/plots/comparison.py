"""Several methods in one figure: scores against ensemble size, and the scores of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesemble.core.settings import require
from bayesemble.diagnostics.plots.style import as_array, colour, mark, method_axes, new_axes, whole_ticks, with_legend

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bayesemble.metrics.curves import SizeCurve


def plot_size_curve(
    curve: SizeCurve,
    ax: Axes | None = None,
    *,
    quantity: str = "Score",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw a score against the number of members, with one standard deviation over subsets to both sides.

    Args:
        curve: The result of `bayesemble.metrics.curves.size_curve`.
        quantity: What the score is, with its unit: "NLL (nats per row)".
    """
    ax, group, color = method_axes(ax, label, color)
    size, mean, std = (as_array(values) for values in (curve.size, curve.mean, curve.std))
    lines = ax.plot(size, mean, marker="o", markersize=4, color=color, label=label)
    band = ax.fill_between(size, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)
    mark(group, [*lines, band])
    whole_ticks(ax)
    ax.set(xlabel="Ensemble size (members)", ylabel=quantity)
    return with_legend(ax)


def plot_scores(
    rows: Sequence[Mapping[str, Any]],
    score: str,
    ax: Axes | None = None,
    *,
    quantity: str | None = None,
    higher_is_better: bool = False,
    colors: Mapping[str, str] | None = None,
) -> Axes:
    """Draw one score of several methods as dots with standard errors, the best method on top.

    Args:
        rows: One per method, `{"method": name, score: {"mean": ..., "error": ...}}`, as `Comparison.summary()` gives
            them; an error of None is not drawn.
        score: Which score.
        quantity: What the score is, with its unit; None takes its name.
        higher_is_better: Whether the largest value is the best one.
        colors: The colour of each method; others take the next one.
    """
    for row in rows:
        there = ", ".join(name for name in row if name != "method")
        require(score in row, f"method {row['method']!r} has no score {score!r}; it has {there}")
    ax = new_axes(ax)
    sign = -1 if higher_is_better else 1
    looks = {row["method"]: (colors or {}).get(row["method"], colour(number)) for number, row in enumerate(rows)}
    ordered = sorted(rows, key=lambda row: (math.isnan(row[score]["mean"]), sign * row[score]["mean"]))
    names = [row["method"] for row in ordered]
    ax.set_yticks(range(len(names)), labels=names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    for position, (row, tick) in enumerate(zip(ordered, ax.get_yticklabels(), strict=True)):
        mean, error, look = row[score]["mean"], row[score]["error"], looks[row["method"]]
        drawn: list[Artist] = [*ax.plot([mean], [position], marker="o", linestyle="", color=look), tick]
        if error is not None:
            drawn.append(ax.hlines(position, mean - error, mean + error, color=look))
        mark(f"method-{row['method']}", drawn)
    ax.set(xlabel=quantity or score)
    return ax
