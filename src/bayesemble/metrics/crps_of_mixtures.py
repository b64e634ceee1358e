"""The continuous ranked probability score of real numbers and counts, of a part of the line, and of several outputs."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import whole
from bayesemble.metrics.scores import as_weights, row_mean
from bayesemble.predictive import (
    CountPredictive,
    LocationScalePredictive,
    NormalPredictive,
    PoissonPredictive,
    Predictive,
    RealPredictive,
    match_targets,
)

CELLS_AT_ONCE = 2**20
"""How many numbers a step of the CRPS holds at most, whatever the number of members and rows."""

MOST_COUNTS = 2**24
"""Over how many counts the CRPS of one row is summed at most."""

_KNOTS_IN_STDS = (-12.0, -4.0, -1.5, 0.0, 1.5, 4.0, 12.0)  # around each member
_NODES_BETWEEN_KNOTS = 8
_KNOT_LEVELS = (1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1 - 1e-3, 1 - 1e-4, 1 - 1e-6)


def crps(predictive: RealPredictive, targets: Any, weights: Any = None) -> float:
    """Distance between the predicted distribution and the answer (CRPS), in units of the target. Lower is better.

    A proper score that generalises the absolute error: of a prediction without doubt it is |mean - y|. It forgives
    a confident error where the NLL does not, as it grows only linearly with the distance. Like the RMSE it depends on
    the units, so rows or outputs of a larger scale dominate the mean, which is taken over both.

        integral of (F(x) - [x >= y])^2 dx = E|X - y| - E|X - X'| / 2        X, X' independent draws

    For a mixture of normals both expectations are exact, with A(m, v) = E|N(m, v)|:

        sum_i w_i A(y - m_i, s_i^2) - sum_ij w_i w_j A(m_i - m_j, s_i^2 + s_j^2) / 2
        A(m, v) = 2 sqrt(v) phi(m / sqrt(v)) + m (2 Phi(m / sqrt(v)) - 1)

    which takes members^2 * rows steps. For counts it is a sum over all counts where F is neither 0 nor 1 in double
    precision; of the others the closed form is added. For other distributions the integral is taken numerically, to
    five digits (four where the density jumps).

    Rows count by their weights, if any are given, as if each were there so many times.

    Reference: Gneiting & Raftery (2007); Grimit et al. (2006) for the mixture of normals.
    """
    return row_mean(_crps_of_rows(predictive.weighed(), targets), as_weights(predictive, weights))


def _crps_of_rows(predictive: Predictive, targets: Any) -> Tensor:
    """The CRPS of each row and output."""
    if isinstance(predictive, LocationScalePredictive):
        values = match_targets(targets, predictive.means.shape).double()
        double = predictive.double()
        double = replace(double, means=double.means.flatten(1), stds=double.stds.flatten(1))
        if isinstance(double, NormalPredictive):
            return _by_pieces(_normal_crps, double.num_members, double, values)
        points = _NODES_BETWEEN_KNOTS * (len(_KNOTS_IN_STDS) * double.num_members + 2)
        return _by_pieces(lambda piece, own: _integrated_crps(piece, _knots(piece), own), points, double, values)
    if isinstance(predictive, CountPredictive):
        counts = predictive.as_counts(targets)
        flat: dict[str, Any] = {name: value.flatten(1) for name, value in predictive.double()._member_fields().items()}
        double_counts = replace(predictive, weights=predictive.weights.double(), **flat)
        return _count_crps(double_counts, counts.flatten()).reshape(counts.shape)
    if isinstance(predictive, RealPredictive):
        values = match_targets(targets, predictive.member_mean.shape).double()
        return _general_crps(predictive.double(), values)
    raise SettingError(
        f"the CRPS is for real numbers and counts, got {type(predictive).__name__}; "
        "brier is its counterpart for classes"
    )


def weighted_crps(
    predictive: RealPredictive,
    targets: Any,
    low: float | None = None,
    high: float | None = None,
    weights: Any = None,
) -> float:
    """The part of the CRPS that lies between two thresholds, in units of the target. Lower is better.

    A proper score for those who care about some values only, such as floods: what is predicted elsewhere does not
    count, but all rows do, so that a model gains nothing by being sure of the wrong ones. Without thresholds it is the
    CRPS; scores of thresholds that touch add up.

        integral from low to high of (F(x) - [x >= y])^2 dx

    The integral is taken numerically, to five digits.

    Args:
        predictive: What was predicted: mixtures of normals or Student t distributions.
        targets: The right answers, `(row,)` or `(row, output)`.
        low: Where what counts begins; None counts all small values.
        high: Where it ends; None counts all large values.
        weights: What each row counts for; None counts all alike.

    Reference: Gneiting & Ranjan (2011), "Comparing density forecasts using threshold- and quantile-weighted scoring
    rules".
    """
    predictive = predictive.weighed()
    if not isinstance(predictive, LocationScalePredictive):
        raise SettingError(f"the weighted CRPS is for real numbers, got {type(predictive).__name__}; crps takes counts")
    begin, end = (-math.inf if low is None else low), (math.inf if high is None else high)
    if not begin < end:
        raise SettingError(f"low has to lie below high, got {low} and {high}")
    values = match_targets(targets, predictive.means.shape).double()
    double = predictive.double()
    double = replace(double, means=double.means.flatten(1), stds=double.stds.flatten(1))
    points = _NODES_BETWEEN_KNOTS * (len(_KNOTS_IN_STDS) * double.num_members + 2)
    found = _by_pieces(
        lambda piece, own: _integrated_crps(piece, _knots(piece), own, begin, end), points, double, values
    )
    return row_mean(found, as_weights(predictive, weights))


def energy_score(
    predictive: RealPredictive, targets: Any, num_draws: int = 500, seed: int = 0, weights: Any = None
) -> float:
    """Distance between a predicted distribution of several outputs and the answer. Lower is better.

    The CRPS of a vector, such as the steps of a forecast: unlike the mean of their CRPS it sees whether they are
    predicted to go together. Of one output it is the CRPS. Outputs of a larger scale dominate.

        E||X - y|| - E||X - X'|| / 2        X, X' independent draws of all outputs of a row

    The expectations are means over draws, without bias; the error falls with the square root of `num_draws`.

    Args:
        predictive: What was predicted, `(row, output)` or with more axes of outputs.
        targets: The right answers, of the same shape.
        num_draws: How many draws of each row are taken.
        seed: What they are drawn from.
        weights: What each row counts for; None counts all alike.

    Reference: Gneiting & Raftery (2007), section 4.3.
    """
    num_draws = whole(num_draws, f"num_draws is a whole number from 2, got {num_draws}", least=2)
    predictive = predictive.weighed()
    values = (
        match_targets(targets, predictive.member_mean.shape).double().flatten(1 if predictive.mean.dim() > 1 else 0)
    )
    drawn = predictive.sample(num_draws, seeds.generator(seed, "energy score")).double()
    found = _energy_of_draws(drawn.reshape(num_draws, len(values), -1), values.reshape(len(values), -1))
    return row_mean(found, as_weights(predictive, weights))


def _energy_of_draws(drawn: Tensor, values: Tensor) -> Tensor:
    """Energy score of each row: of draws `(draw, row, output)` against values `(row, output)`, without bias."""
    num, found = len(drawn), []
    for rows in torch.arange(len(values)).split(max(1, CELLS_AT_ONCE // num**2)):
        own = drawn[:, rows].transpose(0, 1)
        to_value = (own - values[rows].unsqueeze(1)).norm(dim=2).mean(1)
        between = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2)) / (num * (num - 1))
        found.append(to_value - between / 2)
    return torch.cat(found)


def _by_pieces(
    score: Callable[[LocationScalePredictive, Tensor], Tensor],
    cells: int,
    predictive: LocationScalePredictive,
    values: Tensor,
) -> Tensor:
    """A score of each value, for as many at a time as memory takes; a value needs `cells`."""
    found, flat = [], values.flatten()
    for rows in torch.arange(len(flat)).split(how_many_fit(CELLS_AT_ONCE, cells)):
        piece = replace(predictive, means=predictive.means[:, rows], stds=predictive.stds[:, rows])
        found.append(score(piece, flat[rows]))
    return torch.cat(found).reshape(values.shape)


def _normal_crps(predictive: LocationScalePredictive, values: Tensor) -> Tensor:
    """CRPS of each row, in closed form."""
    weights, means, stds = predictive.weights, predictive.means, predictive.stds
    return weights @ _expected_size(values - means, stds) - _expected_difference(weights, means, stds) / 2


def _knots(predictive: LocationScalePredictive) -> Tensor:
    """Where the distribution changes, `(knot, row)`: around each member."""
    stds = predictive.means.new_tensor(_KNOTS_IN_STDS)[:, None, None]
    return (predictive.means + predictive.stds * stds).flatten(0, 1)


def _general_crps(predictive: RealPredictive, values: Tensor) -> Tensor:
    """CRPS of rows and outputs, with knots at quantiles of the mixture; all in double precision."""
    found, cells = [], _NODES_BETWEEN_KNOTS * (len(_KNOT_LEVELS) + 3) * predictive._any_field()[:, :1].numel()
    for rows in torch.arange(len(values)).split(how_many_fit(CELLS_AT_ONCE, cells)):
        piece = predictive.take_rows(rows)
        knots = torch.stack([piece.quantile(level) for level in _KNOT_LEVELS])
        found.append(_integrated_crps(piece, knots, values[rows]))
    return torch.cat(found)


def _integrated_crps(
    predictive: RealPredictive, knots: Tensor, values: Tensor, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """CRPS of each row, by Gauss-Legendre quadrature between knots, and beyond them.

    F^2 is integrated below the target, and (1 - F)^2 above it; the target is a knot too. Beyond the outermost knots
    x = knot -+ d u / (1 - u), which maps a tail to 0 <= u < 1; d is the distance of the knot from the mean. Knots
    outside of the thresholds move to them, and a tail ends there.
    """
    nodes = np.polynomial.legendre.leggauss(_NODES_BETWEEN_KNOTS)  # on -1 to 1
    points, shares = (values.new_tensor(part).reshape(-1, *[1] * values.dim()) / 2 for part in nodes)
    points = points + 0.5
    knots = torch.cat([knots, values[None]]).sort(dim=0).values
    inside = knots.clamp(low, high)
    widths = inside.diff(dim=0)[:, None]
    positions, sizes = [inside[:-1, None] + widths * points], [widths * shares]
    for index, end in ((0, low), (-1, high)):
        reach = knots[index] - predictive.mean
        length = (end - inside[index]) / reach
        most = torch.where(length.isinf(), 1.0, length / (1 + length))  # the u at which the tail ends
        tail = most * points
        positions.append((inside[index] + reach * tail / (1 - tail))[None])
        sizes.append((most * reach.abs() * shares / (1 - tail).square())[None])
    where = torch.cat(positions).flatten(0, 1)
    cdf = torch.stack([predictive.cdf(row) for row in where])
    height = torch.where(where < values, cdf, 1 - cdf).square()
    return (torch.cat(sizes).flatten(0, 1) * height).sum(0)


def _expected_size(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a normal X."""
    ratio = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    return std * math.sqrt(2 / math.pi) * (-ratio.square() / 2).exp() + mean * torch.erf(ratio / math.sqrt(2))


