"""Proper scores and plain errors of a predictive distribution: pure functions of `(Predictive, targets)`."""

import math
from typing import Any

import torch
from torch import Tensor

from bayesemble.errors import DataError, SettingError
from bayesemble.predictive import (
    ClassPredictive,
    NormalPredictive,
    PoissonPredictive,
    Predictive,
    RealPredictive,
    match_targets,
)
from bayesemble.predictive.base import check_level
from bayesemble.settings import require

CELLS_AT_ONCE = 2**20
"""How many numbers a step of the CRPS holds at most, whatever the number of members and rows."""

MOST_COUNTS = 2**24
"""Over how many counts the CRPS of one row is summed at most."""


def accuracy(predictive: ClassPredictive, targets: Any) -> float:
    """Share of rows whose most probable class is the right one. Higher is better; says nothing of confidence."""
    return float((predictive.probs.argmax(-1) == predictive.labels(targets)).double().mean())


def top_k_accuracy(predictive: ClassPredictive, targets: Any, k: int = 5) -> float:
    """Share of rows whose right class is among the `k` most probable ones. Higher is better; `k=1` is the accuracy.

    It suits many classes that resemble one another. It says nothing of confidence, and flatters where k is not small
    beside the number of classes: of k out of C classes chance alone finds k / C. Of equally probable classes the one
    with the lower label counts as the more probable, as it does for `accuracy`.

        mean over rows of [ #{c before y} < k ],    c before y: p_c > p_y, or p_c = p_y and c < y

    Reference: Russakovsky et al. (2015), ImageNet large scale visual recognition challenge.
    """
    probs, labels = predictive.probs, predictive.labels(targets).unsqueeze(-1)
    require(1 <= k <= probs.shape[-1], f"k lies between 1 and the number of classes, {probs.shape[-1]}; got {k}")
    own = probs.gather(-1, labels)
    tied_before = (probs == own) & (torch.arange(probs.shape[-1], device=probs.device) < labels)
    return float((((probs > own) | tied_before).sum(-1) < k).double().mean())


def nll(predictive: Predictive, targets: Any) -> float:
    """Mean of -log p(y|x) under the averaged prediction, in nats. Lower is better.

    A proper score: only the true distribution is best. One confidently wrong row can dominate it.
    """
    return float(-predictive.log_prob(targets).double().mean())


def brier(predictive: ClassPredictive, targets: Any) -> float:
    """Mean squared distance of the probabilities from the right answer, sum_c (p_c - [c = y])^2, in [0, 2].

    Lower is better. A proper score that forgives confident errors more than the NLL does.
    """
    right = torch.nn.functional.one_hot(predictive.labels(targets), predictive.probs.shape[-1])
    return float((predictive.probs.double() - right).square().sum(-1).mean())


def rmse(predictive: RealPredictive, targets: Any) -> float:
    """Root mean squared error of the mean, in units of the target. Lower is better; a few large errors dominate."""
    return float(_errors(predictive, targets).square().mean().sqrt())


def mae(predictive: RealPredictive, targets: Any) -> float:
    """Mean absolute error of the mean, in units of the target: mean |E[y|x] - y|. Lower is better.

    Large errors dominate it less than the RMSE. It says nothing of doubt, and where the target is skewed the median
    would do better than the mean, which is what is scored here.

    Reference: Willmott & Matsuura (2005).
    """
    return float(_errors(predictive, targets).abs().mean())


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


def crps(predictive: RealPredictive, targets: Any) -> float:
    """Distance between the predicted distribution and the answer (CRPS), in units of the target. Lower is better.

    A proper score that generalises the absolute error: of a prediction without doubt it is |mean - y|. It forgives
    a confident error where the NLL does not, as it grows only linearly with the distance. Like the RMSE it depends on
    the units, so rows or outputs of a larger scale dominate the mean, which is taken over both.

        integral of (F(x) - [x >= y])^2 dx = E|X - y| - E|X - X'| / 2        X, X' independent draws

    For a mixture of normals both expectations are exact, with A(m, v) = E|N(m, v)|:

        sum_i w_i A(y - m_i, s_i^2) - sum_ij w_i w_j A(m_i - m_j, s_i^2 + s_j^2) / 2
        A(m, v) = 2 sqrt(v) phi(m / sqrt(v)) + m (2 Phi(m / sqrt(v)) - 1)

    which takes members^2 * rows steps. For a mixture of Poisson distributions the integral is a sum over counts,
    over all where F is neither 0 nor 1 in double precision; of the others the closed form is added.

    Reference: Gneiting & Raftery (2007); Grimit et al. (2006) for the mixture of normals.
    """
    if isinstance(predictive, NormalPredictive):
        values = match_targets(targets, predictive.means.shape).double().flatten()
        means, stds = predictive.means.double().flatten(1), predictive.stds.double().flatten(1)
        return _normal_crps(predictive.weights.double(), means, stds, values) / len(values)
    if isinstance(predictive, PoissonPredictive):
        counts = match_counts(predictive, targets).flatten()
        return _poisson_crps(predictive.weights.double(), predictive.rates.double().flatten(1), counts) / len(counts)
    raise SettingError(
        f"the CRPS is for mixtures of normals or of Poisson distributions, got {type(predictive).__name__}; "
        "brier is its counterpart for classes"
    )


