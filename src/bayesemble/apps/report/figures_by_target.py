"""Figures of what methods predict, by the kind of target: calibration of classes, bands and calibration of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bayesemble import metrics, plots
from bayesemble.apps.compare.source import predict_in_units
from bayesemble.apps.report.figure import DrawOne, Figure, by_itself, padded, several, thinned
from bayesemble.apps.report.opened_runs import Shown, member_diversity
from bayesemble.metrics.curves import Bands, prediction_bands
from bayesemble.predictive import RealPredictive

_DOTS = 80
_ROWS_OF_A_FULL_BIN = 5  # the accuracy of fewer is noise
_POINTS_OF_A_BAND = 100
_ENSEMBLE_SIZES = 10
_MANY_NETWORKS = 12  # from here on their number is drawn on a logarithmic scale


def _reliability(one: Shown, ax: Any) -> None:
    table = metrics.reliability(one.classes, one.targets, bins=10, min_count=_ROWS_OF_A_FULL_BIN)
    plots.plot_reliability(table, ax, label=one.label, color=one.colour)
    ax.set(xlim=(-0.02, 1.05), ylim=(-0.02, 1.05))


def _confidence(one: Shown, ax: Any) -> None:
    curve = metrics.accuracy_against_confidence(one.classes, one.targets)
    plots.plot_accuracy_against_confidence(curve, ax, label=one.label, color=one.colour)
    ax.set_ylabel("Accuracy of rows at least that confident")


def _diversity(one: Shown, ax: Any) -> None:
    plots.plot_member_diversity(member_diversity(one), ax, label=one.label, color=one.colour)


def _pit(one: Shown, ax: Any) -> None:
    plots.plot_pit(metrics.pit(one.numbers, one.targets), ax, bins=10, label=one.label, color=one.colour)


def _coverage(one: Shown, ax: Any) -> None:
    curve = metrics.interval_coverage(one.numbers, one.targets)
    plots.plot_coverage(curve, ax, label=one.label, color=one.colour)


def _bands(shown: Sequence[Shown]) -> DrawOne:
    split = shown[0].split
    inputs = [split.x_train, split.x_test, *([] if split.x_ood is None else [split.x_ood])]
    low, high = padded([float(end) for some in inputs for end in (some.min(), some.max())], 0.02)
    grid = np.linspace(low, high, _POINTS_OF_A_BAND, dtype=np.float32)[:, None]
    seen = split.target_shift + split.target_scale * split.y_train
    limits = padded([float(seen.min()), float(seen.max())], 0.8)

    def draw(one: Shown, ax: Any) -> None:
        predictive = predict_in_units(one.ensemble, grid, one.split)
        assert isinstance(predictive, RealPredictive)
        bands, data = prediction_bands(predictive, grid), (split.x_train, seen)
        plots.plot_bands(bands, ax, data=data, label=one.label, color=one.colour, input_name="Input (standardised)")
        ax.set(xlim=(low, high), ylim=limits)

    return draw


def _predictions(shown: Sequence[Shown]) -> DrawOne:
    targets = shown[0].targets
    ends = [float(targets.min()), float(targets.max())]

    def draw(one: Shown, ax: Any) -> None:
        bands = _some_rows(prediction_bands(one.numbers, one.targets), thinned(len(one.targets), _DOTS))
        plots.plot_predictions(bands, ax, label=one.label, color=one.colour)
        ax.set(xlim=padded(ends), ylim=padded(ends, 0.35))

    return draw


def _some_rows(bands: Bands, indices: list[int]) -> Bands:
    names = [field.name for field in dataclasses.fields(bands) if field.name != "names"]
    some: dict[str, Any] = {name: getattr(bands, name)[..., indices] for name in names}
    return dataclasses.replace(bands, **some)


def _has_one_input(shown: Sequence[Shown]) -> bool:
    inputs = shown[0].split.x_train
    return bool(inputs.reshape(len(inputs), -1).shape[1] == 1)


def size_curve(score: Callable[[Any, Any], float], quantity: str) -> Callable[[Sequence[Shown]], DrawOne]:
    """What draws a score against the number of members."""

    def draw(one: Shown, ax: Any) -> None:
        predictive = one.predictive
        num = int((predictive.weights > 0).sum())
        sizes = sorted({round(size) for size in np.geomspace(1, num, _ENSEMBLE_SIZES)})
        subsets = max(2, min(20, 2_000_000 // (predictive.num_rows * num)))
        curve = metrics.size_curve(predictive, one.targets, score, sizes, subsets)
        plots.plot_size_curve(curve, ax, quantity=quantity, label=one.label, color=one.colour)
        if num > _MANY_NETWORKS:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:.0f}")

    return by_itself(draw)


FIGURES_OF_CLASSES = (
    Figure("reliability", "Reliability", by_itself(_reliability)),
    Figure("confidence", "Accuracy against confidence", by_itself(_confidence)),
    Figure("diversity", "Diversity against accuracy", by_itself(_diversity), several),
    Figure(
        "size_score",
        "Accuracy against ensemble size",
        size_curve(metrics.accuracy, "Accuracy (share of rows)"),
        several,
    ),
)
FIGURES_OF_NUMBERS = (
    Figure("pit", "Where targets fall in their predicted distribution", by_itself(_pit), apart=True),
    Figure("coverage", "Coverage of intervals", by_itself(_coverage)),
    Figure("bands", "Predicted functions", _bands, lambda shown: shown if _has_one_input(shown) else [], apart=True),
    Figure(
        "predictions",
        "Predicted against true",
        _predictions,
        lambda shown: [] if _has_one_input(shown) else shown,
        apart=True,
    ),
    Figure("size_score", "RMSE against ensemble size", size_curve(metrics.rmse, "RMSE (units of the target)"), several),
)
