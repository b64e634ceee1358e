"""Split conformal prediction: sets of classes and intervals that hold the truth as often as they say.

Both are fitted on calibration rows that were not trained on. The only assumption is that these and the new rows are
exchangeable (independent draws from one distribution will do); the model may be as wrong as it likes. With n
calibration rows the promise is

    level <= P(the truth is inside) <= level + 1 / (n + 1)

where the upper end needs calibration rows without ties. The probability is over calibration and new rows together: it
holds on average, not for each row, each class, or a given calibration set. How badly an answer fits a row is its
nonconformity; the threshold is the ceil((n + 1) level)-th smallest one of the calibration rows. Where that is more than
n, that is for n < level / (1 - level), no finite threshold keeps the promise: sets then hold every class, and intervals
are infinite.

Reference: Vovk, Gammerman & Shafer (2005); Papadopoulos et al. (2002); Angelopoulos & Bates (2021), A gentle
introduction to conformal prediction.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import check_finite
from bayesemble.core.errors import DataError
from bayesemble.core.settings import require
from bayesemble.predictive import ClassPredictive, RealPredictive, match_targets
from bayesemble.predictive.base import check_level
from bayesemble.predictive.classes import as_labels

# --- sets of classes ---


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """The classes that are possible for each row."""

    mask: Tensor
    """(row, class), True for the classes in the set."""

    @property
    def size(self) -> Tensor:
        """(row,), how many classes each set holds."""
        return self.mask.sum(-1)

    def hit(self, targets: Any) -> Tensor:
        """(row,), whether the set holds the right label."""
        labels = as_labels(match_targets(targets, self.mask[None, ..., 0].shape), self.mask.shape[-1])
        return self.mask.gather(-1, labels[:, None]).squeeze(-1)


@dataclass(frozen=True)
class ConformalSets:
    """A fitted rule that turns probabilities into sets of classes; made by `fit_sets`."""

    threshold: float
    """Classes whose nonconformity is at most this are in the set; infinite if there were too few calibration rows."""
    level: float
    kind: str
    penalty: float = 0.0
    regular_size: int = 0

    def apply(self, predictive: ClassPredictive, generator: torch.Generator) -> PredictionSets:
        """The set of each row. The generator draws one uniform number per row, which "lac" does not need."""
        return PredictionSets(self.nonconformity(predictive, generator) <= self.threshold)

    def nonconformity(self, predictive: ClassPredictive, generator: torch.Generator) -> Tensor:
        """How unlikely each class looks, `(row, class)`: the larger, the later it enters the set."""
        if predictive.probs.dim() != 2:
            raise DataError(f"sets need one class per row, got probabilities {tuple(predictive.probs.shape)}")
        probs = predictive.probs.double()
        check_finite(probs, "probabilities")
        if self.kind == "lac":
            return 1 - probs
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        uniform = torch.rand(len(probs), 1, generator=generator, dtype=probs.dtype)
        rank = torch.arange(1, probs.shape[-1] + 1)
        before = ordered.cumsum(-1) - ordered
        nonconformity = before + uniform * ordered + self.penalty * (rank - self.regular_size).clamp_min(0)
        return torch.empty_like(nonconformity).scatter_(-1, order, nonconformity)


def fit_sets(
    predictive: ClassPredictive,
    targets: Any,
    generator: torch.Generator,
    level: float = 0.9,
    kind: str = "aps",
    penalty: float | None = None,
    regular_size: int | None = None,
) -> ConformalSets:
    """Fit sets of classes that hold the right label with probability `level`, on calibration rows.

    Nonconformity of class c in a row with probabilities p, where u is uniform on [0, 1] and drawn once per row:

    - "lac": 1 - p_c. The smallest sets on average, but hard rows may be given up in favour of easy ones.
    - "aps": sum of the probabilities larger than p_c, + u p_c. Sets that adapt to how hard a row is, but are large
      where there are many classes with small probabilities.
    - "raps": that of "aps" + penalty * max(0, rank of c - regular_size). Smaller and steadier sets; strong penalties
      make all sets alike.

    A set may be empty, where no class looks likely or u came out large. To add the most probable class is harmless, as
    it can only raise the coverage. See the top of this file for what is promised.

    Args:
        predictive: Predictions of the calibration rows.
        targets: Their labels.
        generator: Draws u for "aps" and "raps".
        level: How often the set shall hold the right label, strictly between 0 and 1.
        kind: "lac", "aps" or "raps".
        penalty: Of "raps" alone: what each class beyond the regular size costs; 0.01 unless told.
        regular_size: Of "raps" alone: how many classes are free of it; 5 unless told.

    Reference: Sadinle, Lei & Wasserman (2019) for lac; Romano, Sesia & Candès (2020) for aps; Angelopoulos et al.
    (2021), Uncertainty sets for image classifiers, for raps.
    """
    check_level(level)
    require(kind in ("lac", "aps", "raps"), f'kind is "lac", "aps" or "raps", not {kind!r}')
    if kind == "raps":
        rule = ConformalSets(math.inf, level, kind, *_regularisation(penalty, regular_size))
    else:
        require(penalty is None and regular_size is None, f'penalty and regular_size are of "raps", not of {kind!r}')
        rule = ConformalSets(math.inf, level, kind)
    nonconformity = rule.nonconformity(predictive, generator).gather(-1, predictive.labels(targets)[:, None])
    return dataclasses.replace(rule, threshold=float(_conformal_quantile(nonconformity, level)))


def set_size(sets: PredictionSets) -> float:
    """Mean number of classes in a set. Lower is better at equal coverage, and says nothing without it."""
    return float(sets.size.double().mean())


def set_coverage(sets: PredictionSets, targets: Any) -> float:
    """Share of rows whose set holds the right label. Best near the level: more means needlessly large sets.

    It is an average: sets that are too small for hard rows and too large for easy ones look fine by it. See
    `size_stratified_coverage`.
    """
    return float(sets.hit(targets).double().mean())


@dataclass(frozen=True, eq=False)
class SizeStrata:
    """Coverage of the sets of each size; sizes that occur too rarely are left out.

    Shape: all `(size,)`.
    """

    size: Tensor
    """How many classes the sets hold, rising; 1 stands for empty sets too, which cannot hold the label."""
    coverage: Tensor
    count: Tensor


def coverage_by_size(sets: PredictionSets, targets: Any, min_count: int = 1) -> SizeStrata:
    """Share of rows whose set holds the right label, among sets of each size. Best near the level at every size.

    Sets of size 0 and 1 are taken together, as in the reference. Sizes with fewer than `min_count` rows are left out.
    """
    hit = sets.hit(targets).double()
    size, stratum, count = sets.size.clamp_min(1).unique(return_inverse=True, return_counts=True)
    coverage = torch.zeros(len(size), dtype=hit.dtype).index_add_(0, stratum, hit) / count
    kept = count >= min_count
    return SizeStrata(size[kept], coverage[kept], count[kept])


def size_stratified_coverage(sets: PredictionSets, targets: Any, min_count: int = 1) -> float:
    """The smallest coverage among sets of equal size (SSC). Higher is better, up to the level.

    A value far below the level says that the sets do not adapt: some size is wrong more often than it says. It is the
    smallest of several noisy numbers and so biased downwards: sizes that occur rarely should be left out by
    `min_count`. Not a number where no size occurs so often.

    min_s mean of [y in set] over rows with sets of size s

    Reference: Angelopoulos et al. (2021), Uncertainty sets for image classifiers.
    """
    strata = coverage_by_size(sets, targets, min_count)
    return float(strata.coverage.min()) if len(strata.coverage) else float("nan")


# --- intervals ---


@dataclass(frozen=True, eq=False)
class Intervals:
    """From where to where the target may lie; both `(row,)` or `(row, output)`, ends included."""

    low: Tensor
    high: Tensor

    @property
    def width(self) -> Tensor:
        """How wide each interval is."""
        return self.high - self.low


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """A fitted rule that widens (or narrows) the prediction's own intervals; made by `fit_intervals`."""

    correction: Tensor
    """What is added at both ends, in units of the target, one number or `(output,)`; below 0 it narrows. Infinite where
    there were too few calibration rows."""
    level: float

    def apply(self, predictive: RealPredictive) -> Intervals:
        """The interval of each row. One that would end before it begins shrinks to its middle."""
        low, high = (end.double() for end in predictive.interval(self.level))
        middle = (low + high) / 2
        return Intervals((low - self.correction).minimum(middle), (high + self.correction).maximum(middle))


