"""Calibration as a part of the model: what held-out rows said of its predictions, and what follows for all others.

calibrated = ensemble.calibrate((x_held_out, y_held_out), level=0.9, risk=0.05)
predictive = calibrated.predict(x)                 # under the temperature, or with the spread, that was found
calibrated.calibration.sets(predictive)            # classes: sets that hold the right one, nine times in ten
calibrated.calibration.intervals(predictive)       # numbers: intervals that do
calibrated.calibration.decide(predictive).abstain  # rows that are not answered, so that few answers are wrong
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require, setting, validate
from bayesemble.metrics.conformal import (
    ConformalIntervals,
    ConformalSets,
    Intervals,
    PredictionSets,
    fit_intervals,
    fit_sets,
)
from bayesemble.metrics.recalibration import LARGEST_LOG_FACTOR, Temperature, fit_spread, fit_temperature
from bayesemble.predictive import (
    Abstention,
    ClassPredictive,
    Decision,
    LocationScalePredictive,
    Predictive,
    RealPredictive,
    SurvivalPredictive,
    fit_threshold,
)
from bayesemble.predictive.base import check_level
from bayesemble.training.incoming.loaded_rows import joined

_Kind = TypeVar("_Kind", bound=Predictive)

MEASURE = "total"
"""The uncertainty that decides which rows are answered."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What `Ensemble.calibrate` found. Predictions of the ensemble follow it, and it is saved with the ensemble.

    Members stay members: each is corrected by the same number and then averaged, so that aleatoric and epistemic
    uncertainty still add up to the total.

        classes    p_m <- softmax(log p_m / temperature)        numbers    std_m <- spread std_m
    """

    temperature: float | None = setting(None, "divides the logarithms of all class probabilities", above=0)
    spread: float | None = setting(None, "factor on the standard deviations of all members", above=0)
    level: float | None = setting(None, "how often a set or an interval holds the target", within="(0, 1)")
    set_threshold: float | None = setting(None, "classes of which 1 - probability is at most this are in the set")
    interval_corrections: tuple[float, ...] | None = setting(
        None, "what is added at both ends of the interval of each output, in units of the target"
    )
    risk: float | None = setting(None, "the largest error rate of answered rows", within="(0, 1)")
    confidence: float | None = setting(None, "with this probability the risk is kept", within="(0, 1)")
    answer_below: float | None = setting(
        None, "with a risk, rows with total uncertainty below this are answered; None answers all"
    )
    expected_risk: float | None = setting(None, "error rate of the answered rows among those it was found by", least=0)
    risk_bound: float | None = setting(None, "what that of others lies below, with the confidence", least=0)
    coverage: float | None = setting(None, "share of rows that are answered, among the same rows", within="[0, 1]")
    num_rows: int = setting(0, "rows that all this was found by", least=0)

    def __post_init__(self) -> None:
        if isinstance(self.interval_corrections, Iterable):
            object.__setattr__(self, "interval_corrections", tuple(self.interval_corrections))
        validate(self)

    def apply(self, predictive: Predictive) -> Predictive:
        """The prediction under the temperature or with the spread, in the precision it came in."""
        if self.temperature is not None:
            classes = need(predictive, ClassPredictive)
            found = Temperature(self.temperature, per_member=True).apply(classes)
            return replace(found, log_probs=found.log_probs.to(classes.log_probs.dtype))
        if self.spread is not None:
            return need(predictive, LocationScalePredictive).stretch(self.spread)  # type: ignore[type-abstract]
        return predictive

    def sets(self, predictive: Predictive) -> PredictionSets:
        """The classes that are possible for each row of a calibrated prediction; a set may be empty.

        The classes with 1 - p_c <= set_threshold, kind "lac" of `metrics.conformal`: nothing random is in them, so
        that a row always has the same set.
        """
        if self.level is None or self.set_threshold is None:
            raise SettingError("no sets of classes were fitted; say ensemble.calibrate(data, level=0.9)")
        rule = ConformalSets(self.set_threshold, self.level, "lac")
        return rule.apply(need(predictive, ClassPredictive), torch.Generator())

    def intervals(self, predictive: Predictive) -> Intervals:
        """From where to where the target of each row of a calibrated prediction may lie."""
        if self.level is None or self.interval_corrections is None:
            raise SettingError("no intervals were fitted; say ensemble.calibrate(data, level=0.9)")
        real = need(predictive, RealPredictive)  # type: ignore[type-abstract]
        corrections = torch.tensor(self.interval_corrections, dtype=torch.float64)
        return ConformalIntervals(corrections.reshape(real.mean.shape[1:]), self.level).apply(real)

    def decide(self, predictive: Predictive) -> Decision:
        """Answer the rows of a calibrated prediction, or abstain where too many answers would be wrong."""
        return self.abstention.decide(predictive)

    @property
    def abstention(self) -> Abstention:
        """The rule by which rows are answered."""
        if self.risk is None:
            raise SettingError("no rule for abstaining was fitted; say ensemble.calibrate(data, risk=0.05)")
        threshold = math.inf if self.answer_below is None else self.answer_below
        found = (self.expected_risk, self.risk_bound, self.coverage, self.risk, self.confidence)
        return Abstention(threshold, MEASURE, *(0.0 if value is None else value for value in found))

    def __str__(self) -> str:
        facts = [] if self.temperature is None else [f"temperature {self.temperature:.4g}"]
        facts += [] if self.spread is None else [f"spread {self.spread:.4g}"]
        what = "sets" if self.set_threshold is not None else "intervals"
        facts += [] if self.level is None else [f"{what} at level {self.level:g}"]
        facts += [] if self.risk is None else [f"risk at most {self.risk:g}"]
        return f"{', '.join(facts)}, from {self.num_rows:,} rows"


def need(predictive: Predictive, kind: type[_Kind]) -> _Kind:
    """The prediction, if it is of the kind that a calibration is for."""
    if not isinstance(predictive, kind):
        raise SettingError(
            f"the calibration is for predictions of the kind {kind.__name__}, and not for {type(predictive).__name__}; "
            "calibrate this ensemble by its own held-out rows"
        )
    return predictive


def fit_calibration(
    predictions: Iterable[tuple[Predictive, Tensor]],
    *,
    level: float | None = None,
    risk: float | None = None,
    confidence: float = 0.95,
    share: float = 0.5,
    seed: int = 0,
) -> Calibration:
    """Find a calibration by predictions of rows that were not trained on, batch by batch, and their targets.

    It is the temperature (classes) or the spread (normal and Student t predictions) with the lowest NLL; with `level`
    and `risk` there are thresholds too. What these promise asks that nothing in the predictions of the rows that they
    come from was fitted to these very rows, a temperature included: hence two parts of the rows.

    Args:
        predictions: Uncalibrated predictions and targets.
        level: How often sets of classes, or intervals of numbers, shall hold the target: see `metrics.conformal`.
        risk: The largest acceptable error rate among answered rows: see `predictive.abstain.fit_threshold`.
        confidence: The probability with which the risk is kept, over held-out rows.
        share: With level or risk, the share of the rows that thresholds are found by, and nothing else.
        seed: Which rows these are.
    """
    batches = list(predictions)
    predictive = joined([one for one, _ in batches])
    targets = torch.cat([rows for _, rows in batches])
    if level is not None:
        check_level(level)
    require(0 < share < 1, f"share is that of the rows which thresholds are found by, between 0 and 1, got {share}")
    _refuse_unknown(predictive, level, risk)
    if isinstance(predictive, ClassPredictive) and predictive.log_probs.dim() == 3:
        predictive, targets = predictive.counted(targets)
    corrected = isinstance(predictive, ClassPredictive | LocationScalePredictive)
    by_threshold = level is not None or risk is not None
    first, second = parts(len(targets), share, seed) if corrected and by_threshold else 2 * [torch.arange(len(targets))]
    if not len(first) or not len(second):
        raise DataError(f"{len(targets)} rows cannot be divided into two parts; calibrate with more")
    found = Calibration(num_rows=len(targets))
    if corrected:
        found = replace(found, **_correction(predictive.take_rows(first), targets[first]))
    rest, labels = found.apply(predictive.take_rows(second)), targets[second]
    if level is not None:
        found = replace(found, level=level, **_thresholds(rest, labels, level))
    return found if risk is None else replace(found, **_abstention(rest, labels, risk, confidence))


def _refuse_unknown(predictive: Predictive, level: float | None, risk: float | None) -> None:
    name = type(predictive).__name__
    if isinstance(predictive, SurvivalPredictive):
        raise SettingError(
            f"times that may be censored cannot be calibrated yet, got {name}; classes and real numbers can"
        )
    if isinstance(predictive, ClassPredictive):
        several = predictive.log_probs.dim() > 3
        require(level is None or not several, "level is for one class per row, these rows have several outputs")
        require(
            risk is None or not several or predictive.ignore_index is None,
            "risk is for rows whose targets all count, and here some may not: leave risk out",
        )
        return
    require(isinstance(predictive, RealPredictive), f"{name} cannot be calibrated; classes and numbers can")
    require(risk is None, "risk is an error rate, which classes have; for numbers say level=0.9 for intervals")
    if not isinstance(predictive, LocationScalePredictive) and level is None:
        raise SettingError(
            f"{name} has neither a temperature nor a spread to be mended; say level=0.9 for intervals that hold the "
            "target as often as they say"
        )


def parts(num: int, share: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows for the temperature or the spread, and rows for the thresholds, drawn at random."""
    order = torch.randperm(num, generator=seeds.generator(seed, "calibrate"))
    last = round(share * num)
    return order[: num - last].sort().values, order[num - last :].sort().values


