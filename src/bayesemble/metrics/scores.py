"""Proper scores and plain errors of a predictive distribution: pure functions of `(Predictive, targets)`."""

from typing import Any

import torch
from torch import Tensor

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


def accuracy(predictive: ClassPredictive, targets: Any) -> float:
    """Share of rows whose most probable class is the right one. Higher is better; says nothing of confidence."""
    predictive, labels = predictive.counted(targets)
    return float((predictive.probs.argmax(-1) == labels).double().mean())


def top_k_accuracy(predictive: ClassPredictive, targets: Any, k: int = 5) -> float:
    """Share of rows whose right class is among the `k` most probable ones. Higher is better; `k=1` is the accuracy.

    It suits many classes that resemble one another. It says nothing of confidence, and flatters where k is not small
    beside the number of classes: of k out of C classes chance alone finds k / C. Of equally probable classes the one
    with the lower label counts as the more probable, as it does for `accuracy`.

        mean over rows of [ #{c before y} < k ],    c before y: p_c > p_y, or p_c = p_y and c < y

    Reference: Russakovsky et al. (2015), ImageNet large scale visual recognition challenge.
    """
    predictive, counted = predictive.counted(targets)
    probs, labels = predictive.probs, counted.unsqueeze(-1)
    require(1 <= k <= probs.shape[-1], f"k lies between 1 and the number of classes, {probs.shape[-1]}; got {k}")
    own = probs.gather(-1, labels)
    tied_before = (probs == own) & (torch.arange(probs.shape[-1], device=probs.device) < labels)
    return float((((probs > own) | tied_before).sum(-1) < k).double().mean())


def nll(predictive: Predictive, targets: Any) -> float:
    """Mean of -log p(y|x) under the averaged prediction, in nats. Lower is better.

    A proper score: only the true distribution is best. One confidently wrong row can dominate it. The labels of a row,
    such as those of its tokens, are added up; rows in which none counts (`Categorical(ignore_index=...)`) are left out.
    """
    losses, counts = -predictive.log_prob(targets).double(), predictive.rows_that_count(targets)
    if not counts.any():
        raise DataError("there is nothing to score: no target counts")
    return float(losses.mean() if counts.all() else losses[counts].mean())


def brier(predictive: ClassPredictive, targets: Any) -> float:
    """Mean squared distance of the probabilities from the right answer, sum_c (p_c - [c = y])^2, in [0, 2].

    Lower is better. A proper score that forgives confident errors more than the NLL does.
    """
    predictive, labels = predictive.counted(targets)
    right = torch.nn.functional.one_hot(labels, predictive.probs.shape[-1])
    return float((predictive.probs.double() - right).square().sum(-1).mean())


def rmse(predictive: RealPredictive, targets: Any) -> float:
    """Root mean squared error of the mean, in units of the target. Lower is better; a few large errors dominate."""
    return float(predictive.losses(targets).mean().sqrt())


def mae(predictive: RealPredictive, targets: Any) -> float:
    """Mean absolute error of the mean, in units of the target: mean |E[y|x] - y|. Lower is better.

    Large errors dominate it less than the RMSE. It says nothing of doubt, and where the target is skewed the median
    would do better than the mean, which is what is scored here.

    Reference: Willmott & Matsuura (2005).
    """
    return float((predictive.mean.double() - _target_values(predictive, targets)).abs().mean())


def log_predictive_density(predictive: Predictive, targets: Any, kind: str = "mixture") -> float:
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

    Reference: Gelman et al. (2014) for the density; Lakshminarayanan et al. (2017) for the moments.
    """
    require(kind in ("mixture", "moments"), f'kind is "mixture" or "moments", not {kind!r}')
    if kind == "mixture":
        return -nll(predictive, targets)
    if not isinstance(predictive, NormalPredictive):
        raise SettingError(f'"moments" needs a mixture of normals, got {type(predictive).__name__}; use "mixture"')
    return -nll(predictive.reduce(), targets)


def coverage(predictive: RealPredictive, targets: Any, level: float = 0.9) -> float:
    """Share of targets inside the central interval of the given level. Best near `level`: above is over-cautious.

    A censored time counts with the probability that the event happens inside, given that it had not happened before.
    """
    if isinstance(predictive, SurvivalPredictive):
        return _coverage_of_times(predictive, targets, level)
    low, high = predictive.interval(level)
    values = match_targets(targets, predictive.member_mean.shape)
    return float(((values >= low) & (values <= high)).double().mean())


def _coverage_of_times(predictive: SurvivalPredictive, targets: Any, level: float) -> float:
    """The mean share of the values that F may have at the event that lies inside the interval of the level."""
    check_level(level)
    begin, end = (part.double() for part in predictive.cdf_around(targets))
    low, high = (1 - level) / 2, (1 + level) / 2
    share = (end.clamp_max(high) - begin.clamp_min(low)).clamp_min(0) / (end - begin).clamp_min(1e-300)
    return float(torch.where(end > begin, share, ((begin >= low) & (begin <= high)).double()).mean())


def pinball(predictive: RealPredictive, targets: Any, level: float) -> float:
    """Cost of the quantile q of the given level, in units of the target. Lower is better.

    A proper score of that one quantile: at level 0.9 a target above q costs nine times as much as one below, and
    at 0.5 it is half the absolute error of the median. It is blind to the rest of the distribution; the mean over all
    levels is half the CRPS. Costs of different levels or units cannot be compared.

        mean over rows of  level * (y - q)  where y >= q,  (1 - level) * (q - y)  elsewhere

    Reference: Koenker & Bassett (1978).
    """
    above = _target_values(predictive, targets) - predictive.quantile(level).double()
    return float(torch.maximum(level * above, (level - 1) * above).mean())


def interval_score(predictive: RealPredictive, targets: Any, level: float = 0.9) -> float:
    """Width of the central interval and a fine for the targets it misses, in units of the target. Lower is better.

    A proper score that weighs `sharpness` against `coverage`, which say little alone. It looks at two quantiles only,
    and at high levels a few missed targets dominate it: the fine is 2 / (1 - level) per unit of distance.

        mean of  (high - low) + 2 / a * (low - y)[y < low] + 2 / a * (y - high)[y > high],    a = 1 - level

    Reference: Gneiting & Raftery (2007), section 6.2.
    """
    low, high = (end.double() for end in predictive.interval(level))
    values = _target_values(predictive, targets)
    missed = (low - values).clamp_min(0) + (values - high).clamp_min(0)
    return float((high - low + 2 / (1 - level) * missed).mean())


def sharpness(predictive: RealPredictive, level: float = 0.9) -> float:
    """Mean width of the central interval of the given level, in units of the target: mean (high - low).

    Narrower is better only among predictions that are calibrated: it never looks at the targets, and an overconfident
    model is the sharpest of all. Read it beside `coverage`.

    Reference: Gneiting, Balabdaoui & Raftery (2007).
    """
    low, high = (end.double() for end in predictive.interval(level))
    return float((high - low).mean())


def _target_values(predictive: RealPredictive, targets: Any) -> Tensor:
    return match_targets(targets, predictive.member_mean.shape).double()
