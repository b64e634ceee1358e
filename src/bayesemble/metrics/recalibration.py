"""Recalibration after training: learn from held-out rows how far to trust predictions, then correct others.

Fit on rows that were not trained on, and score on a third set: a correction looks perfect on the rows it was fitted to.

    correction = fit_temperature(validation, targets)
    corrected = correction.apply(predictive)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.metrics.scores import as_weights, nll
from bayesemble.predictive import ClassPredictive, LocationScalePredictive, Predictive
from bayesemble.predictive.base import check_level

LARGEST_LOG_FACTOR = 10
"""Temperatures and spreads are sought between exp(-10) and exp(10)."""


@dataclass(frozen=True)
class Temperature:
    """One number that makes all probabilities softer (above 1) or sharper (below 1): softmax(log p / T).

    per_member=False corrects the averaged prediction, and what comes out is a single averaged member: the order of the
    classes and so the accuracy stay as they are, but what the members disagreed about is gone.
    per_member=True corrects every member by the same T and averages then: members, weights and their disagreement
    stay, and the class chosen may change where members differ.

    A probability of exactly 0 is read as 1e-38, the least that single precision holds, so that T can mend it.

    Reference: Guo et al. (2017); for the two orders Rahaman & Thiery (2021), Wu & Gales (2021).
    """

    value: float
    """T, above 0; 1 changes nothing."""
    per_member: bool = False
    """Whether members are corrected before they are averaged."""

    def __post_init__(self) -> None:
        sensible = math.isfinite(self.value) and self.value > 0
        require(sensible, f"a temperature is a number above 0, got {self.value}")

    def apply(self, predictive: Predictive) -> ClassPredictive:
        """Predictions under this temperature, in double precision."""
        classes = _need_classes(predictive)
        if self.per_member:
            classes.need_members("a temperature per member")
        else:
            classes = _averaged(classes)
        scaled = _without_zeros(classes.log_probs) / self.value
        return replace(classes, log_probs=scaled.log_softmax(-1))


@dataclass(frozen=True)
class Isotonic:
    """A rising curve per class from the averaged probability to the frequency that was observed, then normalised.

    More flexible than a temperature: it needs some thousand rows, and it can change the most probable class. Its curves
    have steps, so that rows tie, and reach exactly 0 and 1: one surprise makes the NLL infinite, so read the Brier
    score. Between the points the curve is linear, beyond them constant. A row for which all curves say 0 gets equal
    probabilities. What comes out is a single averaged member, without disagreement.

        q_c = curve_c(p_c) / sum_k curve_k(p_k)

    Reference: Zadrozny & Elkan (2002).
    """

    probabilities: tuple[tuple[float, ...], ...]
    """Per class, the points of its curve in rising order."""
    frequencies: tuple[tuple[float, ...], ...]
    """Per class, the height of its curve at these points."""

    def apply(self, predictive: Predictive) -> ClassPredictive:
        """Predictions corrected by the curves, in double precision."""
        classes, num_classes = _averaged(_need_classes(predictive)), len(self.probabilities)
        given = classes.log_probs.shape[-1]
        require(given == num_classes, f"the curves are those of {num_classes} classes, the prediction has {given}")
        probs = classes.probs.cpu().numpy()
        curves = zip(self.probabilities, self.frequencies, strict=True)
        columns = [np.interp(probs[..., label], *curve) for label, curve in enumerate(curves)]
        return replace(classes, log_probs=_normalised(np.stack(columns, axis=-1)).log()[None])


def fit_temperature(predictive: Predictive, targets: Any, per_member: bool = False) -> Temperature:
    """Find the temperature under which the prediction has the lowest NLL.

    Above 1 the prediction was too confident, below 1 too cautious. One number cannot mend doubt that is wrong for some
    classes or inputs only, and it hardly helps on data unlike that of the fit. The NLL of the averaged prediction is
    convex in 1 / T, so the minimum is the only one; per member it need not be, and the best of a grid is refined.
    On these rows the NLL is never worse than at T = 1. Where every row is right, or none better than chance, no T is
    best: then it is as small or as large as still helps, between exp(-10) and exp(10).

        T = argmin  mean -log softmax(log p / T)_y                     p = sum_m w_m p_m    (per_member=False)
        T = argmin  mean -log sum_m w_m softmax(log p_m / T)_y                              (per_member=True)

    Args:
        predictive: Class probabilities of rows that were not trained on.
        targets: Their labels.
        per_member: Whether T acts on every member before they are averaged, or on the average: see `Temperature`.
            Members that are calibrated one by one make an average that is too cautious, so that T is below 1.

    Reference: Guo et al. (2017), section 4.2.
    """
    classes = _need_classes(predictive)
    classes, labels = classes.counted(targets)
    classes = classes if per_member else _averaged(classes)

    def cost(log_temperature: float) -> float:
        return nll(Temperature(math.exp(log_temperature), per_member).apply(classes), labels)

    return Temperature(math.exp(minimum(cost)), per_member)


def fit_isotonic(predictive: Predictive, targets: Any) -> Isotonic:
    """Fit a rising curve per class, "this class or another?", to the averaged probabilities by least squares.

    A class that does not occur among the targets gets a curve that is 0 throughout. `Isotonic` says when it misleads.

        curve_c = argmin over rising f of  sum over rows (f(p_c) - [y = c])^2

    Args:
        predictive: Class probabilities of rows that were not trained on, some thousand of them.
        targets: Their labels.

    Reference: Zadrozny & Elkan (2002).
    """
    classes = _need_classes(predictive)
    classes, counted = classes.counted(targets)
    labels = counted.flatten().cpu().numpy()
    probs = _averaged(classes).probs.flatten(0, -2).cpu().numpy()
    curves = [_curve(probs[:, label], labels == label) for label in range(probs.shape[-1])]
    return Isotonic(tuple(points for points, _ in curves), tuple(heights for _, heights in curves))


def _need_classes(predictive: Predictive) -> ClassPredictive:
    if not isinstance(predictive, ClassPredictive):
        raise SettingError(
            f"recalibration is for class probabilities, got {type(predictive).__name__}; "
            "real numbers have fit_spread, counts nothing of the kind"
        )
    return predictive


def _averaged(predictive: ClassPredictive) -> ClassPredictive:
    """The averaged prediction as a single member, in double precision."""
    averaged = predictive.log_average(predictive.log_probs.double())
    return ClassPredictive(torch.ones_like(predictive.weights[:1]), averaged[None], predictive.ignore_index)


def _without_zeros(log_probs: Tensor) -> Tensor:
    """Put the least single-precision number, or the least probability of the row, in the place of 0."""
    log_probs = log_probs.double()
    least = log_probs.masked_fill(log_probs.isinf(), 0).amin(-1, keepdim=True)
    return torch.maximum(log_probs, least.clamp_max(math.log(torch.finfo(torch.float32).tiny)))


def minimum(cost: Callable[[float], float]) -> float:
    """Where a cost is least: on a grid, then between its neighbours. Of equal costs the one nearest to 0 is taken."""
    from scipy.optimize import minimize_scalar

    def rank(point: float) -> tuple[float, float]:
        return cost(point), abs(point)

    end = LARGEST_LOG_FACTOR
    best = min(range(-end, end + 1), key=rank)
    bounds = max(best - 1, -end), min(best + 1, end)
    refined = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-12})
    return min(float(best), float(refined.x), key=rank)


def _curve(probabilities: NumpyArray, happened: NumpyArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points and heights of the rising curve through what happened."""
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0, y_max=1).fit(probabilities, happened.astype(np.float64))
    return tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist())