def _correction(predictive: Predictive, targets: Tensor) -> dict[str, Any]:
    if isinstance(predictive, ClassPredictive):
        _refuse_perfect(predictive, targets)
        name, value = "temperature", fit_temperature(predictive, targets, per_member=True).value
    else:
        name, value = "spread", fit_spread(predictive, targets).value
    if abs(math.log(value)) > LARGEST_LOG_FACTOR - 0.01:
        raise DataError(
            f"no {name} fits these {predictive.num_rows} rows best: the more extreme, the better ({value:.3g}); "
            "more rows are needed, or a better model"
        )
    return {name: value}


def _refuse_perfect(predictive: ClassPredictive, targets: Tensor) -> None:
    """Refuse rows on which no member errs: the sharper, the better they look, and the worse is what follows."""
    counted, labels = predictive.counted(targets)
    if bool((counted.weighed().log_probs.argmax(-1) == labels).all()):
        raise DataError(
            f"every member is right on all of these {len(labels)} rows, so that no temperature fits them best; are "
            "they the rows of training? Calibrate on more rows that were held out"
        )


def _thresholds(predictive: Predictive, targets: Tensor, level: float) -> dict[str, Any]:
    num = predictive.num_rows
    if num < level / (1 - level) - 1e-9:
        raise DataError(
            f"level={level:g} needs at least {math.ceil(level / (1 - level) - 1e-9)} rows for its threshold, and here "
            f"are {num}; calibrate with more rows or a lower level"
        )
    if isinstance(predictive, ClassPredictive):
        return {"set_threshold": fit_sets(predictive, targets, torch.Generator(), level, "lac").threshold}
    real = need(predictive, RealPredictive)  # type: ignore[type-abstract]
    corrections = fit_intervals(real, targets, level).correction
    return {"interval_corrections": tuple(corrections.flatten().tolist())}


def _abstention(predictive: Predictive, targets: Tensor, risk: float, confidence: float) -> dict[str, Any]:
    found = fit_threshold(predictive, targets, risk, MEASURE, confidence)
    if found.abstains_always:
        raise DataError(
            f"no threshold on the uncertainty of these {predictive.num_rows} rows keeps an error rate of {risk:g} with "
            f"confidence {confidence:g}, so that no row would be answered; more rows, a larger risk or a better model "
            "are needed"
        )
    return {
        "risk": risk,
        "confidence": confidence,
        "answer_below": None if found.threshold == math.inf else found.threshold,
        "expected_risk": found.expected_risk,
        "risk_bound": found.risk_bound,
        "coverage": found.coverage,
    }
