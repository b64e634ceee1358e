"""Proper scores and plain errors of a predictive distribution: pure functions of `(Predictive, targets)`.

All are means over rows, and take `weights`, a number from 0 for each row: the score is that of rows which are repeated
so many times, sum_i w_i s_i / sum_i w_i. None counts all rows alike.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import row_weights
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require
from bayesemble.predictive import (
    ClassPredictive,
    NormalPredictive,
    Predictive,
    RealPredictive,
    SurvivalPredictive,
    match_targets,
)
from bayesemble.predictive.base import check_level


def accuracy(predictive: ClassPredictive, targets: Any, weights: Any = None) -> float:
    """Share of rows whose most probable class is the right one. Higher is better; says nothing of confidence."""
    predictive, labels, own = counted(predictive, targets, weights)
    return row_mean((predictive.probs.argmax(-1) == labels).double(), own)


def top_k_accuracy(predictive: ClassPredictive, targets: Any, k: int = 5, weights: Any = None) -> float:
    """Share of rows whose right class is among the `k` most probable ones. Higher is better; `k=1` is the accuracy.

    It suits many classes that resemble one another. It says nothing of confidence, and flatters where k is not small
    beside the number of classes: of k out of C classes chance alone finds k / C. Of equally probable classes the one
    with the lower label counts as the more probable, as it does for `accuracy`.

        mean over rows of [ #{c before y} < k ],    c before y: p_c > p_y, or p_c = p_y and c < y

    Reference: Russakovsky et al. (2015), ImageNet large scale visual recognition challenge.
    """
    predictive, labels, own_weights = counted(predictive, targets, weights)
    probs, labels = predictive.probs, labels.unsqueeze(-1)
    require(1 <= k <= probs.shape[-1], f"k lies between 1 and the number of classes, {probs.shape[-1]}; got {k}")
    own = probs.gather(-1, labels)
    tied_before = (probs == own) & (torch.arange(probs.shape[-1], device=probs.device) < labels)
    return row_mean((((probs > own) | tied_before).sum(-1) < k).double(), own_weights)


def nll(predictive: Predictive, targets: Any, weights: Any = None) -> float:
    """Mean of -log p(y|x) under the averaged prediction, in nats. Lower is better.

    A proper score: only the true distribution is best. One confidently wrong row can dominate it. The labels of a row,
    such as those of its tokens, are added up; rows in which none counts (`Categorical(ignore_index=...)`) are left out.
    """
    losses, counts = -predictive.log_prob(targets).double(), predictive.rows_that_count(targets)
    if not counts.any():
        raise DataError("there is nothing to score: no target counts")
    own = as_weights(predictive, weights)
    if not counts.all():
        losses, own = losses[counts], None if own is None else own[counts]
    return row_mean(losses, own)


def brier(predictive: ClassPredictive, targets: Any, weights: Any = None) -> float:
    """Mean squared distance of the probabilities from the right answer, sum_c (p_c - [c = y])^2, in [0, 2].

    Lower is better. A proper score that forgives confident errors more than the NLL does.
    """
    predictive, labels, own = counted(predictive, targets, weights)
    right = torch.nn.functional.one_hot(labels, predictive.probs.shape[-1])
    return row_mean((predictive.probs.double() - right).square().sum(-1), own)


def rmse(predictive: RealPredictive, targets: Any, weights: Any = None) -> float:
    """Root mean squared error of the mean, in units of the target. Lower is better; a few large errors dominate."""
    return math.sqrt(row_mean(predictive.losses(targets), as_weights(predictive, weights)))


def mae(predictive: RealPredictive, targets: Any, weights: Any = None) -> float:
    """Mean absolute error of the mean, in units of the target: mean |E[y|x] - y|. Lower is better.

    Large errors dominate it less than the RMSE. It says nothing of doubt, and where the target is skewed the median
    would do better than the mean, which is what is scored here.

    Reference: Willmott & Matsuura (2005).
    """
    away = (predictive.mean.double() - _target_values(predictive, targets)).abs()
    return row_mean(away, as_weights(predictive, weights))


def log_predictive_density(predictive: Predictive, targets: Any, kind: str = "mixture", weights: Any = None) -> float:
    """Mean log density of the targets (LPD), in nats. Higher is better: "mixture" is minus the `nll`.

    Papers mean two different things by it, so say which when comparing:

        "mixture"    mean log sum_m w_m p_m(y|x)     what the ensemble really predicts
        "moments"    mean log N(y; mean, variance)   the normal with the mean and the variance of the mixture

    They agree for one member. For members that stand apart "moments" fills the gaps between them, and is the better
    of the two only where the targets lie in those gaps. Both depend on the units of the target: dividing it by s adds
    log s. Several outputs are added up; divide by their number for the density per target. Of a reduced prediction
    only the moments are left, so that both kinds are "moments".

    Args:
        predictive: What was predicted; "moments" is for mixtures of normals.
        targets: The right answers, `(row,)` or `(row, output)`.
        kind: "mixture" or "moments".
        weights: What each row counts for.

    Reference: Gelman et al. (2014) for the density; Lakshminarayanan et al. (2017) for the moments.
    """
    require(kind in ("mixture", "moments"), f'kind is "mixture" or "moments", not {kind!r}')
    if kind == "mixture":
        return -nll(predictive, targets, weights)
    if not isinstance(predictive, NormalPredictive):
        raise SettingError(f'"moments" needs a mixture of normals, got {type(predictive).__name__}; use "mixture"')
    return -nll(predictive.reduce(), targets, weights)


def coverage(predictive: RealPredictive, targets: Any, level: float = 0.9, weights: Any = None) -> float:
    """Share of targets inside the central interval of the given level. Best near `level`: above is over-cautious.

    A censored time counts with the probability that the event happens inside, given that it had not happened before.
    """
    if isinstance(predictive, SurvivalPredictive):
        inside = _coverage_of_times(predictive, targets, level)
    else:
        low, high = predictive.interval(level)
        values = match_targets(targets, predictive.member_mean.shape)
        inside = ((values >= low) & (values <= high)).double()
    return row_mean(inside, as_weights(predictive, weights))


def _coverage_of_times(predictive: SurvivalPredictive, targets: Any, level: float) -> Tensor:
    """Of each row the share of the values that F may have at the event that lies inside the interval of the level."""
    check_level(level)
    begin, end = (part.double() for part in predictive.cdf_around(targets))
    low, high = (1 - level) / 2, (1 + level) / 2
    share = (end.clamp_max(high) - begin.clamp_min(low)).clamp_min(0) / (end - begin).clamp_min(1e-300)
    return torch.where(end > begin, share, ((begin >= low) & (begin <= high)).double())


def pinball(predictive: RealPredictive, targets: Any, level: float, weights: Any = None) -> float:
    """Cost of the quantile q of the given level, in units of the target. Lower is better.

    A proper score of that one quantile: at level 0.9 a target above q costs nine times as much as one below, and
    at 0.5 it is half the absolute error of the median. It is blind to the rest of the distribution; the mean over all
    levels is half the CRPS. Costs of different levels or units cannot be compared.

        mean over rows of  level * (y - q)  where y >= q,  (1 - level) * (q - y)  elsewhere

    Reference: Koenker & Bassett (1978).
    """
    above = _target_values(predictive, targets) - predictive.quantile(level).double()
    return row_mean(torch.maximum(level * above, (level - 1) * above), as_weights(predictive, weights))


def interval_score(predictive: RealPredictive, targets: Any, level: float = 0.9, weights: Any = None) -> float:
    """Width of the central interval and a fine for the targets it misses, in units of the target. Lower is better.

    A proper score that weighs `sharpness` against `coverage`, which say little alone. It looks at two quantiles only,
    and at high levels a few missed targets dominate it: the fine is 2 / (1 - level) per unit of distance.

        mean of  (high - low) + 2 / a * (low - y)[y < low] + 2 / a * (y - high)[y > high],    a = 1 - level

    Reference: Gneiting & Raftery (2007), section 6.2.
    """
    low, high = (end.double() for end in predictive.interval(level))
    values = _target_values(predictive, targets)
    missed = (low - values).clamp_min(0) + (values - high).clamp_min(0)
    return row_mean(high - low + 2 / (1 - level) * missed, as_weights(predictive, weights))


def sharpness(predictive: RealPredictive, level: float = 0.9, weights: Any = None) -> float:
    """Mean width of the central interval of the given level, in units of the target: mean (high - low).

    Narrower is better only among predictions that are calibrated: it never looks at the targets, and an overconfident
    model is the sharpest of all. Read it beside `coverage`.

    Reference: Gneiting, Balabdaoui & Raftery (2007).
    """
    low, high = (end.double() for end in predictive.interval(level))
    return row_mean(high - low, as_weights(predictive, weights))


def _target_values(predictive: RealPredictive, targets: Any) -> Tensor:
    return match_targets(targets, predictive.member_mean.shape).double()


# --- weights of rows ---


def as_weights(predictive: Predictive, weights: Any) -> Tensor | None:
    """What each row counts for, `(row,)` in double precision; None if all count alike."""
    if weights is None:
        return None
    own = row_weights(weights, predictive.num_rows, torch.float64)
    if not own.any():
        raise DataError("there is nothing to score: all weights are 0")
    return own


def counted(predictive: ClassPredictive, targets: Any, weights: Any) -> tuple[ClassPredictive, Tensor, Tensor | None]:
    """The predictions whose targets count, these targets as labels, and what each label counts for."""
    found, labels = predictive.counted(targets)
    own = as_weights(predictive, weights)
    return found, labels, None if own is None else predictive.label_weights(targets, own)


def row_mean(values: Tensor, weights: Tensor | None) -> float:
    """The mean of values `(row, ...)` over rows, each of which counts by its weight, and over what it holds.

    Rows of weight 0 are as if they were not there, also where their values are infinite.
    """
    if weights is None:
        return float(values.mean())
    own = weights.reshape(*weights.shape, *[1] * (values.dim() - weights.dim())).expand_as(values)
    counting = own > 0
    return float((own * values)[counting].sum() / own[counting].sum())