def _expected_difference(weights: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    """E|X - X'| of two draws from a mixture of normals, `(row,)`: each pair of members once, one member at a time."""
    total = weights.square() @ (stds * 2 / math.sqrt(math.pi))
    for i in range(len(weights) - 1):
        size = _expected_size(means[i] - means[i + 1 :], torch.hypot(stds[i], stds[i + 1 :]))
        total += 2 * weights[i] * (weights[i + 1 :] @ size)
    return total


def _count_crps(predictive: CountPredictive, counts: Tensor) -> Tensor:
    """CRPS of each row; predictions are `(member, row)`. Rows of similar windows are computed together."""
    low, width = _poisson_window(predictive) if isinstance(predictive, PoissonPredictive) else _count_window(predictive)
    if not (width <= MOST_COUNTS).all():
        means = predictive.member_mean
        raise DataError(
            f"the CRPS would be summed over more than {MOST_COUNTS} counts in a row: the members' means lie between "
            f"{means.min():g} and {means.max():g}; leave out the rows with such means"
        )
    found = torch.empty(len(counts), dtype=torch.float64)
    for rows in width.argsort().split(how_many_fit(CELLS_AT_ONCE, 64 * predictive.num_members)):
        found[rows] = _window_sum(predictive.take_rows(rows), counts[rows], low[rows], int(width[rows].max()))
    return found


def _poisson_window(predictive: PoissonPredictive) -> tuple[Tensor, Tensor]:
    """First count and number of counts outside of which every member's F is 0 or 1, to within exp(-40).

    Bernstein's bound: P(|X - rate| >= t) <= 2 exp(-t^2 / (2 (rate + t / 3))).
    """
    exponent, rates = 40, predictive.rates
    reach = exponent / 3 + (exponent**2 / 9 + 2 * exponent * rates).sqrt()
    low = (rates - reach).amin(0).floor().clamp_min(0)
    return low, (rates + reach).amax(0).ceil() - low + 1


def _count_window(predictive: CountPredictive) -> tuple[Tensor, Tensor]:
    """From 0 to the count beyond which 1 - F, which is squared, is below 1e-12."""
    high = predictive.quantile(1 - 1e-12)
    return torch.zeros_like(high), high + 1


def _window_sum(predictive: CountPredictive, counts: Tensor, low: Tensor, width: int) -> Tensor:
    """Sum of (F(k) - [k >= y])^2 over all counts k, of each row; inside the window term by term."""
    below, above = (low - counts).clamp_min(0), (counts - low - width).clamp_min(0)
    total, cdf = (below + above).double(), torch.zeros_like(low)
    cells = predictive.num_members * predictive.num_rows
    for offsets in torch.arange(width, device=low.device).split(how_many_fit(CELLS_AT_ONCE, cells)):
        grid = low + offsets[:, None]
        masses = predictive.member_log_density(grid[:, None]).exp()
        cdfs = cdf + torch.einsum("m,kmr->kr", predictive.weights, masses).cumsum(0)
        total += (cdfs - (grid >= counts).double()).square().sum(0)
        cdf = cdfs[-1]
    return total
