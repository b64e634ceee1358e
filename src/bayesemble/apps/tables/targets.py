"""What the target of a table asks for: how outputs are read, what predictions are written, and how they are scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.apps.tables.score import SEPARATOR
from bayesemble.apps.tables.verdict import verdict
from bayesemble.core.settings import require
from bayesemble.data.schema import Encoded, Schema
from bayesemble.estimators.recipe import Recipe
from bayesemble.metrics.summary import Summary
from bayesemble.predictive import (
    ClassPredictive,
    LocationScalePredictive,
    PoissonPredictive,
    Predictive,
    RealPredictive,
)
from bayesemble.task.likelihoods import Categorical, Likelihood
from bayesemble.training.afterwards.calibration import Calibration
from bayesemble.training.outgoing.readings import Rules

_DIGITS_BEYOND_DEVIATION = 6


def likelihood_of(schema: Schema, recipe: Recipe) -> tuple[Likelihood, int]:
    """How outputs are read, and how many there are."""
    if schema.task == "count":
        return recipe.count_likelihood()
    require(
        recipe.counts == Recipe().counts,
        f"counts={recipe.counts!r} is for a target of counts, {schema.target.name!r} is read for {schema.task}; "
        "say --task count, or leave it out",
    )
    if schema.task == "classification":
        return Categorical(), len(schema.target.categories)
    return recipe.real_likelihood(), 2


def baseline_of(schema: Schema, rows: Encoded) -> float | str:
    """The simplest prediction: the mean of the targets, or the most frequent class, by the weights of rows."""
    assert rows.targets is not None
    if schema.task == "classification":
        return schema.target.categories[int(np.bincount(rows.targets, rows.weights).argmax())]
    return float(np.average(schema.decode_targets(rows.targets), weights=rows.weights))


def in_units(schema: Schema, predictive: Predictive) -> Predictive:
    """A prediction in the original units of the target, in double precision: it may be large beside its deviation."""
    if isinstance(predictive, LocationScalePredictive):
        return predictive.double().rescale(schema.target.mean, schema.target.scale)
    if isinstance(predictive, PoissonPredictive):  # of rows unlike any other, the rate may be infinite
        return PoissonPredictive(predictive.weights.double(), predictive.rates.double().clamp(1e-30, 1e15))
    return predictive.double() if isinstance(predictive, RealPredictive) else predictive


def columns_of(schema: Schema, calibration: Calibration | None = None) -> list[str]:
    """Names of the columns that a prediction has; sets and abstaining are there if they were calibrated."""
    if schema.task == "classification":
        return [
            "prediction",
            *(f"p_{label}" for label in schema.target.categories),
            "entropy",
            "aleatoric",
            "epistemic",
            *Rules.of(None, calibration).decisions,
        ]
    return ["mean", "std", "aleatoric_std", "epistemic_std", "low", "high"]


def values_of(schema: Schema, predictive: Predictive, rules: Rules) -> list[list[Any]]:
    """The cells of these columns; rules are in the units of the target."""
    if isinstance(predictive, ClassPredictive):
        probs = predictive.probs
        uncertainties = (predictive.entropy, predictive.aleatoric, predictive.epistemic)
        labels = schema.decode_targets(probs.argmax(-1).numpy())
        return [
            labels.tolist(),
            *map(list, probs.T.numpy()),
            *(list(values.numpy()) for values in uncertainties),
            *_decisions(schema, predictive, rules),
        ]
    assert isinstance(predictive, RealPredictive)
    low, high = interval_of(predictive, rules)
    deviations = (predictive.variance.sqrt(), predictive.aleatoric.sqrt(), predictive.epistemic.sqrt())
    short = [list(deviation.numpy().astype(np.float32)) for deviation in deviations]
    decimals = _DIGITS_BEYOND_DEVIATION - math.floor(math.log10(schema.target.scale))
    mean, low, high = (np.round(part.numpy(), decimals).tolist() for part in (predictive.mean, low, high))
    return [mean, *short, low, high]


def interval_of(predictive: RealPredictive, rules: Rules) -> tuple[Tensor, Tensor]:
    """Both ends of the interval: that of the mixture, or the one that was calibrated."""
    if rules.calibration is None or rules.calibration.interval_corrections is None:
        return predictive.interval(rules.level)
    found = rules.calibration.intervals(predictive)
    return found.low, found.high


def _decisions(schema: Schema, predictive: ClassPredictive, rules: Rules) -> Iterator[list[Any]]:
    """The labels that are possible, and whether a row is not answered."""
    names, calibration = np.array(schema.target.categories, dtype=object), rules.calibration
    if calibration is not None and "set" in rules.decisions:
        yield [SEPARATOR.join(names[row]) for row in calibration.sets(predictive).mask.numpy()]
    if calibration is not None and "abstain" in rules.decisions:
        yield calibration.decide(predictive).abstain.tolist()


def evaluate_rows(
    schema: Schema,
    baseline: float | str,
    predict: Callable[[Encoded], Predictive],
    parts: Iterable[Encoded],
    where: str,
) -> Evaluation:
    """Scores of the rows, those of the baseline, and what they mean in words; `where` says which rows these are."""
    summary, unlike, misses, total = Summary(), 0, 0.0, 0.0
    classes = schema.task == "classification"
    for rows in parts:
        predictive, targets = predict(rows), schema.decode_targets(rows.targets if rows.targets is not None else [])
        weights = np.ones(len(targets)) if rows.weights is None else rows.weights
        total += float(weights.sum())
        misses += float((weights * (targets != baseline if classes else np.square(targets - baseline))).sum())
        summary.update(predictive, rows.targets if classes else targets, rows.weights)
        unlike += int(rows.unlike.sum())
    num = summary.num_rows
    reached = (
        {"accuracy": 1 - misses / total} if classes and num else {"rmse": math.sqrt(misses / total)} if num else {}
    )
    evaluation = Evaluation(
        rows=num,
        unlike=unlike,
        scores=summary.compute() if num else {},
        baseline={"says": baseline, **reached} if num else {},
        chance_ece=_chance_error(summary) if classes and num else None,
    )
    return replace(evaluation, words=verdict(schema.task, evaluation, where))


def _chance_error(summary: Summary) -> float:
    """The calibration error that calibrated predictions of these rows are expected to have.

    sum_b (n_b / n) E|accuracy_b - c_b|, where the difference is about normal with variance c_b (1 - c_b) / n_b.
    """
    total, _, count = summary.bins
    confidence = total / count.clamp_min(1)
    return float(
        (count * confidence * (1 - confidence)).clamp_min(0).sqrt().sum() * math.sqrt(2 / math.pi) / count.sum()
    )