def fit_intervals(predictive: RealPredictive, targets: Any, level: float = 0.9) -> ConformalIntervals:
    """Fit intervals that hold the target with probability `level`, on calibration rows.

    The prediction's own central interval [a, b] is moved outwards (or inwards) at both ends by one number, so the
    intervals stay wide where the ensemble is unsure, and become right on average. Where the model's intervals are wrong
    by a factor instead of an offset, narrow ones are moved too much and wide ones too little. Each of several outputs
    has a correction, and keeps the promise, of its own. See the top of this file for what is promised.

    nonconformity = max(a - y, y - b);  [a - correction, b + correction] with its conformal quantile as correction

    Reference: Romano, Patterson & Candès (2019), Conformalized quantile regression.
    """
    low, high = (end.double() for end in predictive.interval(level))
    values = match_targets(targets, predictive.member_mean.shape).double()
    return ConformalIntervals(_conformal_quantile(torch.maximum(low - values, values - high), level), level)


def _regularisation(penalty: float | None, regular_size: int | None) -> tuple[float, int]:
    strength, free = 0.01 if penalty is None else penalty, 5 if regular_size is None else regular_size
    require(math.isfinite(strength) and strength >= 0, f"penalty is a number from 0 up, not {penalty}")
    require(free >= 0, f"regular_size is a number of classes from 0 up, not {regular_size}")
    return strength, free


def _conformal_quantile(nonconformity: Tensor, level: float) -> Tensor:
    """The ceil((n + 1) level)-th smallest of n numbers along the rows, infinite if that is more than n."""
    check_finite(nonconformity, "nonconformity")
    # A hair is taken off, for (n + 1) level may come out just above the whole number that it is.
    rank = math.ceil((len(nonconformity) + 1) * level - 1e-9)
    if rank > len(nonconformity):
        return torch.full_like(nonconformity[0], math.inf)
    return nonconformity.sort(dim=0).values[rank - 1]