def coverage(predictive: RealPredictive, targets: Any, level: float = 0.9) -> float:
    """Share of targets inside the central interval of the given level. Best near `level`: above is over-cautious."""
    low, high = predictive.interval(level)
    values = match_targets(targets, predictive.member_mean.shape)
    return float(((values >= low) & (values <= high)).double().mean())


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
    low, high = _interval(predictive, level)
    values = _target_values(predictive, targets)
    missed = (low - values).clamp_min(0) + (values - high).clamp_min(0)
    return float((high - low + 2 / (1 - level) * missed).mean())


def sharpness(predictive: RealPredictive, level: float = 0.9) -> float:
    """Mean width of the central interval of the given level, in units of the target: mean (high - low).

    Narrower is better only among predictions that are calibrated: it never looks at the targets, and an overconfident
    model is the sharpest of all. Read it beside `coverage`.

    Reference: Gneiting, Balabdaoui & Raftery (2007).
    """
    low, high = _interval(predictive, level)
    return float((high - low).mean())


def match_counts(predictive: PoissonPredictive, targets: Any) -> Tensor:
    """Targets as counts in the shape of the rows, in double precision, or what is wrong with them."""
    values = match_targets(targets, predictive.rates.shape).double()
    wrong = (values < 0) | (values != values.floor())
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise DataError(f"targets must be counts 0, 1, 2, ...; row {place[0]} holds {values[tuple(place)].item():g}")
    return values


def _target_values(predictive: RealPredictive, targets: Any) -> Tensor:
    return match_targets(targets, predictive.member_mean.shape).double()


def _errors(predictive: RealPredictive, targets: Any) -> Tensor:
    return predictive.mean.double() - _target_values(predictive, targets)


def _interval(predictive: RealPredictive, level: float) -> tuple[Tensor, Tensor]:
    check_level(level)
    low, high = predictive.interval(level)
    return low.double(), high.double()


def _normal_crps(weights: Tensor, means: Tensor, stds: Tensor, values: Tensor) -> float:
    """Sum over rows; means and stds are `(member, row)`."""
    total = 0.0
    rows_at_once = max(1, CELLS_AT_ONCE // len(weights))
    for mean, std, value in zip(
        means.split(rows_at_once, 1), stds.split(rows_at_once, 1), values.split(rows_at_once), strict=True
    ):
        distance = weights @ _expected_size(value - mean, std)
        total += float((distance - _expected_difference(weights, mean, std) / 2).sum())
    return total


def _expected_size(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a normal X."""
    score = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    return std * math.sqrt(2 / math.pi) * (-score.square() / 2).exp() + mean * torch.erf(score / math.sqrt(2))


def _expected_difference(weights: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    """E|X - X'| of two draws from a mixture of normals, `(row,)`: each pair of members once, one member at a time."""
    total = weights.square() @ (stds * 2 / math.sqrt(math.pi))
    for i in range(len(weights) - 1):
        size = _expected_size(means[i] - means[i + 1 :], torch.hypot(stds[i], stds[i + 1 :]))
        total += 2 * weights[i] * (weights[i + 1 :] @ size)
    return total


def _poisson_crps(weights: Tensor, rates: Tensor, counts: Tensor) -> float:
    """Sum over rows; rates are `(member, row)`. Rows of similar windows are computed together."""
    low, width = _count_window(rates)
    total = 0.0
    for rows in width.argsort().split(max(1, CELLS_AT_ONCE // (64 * len(weights)))):
        total += _window_sum(weights, rates[:, rows], counts[rows], low[rows], int(width[rows].max()))
    return total


def _count_window(rates: Tensor) -> tuple[Tensor, Tensor]:
    """First count and number of counts outside of which every member's F is 0 or 1, to within exp(-40).

    Bernstein's bound: P(|X - rate| >= t) <= 2 exp(-t^2 / (2 (rate + t / 3))).
    """
    exponent = 40
    reach = exponent / 3 + (exponent**2 / 9 + 2 * exponent * rates).sqrt()
    low = (rates - reach).amin(0).floor().clamp_min(0)
    width = (rates + reach).amax(0).ceil() - low + 1
    if not (width <= MOST_COUNTS).all():
        raise DataError(
            f"the CRPS would be summed over more than {MOST_COUNTS} counts in a row: the members' rates lie between "
            f"{rates.min():g} and {rates.max():g}; leave out the rows with such rates"
        )
    return low, width


def _window_sum(weights: Tensor, rates: Tensor, counts: Tensor, low: Tensor, width: int) -> float:
    """Sum of (F(k) - [k >= y])^2 over all counts k and all rows; inside the window term by term."""
    below, above = (low - counts).clamp_min(0), (counts - low - width).clamp_min(0)
    total, cdf = float((below + above).sum()), torch.zeros_like(low)
    for offsets in torch.arange(width, device=rates.device).split(max(1, CELLS_AT_ONCE // rates.numel())):
        grid = low + offsets[:, None]
        cdfs = cdf + torch.einsum("m,kmr->kr", weights, _poisson_mass(grid[:, None], rates)).cumsum(0)
        total += float((cdfs - (grid >= counts).double()).square().sum())
        cdf = cdfs[-1]
    return total


def _poisson_mass(counts: Tensor, rates: Tensor) -> Tensor:
    return (torch.xlogy(counts, rates) - rates - torch.lgamma(counts + 1)).exp()