def _normalised(heights: NumpyArray) -> Tensor:
    """Divide each row by its sum; where that is 0 all classes are alike."""
    values = torch.from_numpy(heights)
    values = torch.where(values.sum(-1, keepdim=True) > 0, values, torch.ones_like(values))
    return values / values.sum(-1, keepdim=True)


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
                f"a spread is for real numbers that are normal or Student t, got {type(predictive).__name__}; "
                "classes have fit_temperature"
            )
        predictive.need_members("a spread")
        return predictive.double().stretch(self.value)


def fit_spread(predictive: Predictive, targets: Any, level: float | None = None, weights: Any = None) -> Spread:
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
        weights: What each row counts for; None counts all alike.

    Reference: see `Spread`.
    """

    def rescaled(point: float) -> LocationScalePredictive:
        return Spread(math.exp(point)).apply(predictive)

    if level is None:
        return Spread(math.exp(minimum(lambda point: nll(rescaled(point), targets, weights))))
    check_level(level)
    own = as_weights(predictive, weights)
    return Spread(math.exp(_smallest(lambda point: _hold(rescaled(point), targets, level, own))))


def _hold(predictive: LocationScalePredictive, targets: Any, level: float, weights: Tensor | None = None) -> bool:
    """Whether intervals hold their share of targets; their ends are not needed, each of which would be a bisection."""
    inside = (predictive.cdf(targets) - 0.5).abs() <= level / 2
    if weights is None:
        return int(inside.sum()) >= level * inside.numel()
    outputs = inside.reshape(len(inside), -1)
    return float(weights @ outputs.double().sum(1)) >= level * float(weights.sum()) * outputs.shape[1]


def _smallest(holds: Callable[[float], bool]) -> float:
    """The smallest number from which on something holds, by bisection; the largest that is sought if it never does."""
    low, high = -float(LARGEST_LOG_FACTOR), float(LARGEST_LOG_FACTOR)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
