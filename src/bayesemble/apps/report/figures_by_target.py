"""Figures of what methods predict, by the kind of target: calibration of classes, bands and calibration of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bayesemble import metrics, plots
from bayesemble.apps.report.opened_runs import Shown, member_diversity
from bayesemble.metrics.curves import Bands, prediction_bands
from bayesemble.predictive import RealPredictive

_ROWS = 80  # dots of predicted against true values
_FULL_BIN = 5  # rows; the accuracy of fewer is noise
_PLACES = 100  # of a band along its input


class Canvas(Protocol):
    """Where figures go: all methods in one drawing, or a small drawing for each."""

    @property
    def shown(self) -> Sequence[Shown]:
        """The methods."""

    def together(self, name: str, draw: Callable[[Shown, Any], Any], some: Sequence[Shown] | None = None) -> None:
        """One drawing for all methods, or for some."""

    def apart(self, name: str, draw: Callable[[Shown, Any], Any]) -> None:
        """One small drawing for each method."""


def draw_classes(canvas: Canvas) -> None:
    """Reliability, accuracy against confidence, and members by diversity and accuracy."""

    def reliability(one: Shown, ax: Any) -> None:
        table = metrics.reliability(one.classes, one.targets, bins=10, min_count=_FULL_BIN)
        plots.plot_reliability(table, ax, label=one.label, color=one.colour)
        ax.set(xlim=(-0.02, 1.05), ylim=(-0.02, 1.05))

    def confidence(one: Shown, ax: Any) -> None:
        curve = metrics.accuracy_against_confidence(one.classes, one.targets)
        plots.plot_accuracy_against_confidence(curve, ax, label=one.label, color=one.colour)
        ax.set_ylabel("Accuracy of rows at least so confident")

    def diversity(one: Shown, ax: Any) -> None:
        plots.plot_member_diversity(member_diversity(one), ax, label=one.label, color=one.colour)

    canvas.together("reliability", reliability)
    canvas.together("confidence", confidence)
    several = [one for one in canvas.shown if one.several]
    if several:
        canvas.together("diversity", diversity, several)


def draw_numbers(canvas: Canvas) -> None:
    """Bands along the only input, or predicted against true values; PIT and coverage."""

    def pit(one: Shown, ax: Any) -> None:
        plots.plot_pit(metrics.pit(one.numbers, one.targets), ax, bins=10, label=one.label, color=one.colour)

    def coverage(one: Shown, ax: Any) -> None:
        curve = metrics.interval_coverage(one.numbers, one.targets)
        plots.plot_coverage(curve, ax, label=one.label, color=one.colour)

    canvas.apart("pit", pit)
    canvas.together("coverage", coverage)
    inputs = canvas.shown[0].split.x_train
    if inputs.reshape(len(inputs), -1).shape[1] == 1:
        _draw_bands(canvas)
    else:
        _draw_predictions(canvas)


def _draw_bands(canvas: Canvas) -> None:
    split = canvas.shown[0].split
    inputs = [split.x_train, split.x_test, *([] if split.x_ood is None else [split.x_ood])]
    low, high = padded([float(end) for some in inputs for end in (some.min(), some.max())], 0.02)
    grid = np.linspace(low, high, _PLACES, dtype=np.float32)[:, None]
    seen = split.target_shift + split.target_scale * split.y_train
    limits = padded([float(seen.min()), float(seen.max())], 0.8)

    def bands(one: Shown, ax: Any) -> None:
        predictive = one.predict(grid)
        assert isinstance(predictive, RealPredictive)
        found, data = prediction_bands(predictive, grid), (split.x_train, seen)
        plots.plot_bands(found, ax, data=data, label=one.label, color=one.colour, input_name="Input (standardised)")
        ax.set(xlim=(low, high), ylim=limits)

    canvas.apart("bands", bands)


def _draw_predictions(canvas: Canvas) -> None:
    targets = canvas.shown[0].targets
    ends = [float(targets.min()), float(targets.max())]

    def predictions(one: Shown, ax: Any) -> None:
        found = _some_rows(prediction_bands(one.numbers, one.targets), thinned(len(one.targets), _ROWS))
        plots.plot_predictions(found, ax, label=one.label, color=one.colour)
        ax.set(xlim=padded(ends), ylim=padded(ends, 0.35))

    canvas.apart("predictions", predictions)


def thinned(num: int, most: int, first: int = 0) -> list[int]:
    """Places from `first` to the last of `num`, at most so many."""
    return sorted({round(place) for place in np.linspace(first, num - 1, min(num - first, most))})


def padded(ends: Sequence[float], share: float = 0.05) -> tuple[float, float]:
    """From the lowest to the highest, and a share of their distance on both sides."""
    room = share * max(max(ends) - min(ends), 1e-9)
    return min(ends) - room, max(ends) + room


def _some_rows(bands: Bands, places: list[int]) -> Bands:
    names = [field.name for field in dataclasses.fields(bands) if field.name != "names"]
    some: dict[str, Any] = {name: getattr(bands, name)[..., places] for name in names}
    return dataclasses.replace(bands, **some)
