"""Figures of uncertainty: is there more of it on foreign data, and where the answer is wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.settings import require
from bayesemble.diagnostics.plots.style import as_array, entry, mark, method_axes, with_legend
from bayesemble.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayesemble.metrics import ConfidenceCurve, RiskCoverage


def plot_entropy(
    known: Any,
    ood: Any = None,
    ax: Axes | None = None,
    *,
    bins: int | Sequence[float] = 30,
    quantity: str = "Entropy",
    unit: str = "nat",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw how uncertainty is distributed over rows: filled for known data, dashed for foreign data. Apart is better.

    Args:
        known: Uncertainty of rows like those trained on, as `Predictive.uncertainty` gives it, or a `Predictive`, whose
            total uncertainty is taken.
        ood: The same of rows of another kind, foreign to the training data.
        bins: Number of bins from 0 to the largest uncertainty, or their edges, the same for all methods;
            rows beyond count in the outer bins.
        quantity: What the uncertainty is.
        unit: Its unit.
    """
    parts = [("known data", _uncertainty(known))]
    if ood is not None:
        parts.append(("foreign data", _uncertainty(ood)))
    require(all(len(values) for _, values in parts), "the uncertainty of at least one row was needed, got none")
    largest = max(values.max() for _, values in parts)
    edges = np.linspace(0, largest if largest > 0 else 1, bins + 1) if isinstance(bins, int) else np.asarray(bins)
    ax, group, color = method_axes(ax, label, color)
    for name, values in parts:
        heights, _ = np.histogram(values.clip(edges[0], edges[-1]), bins=edges, density=True)
        style = "--" if name == "foreign data" else "-"
        outline = ax.stairs(heights, edges, color=color, linestyle=style, linewidth=1.5, label=entry(label, name))
        mark(group, [outline])
        if name == "known data":
            mark(group, [ax.stairs(heights, edges, fill=True, color=color, alpha=0.15)])
    ax.set(xlabel=f"{quantity} ({unit})", ylabel=f"Density (1/{unit})")
    return with_legend(ax)


def _uncertainty(given: Any) -> NumpyArray:
    return as_array(given.uncertainty("total") if isinstance(given, Predictive) else given).ravel()


def plot_accuracy_against_confidence(
    curve: ConfidenceCurve, ax: Axes | None = None, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw the accuracy of the rows whose confidence reaches a threshold against that threshold. Higher is better.

    Args:
        curve: The result of `bayesemble.metrics.accuracy_against_confidence`.

    Reference: Lakshminarayanan, Pritzel & Blundell (2017), figure 6.
    """
    ax, group, color = method_axes(ax, label, color)
    threshold, accuracy = as_array(curve.threshold), as_array(curve.accuracy)
    mark(group, ax.plot(threshold, accuracy, marker="o", markersize=4, color=color, label=label))
    ax.set(xlabel="Confidence threshold τ (probability)", ylabel="Accuracy of rows with confidence ≥ τ (share)")
    return with_legend(ax)


def plot_risk_coverage(
    curve: RiskCoverage,
    ax: Axes | None = None,
    *,
    quantity: str = "Error rate of the kept rows (share)",
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw the risk of the kept rows against the share of rows kept, those in least doubt first. Lower is better.

    Args:
        curve: The result of `bayesemble.metrics.risk_coverage`.
        quantity: What the risk is, with its unit; of numbers it is the mean squared error.
    """
    ax, group, color = method_axes(ax, label, color)
    mark(group, ax.plot(as_array(curve.coverage), as_array(curve.risk), color=color, label=label))
    ax.set(xlabel="Rows kept (share)", ylabel=quantity, xlim=(0.0, 1.02))
    return with_legend(ax)
