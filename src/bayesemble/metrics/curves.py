"""Results that are drawn as curves: scores against the number of members, coverage against level, bands of doubt."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.arrays import check_finite, numbers
from bayesemble.core.errors import DataError
from bayesemble.core.settings import require
from bayesemble.metrics.calibration import LEVELS
from bayesemble.metrics.scores import coverage
from bayesemble.predictive import Predictive, RealPredictive, SurvivalPredictive
from bayesemble.predictive.base import check_level


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """A score of ensembles of some of the members, by their number: all `(size,)`.

    The members are those that were trained together. Where members act on one another in training (`Repulsive`,
    `Stein`), fewer of them would have been pushed less and would lie elsewhere: then this is the score of a part of the
    large ensemble, not that of a smaller one.
    """

    size: Tensor
    mean: Tensor
    std: Tensor
    """Standard deviation of the score over the subsets, with their number as divisor; 0 for a single subset."""
    subsets: Tensor
    """How many subsets of the members were scored."""


def size_curve(
    predictive: Predictive,
    targets: Any,
    score: Callable[[Any, Any], float],
    sizes: Sequence[int] | None = None,
    subsets: int = 20,
    seed: int = 0,
) -> SizeCurve:
    """What do fewer of the members reach? Mean and standard deviation of a score over subsets of each size.

    mean_S score(p_S, y),    p_S = sum_{m in S} w_m p_m / sum_{m in S} w_m,    |S| = size

    Where there are at most `subsets` subsets of a size, all are taken; otherwise `subsets` different ones, at random.
    Subsets overlap, the more so the larger they are: the deviation shrinks to 0 at all members for that reason alone,
    and is not the error of the curve. Members of weight 0 are left out.

    Members that were trained alone would be the same ones in a smaller ensemble. Members that act on one another in
    training (`Repulsive`, `Stein`) would not, and a prediction does not know how they were trained: train an ensemble
    of each size to see what fewer of these reach.

    Args:
        predictive: What was predicted, with its members.
        targets: The right answers, `(row, ...)`.
        score: Any score, `bayesemble.metrics.nll` for example.
        sizes: Numbers of members; None takes all from 1 to the number of members.
        subsets: How many subsets of each size are scored at most.
        seed: Seed of the choice of subsets.

    Reference: Lakshminarayanan, Pritzel & Blundell (2017), figure 2.
    """
    predictive.need_members("a choice of sizes")
    require(subsets >= 1, f"at least one subset of each size is needed, got {subsets}")
    members = predictive.weights.nonzero().flatten()
    sizes = range(1, len(members) + 1) if sizes is None else sizes
    sensible = len(sizes) > 0 and all(1 <= size <= len(members) for size in sizes)
    require(sensible, f"sizes lie between 1 and {len(members)}, the members of positive weight; got {list(sizes)}")
    values = [
        torch.tensor([score(predictive.take(members[subset]), targets) for subset in chosen], dtype=torch.float64)
        for chosen in (subsets_of(len(members), size, subsets, seed) for size in sizes)
    ]
    return SizeCurve(
        torch.tensor(list(sizes)),
        torch.stack([some.mean() for some in values]),
        torch.stack([some.std(correction=0) for some in values]),
        torch.tensor([len(some) for some in values]),
    )


@dataclass(frozen=True, eq=False)
class IntervalCoverage:
    """How often targets lie inside the central interval of each level; calibrated if equal. Both `(level,)`."""

    level: Tensor
    observed: Tensor


def interval_coverage(predictive: RealPredictive, targets: Any, levels: Sequence[float] = LEVELS) -> IntervalCoverage:
    """The share of targets inside the central interval, for each level: `coverage` at many levels, in one pass.

    observed = mean [ (1 - level) / 2 <= F(y)  and  F(y-) < (1 + level) / 2 ],    F(y-) = P(Y < y)

    Below the diagonal the intervals are too narrow, above too wide. Intervals of counts end at counts, so that they
    hold more than their level even if the prediction is right. Several outputs are pooled. Censored times count as they
    do for `coverage`.

    Reference: Gneiting, Balabdaoui & Raftery (2007).
    """
    for level in levels:
        check_level(level)
    require(len(levels) > 0, "at least one level is needed, got none")
    if isinstance(predictive, SurvivalPredictive):
        shares = [coverage(predictive, targets, level) for level in levels]
        return IntervalCoverage(*(torch.tensor(part, dtype=torch.float64) for part in (levels, shares)))
    below, upto = predictive.cdf_around(targets)
    inside = [((upto >= (1 - level) / 2) & (below < (1 + level) / 2)).double().mean() for level in levels]
    return IntervalCoverage(torch.tensor(levels, dtype=torch.float64), torch.stack(inside))


@dataclass(frozen=True, eq=False)
class Bands:
    """A prediction of numbers along an axis: its mean, bands of doubt around it, and what of them is epistemic.

    Shape: `(row,)`, or `(band, row)` from the narrowest band to the widest. Rows are in rising order of `position`.
    """

    names: tuple[str, ...]
    """What each band is, "90 %" or "2 std"."""
    position: Tensor
    """Where the rows stand on the axis: the only input, or the target itself."""
    mean: Tensor
    low: Tensor
    high: Tensor
    epistemic_low: Tensor
    epistemic_high: Tensor
    """The widest band, scaled about the mean by sqrt(epistemic / variance); with stds, mean +- k epistemic std."""


def prediction_bands(
    predictive: RealPredictive,
    positions: Any,
    levels: Sequence[float] = (0.5, 0.9),
    stds: Sequence[float] = (),
    output: int | None = None,
) -> Bands:
    """Bands around the mean: central intervals of the mixture, or multiples of the standard deviation to both sides.

    Args:
        predictive: What was predicted.
        positions: Where each row stands on the axis, `(row,)` or `(row, 1)`: inputs of one column, or targets.
        levels: Probabilities of the central intervals.
        stds: Multiples of the standard deviation, in place of levels.
        output: Which output, if there are several.
    """
    given = torch.atleast_1d(numbers(positions, "positions"))
    position = _column(given, output if given.shape[1:].numel() > 1 else None)
    check_finite(position, "positions")
    mean, variance, epistemic = (
        _column(values.double(), output) for values in (predictive.mean, predictive.variance, predictive.epistemic)
    )
    if position.shape != mean.shape:
        raise DataError(f"one position per row was needed, {len(mean)} of them; got {len(position)}")
    low, high = _ends(predictive, levels, stds, output)
    share = (epistemic / variance).sqrt().nan_to_num(0.0)  # no variance at all has no epistemic part either
    inner = mean - share * (mean - low[-1]), mean + share * (high[-1] - mean)
    order = position.argsort(stable=True)
    row_wise = (values[..., order] for values in (position.double(), mean, low, high, *inner))
    names = [f"{factor:g} std" for factor in sorted(stds)] or [f"{100 * level:g} %" for level in sorted(levels)]
    return Bands(tuple(names), *row_wise)


def _ends(
    predictive: RealPredictive, levels: Sequence[float], stds: Sequence[float], output: int | None
) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the bands, both `(band, row)`."""
    require(len(stds) + len(levels) > 0, "at least one band is needed; name levels or stds")
    require(all(factor > 0 for factor in stds), f"stds are positive multiples of the standard deviation, got {stds}")
    mean, std = predictive.mean.double(), predictive.variance.double().sqrt()
    ends = [(mean - factor * std, mean + factor * std) for factor in sorted(stds)]
    ends = ends or [predictive.interval(level) for level in sorted(levels)]
    low, high = (torch.stack([_column(end.double(), output) for end in side]) for side in zip(*ends, strict=True))
    return low, high


def subsets_of(num: int, size: int, limit: int, seed: int) -> list[list[int]]:
    """All subsets of a size of `num` members, or (if there are more) `limit` different ones."""
    if math.comb(num, size) <= limit:
        return [list(subset) for subset in itertools.combinations(range(num), size)]
    generator = seeds.generator(seed, "subsets", size)
    chosen: set[tuple[int, ...]] = set()
    while len(chosen) < limit:
        chosen.add(tuple(sorted(torch.randperm(num, generator=generator)[:size].tolist())))
    return [list(subset) for subset in sorted(chosen)]


def _column(values: Tensor, output: int | None) -> Tensor:
    """The only column, or the one that is asked for, `(row,)`."""
    columns = values.reshape(len(values), -1)
    count = columns.shape[1]
    require(output is not None or count == 1, f"there are {count} columns and one can be shown; choose it: output=0")
    require(output is None or 0 <= output < count, f"there are {count} outputs, counted from 0; got output={output}")
    return columns[:, output or 0]
