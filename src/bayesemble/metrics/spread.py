"""Recalibration of real numbers after training: how much wider or narrower the noise should have been."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bayesemble.errors import SettingError
from bayesemble.metrics.posthoc import LARGEST_LOG_FACTOR, minimum
from bayesemble.metrics.scores import nll
from bayesemble.predictive import LocationScalePredictive, Predictive
from bayesemble.predictive.base import check_level
from bayesemble.settings import require


@dataclass(frozen=True)
class Spread:
    """One number that makes all predictions of real numbers wider (above 1) or narrower: each std becomes s std.

    Means stay, and with them the RMSE and what the members disagree about; only their own noise changes.

    Reference: Laves et al. (2020), "Well-calibrated regression uncertainty", where it is called sigma scaling.
    """

    value: float
    """s, above 0; 1 changes nothing."""

    def __post_init__(self) -> None:
        sensible = math.isfinite(self.value) and self.value > 0
        require(sensible, f"a spread is a number above 0, got {self.value}")

    def apply(self, predictive: Predictive) -> LocationScalePredictive:
        """Predictions with this spread, in double precision."""
        if not isinstance(predictive, LocationScalePredictive):
            raise SettingError(
                f"a spread is for real numbers, got {type(predictive).__name__}; classes have fit_temperature"
            )
        predictive.need_members("a spread")
        double = predictive.double()
        return replace(double, stds=self.value * double.stds)


def fit_spread(predictive: Predictive, targets: Any, level: float | None = None) -> Spread:
    """Find the spread of a prediction of real numbers that fits these rows.

    Above 1 the prediction was too sure of itself, below 1 too cautious. Without a level, s has the lowest NLL; where
    members differ there may be several minima, and the best of a grid is refined. With a level, s is the smallest
    whose intervals of that level hold their share of the targets, which says nothing of other levels but is not led
    by a few rows.

        s = argmin  mean -log sum_m w_m p(y | mean_m, s std_m)                     (level=None)
        s = min { s : mean [ |F_s(y) - 1/2| <= level / 2 ] >= level }              F_s = sum_m w_m F_m,s

    Args:
        predictive: Mixtures of normals or of Student t distributions, of rows that were not trained on.
        targets: Their targets.
        level: Of the intervals that shall hold their share; None goes by the NLL.

    Reference: see `Spread`.
    """

    def spread(point: float) -> LocationScalePredictive:
        return Spread(math.exp(point)).apply(predictive)

    if level is None:
        return Spread(math.exp(minimum(lambda point: nll(spread(point), targets))))
    check_level(level)
    return Spread(math.exp(_smallest(lambda point: _hold(spread(point), targets, level))))


def _hold(predictive: LocationScalePredictive, targets: Any, level: float) -> bool:
    """Whether intervals hold their share, without their ends, each of which would be a bisection."""
    inside = (predictive.cdf(targets) - 0.5).abs() <= level / 2
    return int(inside.sum()) >= level * inside.numel()


def _smallest(holds: Callable[[float], bool]) -> float:
    """The smallest number from which on something holds, by bisection; the largest that is sought if it never does."""
    low, high = -float(LARGEST_LOG_FACTOR), float(LARGEST_LOG_FACTOR)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
