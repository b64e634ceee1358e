"""Calibration: do events that are given probability p happen with frequency p?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import numbers
from bayesemble.core.settings import require
from bayesemble.metrics.scores import as_weights, counted, row_mean
from bayesemble.predictive import ClassPredictive, RealPredictive

LEVELS = tuple(percent / 100 for percent in range(5, 100, 5))
"""The levels at which quantiles are checked if none are named: 0.05, 0.1, ... 0.95."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy by bins of confidence; bins that hold too few rows are left out.

    Shape: all `(bin,)`, but the number of rows.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    """Of rows, or the sum of their weights."""
    index: Tensor
    """Which of the bins these are, counted from 0."""
    num_rows: float
    """How many rows there were, or the sum of their weights, with those of the bins that are left out."""

    @property
    def gap(self) -> Tensor:
        """|accuracy - confidence| of each bin."""
        return (self.accuracy - self.confidence).abs()


@dataclass(frozen=True, eq=False)
class QuantileCalibration:
    """How often targets lie below the quantile of each level; a calibrated prediction has `observed` = `level`.

    Shape: both `(level,)`.
    """

    level: Tensor
    observed: Tensor

    @property
    def gap(self) -> Tensor:
        """|observed - level| of each level."""
        return (self.observed - self.level).abs()


def reliability(
    predictive: ClassPredictive,
    targets: Any,
    bins: int = 15,
    scheme: str = "width",
    closed: str = "right",
    min_count: int = 1,
    weights: Any = None,
) -> Reliability:
    """Bin rows by the probability of their most probable class.

    Papers differ in the binning. Guo et al. (2017) have the defaults; ensemble model patching has `bins=20,
    min_count=6` (bins with at most 5 rows are dropped); D'Angelo & Fortuin (2021) `bins=30, closed="left"`.

    Args:
        predictive: What was predicted.
        targets: The right labels, `(row,)`.
        bins: Number of bins.
        scheme: "width" for bins of equal width on [0, 1], "mass" for bins of equal numbers of rows.
        closed: Which end of a bin belongs to it, "right" or "left"; confidence 1 is always in the last bin.
        min_count: Bins with fewer rows are dropped. Errors take them for bins without a gap: their rows stay in the
            number of all rows, which sums over bins are divided by.
        weights: What each row counts for, as if it were there so many times; numbers of rows are sums of weights then.
            Bins of equal width only.
    """
    predictive, labels, own = counted(predictive, targets, weights)
    confidence, choice = predictive.probs.double().max(-1)
    return _table(confidence, choice == labels, bins, scheme, closed, min_count, own)


def expected_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Mean gap between confidence and accuracy over bins, weighted by their rows (ECE). Lower is better.

        sum_b n_b / n * |accuracy_b - confidence_b|,    n the number of all rows, whatever bins `min_count` drops

    It is biased upwards for few rows and depends on the binning, see `reliability`. A model that always says the
    base rate is perfectly calibrated: read it beside a proper score.

    Reference: Naeini et al. (2015); Guo et al. (2017).
    """
    table = reliability(predictive, targets, **binning)
    return _mean_over_rows(table.gap, table)


def maximum_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Largest gap between confidence and accuracy over bins (MCE). Lower is better.

    Noise where bins hold few rows: state `min_count` beside the number.
    """
    table = reliability(predictive, targets, **binning)
    return float(table.gap.max()) if len(table.count) else float("nan")


def root_mean_square_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Root of the mean squared gap between confidence and accuracy over bins, weighted by rows. Lower is better.

    Between ECE and MCE: it lies above the ECE, the more so the more unequal the gaps of the bins are. Squares make it
    more biased upwards for few rows than the ECE is, see `debiased_calibration_error`; it depends on the binning, and
    a model that always says the base rate has none.

        sqrt( sum_b n_b / n * (accuracy_b - confidence_b)^2 )

    Reference: Hendrycks et al. (2019), Deep anomaly detection with outlier exposure.
    """
    table = reliability(predictive, targets, **binning)
    return math.sqrt(_mean_over_rows(table.gap.square(), table))


def adaptive_calibration_error(predictive: ClassPredictive, targets: Any, bins: int = 15, min_count: int = 1) -> float:
    """The ECE over bins that hold equally many rows. Lower is better.

    Confident networks put nearly all rows into the last bins of equal width; here the bins follow the rows, so every
    gap is measured equally well. Rows of equal confidence are cut in their order: with many of them (confidence 1
    throughout) shuffle sorted data first. It is biased upwards for few rows as the ECE is.

        sum_b n_b / n * |accuracy_b - confidence_b|,    n_b equal to within one row

    It looks at the most probable class only; the variant of Nixon et al. takes all classes, which is
    `classwise_calibration_error(..., scheme="mass")`.

    Reference: Nguyen & O'Connor (2015); Nixon et al. (2019).
    """
    return expected_calibration_error(predictive, targets, bins=bins, scheme="mass", min_count=min_count)


def classwise_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Mean over classes of the ECE of that class's probability against "is it this class?". Lower is better.

    The ECE looks only at the most probable class; this sees whether every probability can be taken at its word, which
    matters where decisions weigh the classes differently. With many classes nearly all probabilities are nearly 0 and
    so are their gaps: the number shrinks like 1 / classes and cannot be compared between data sets. A class that never
    occurs counts with the probability it was given. The settings of the bins are those of `reliability`.

        1 / C * sum_c sum_b n_bc / n * |frequency of class c in bin b - mean p_c in bin b|

    Reference: Kull et al. (2019); Nixon et al. (2019), as static calibration error.
    """
    labels, own = predictive.labels(targets), as_weights(predictive, binning.pop("weights", None))
    own = None if own is None else predictive.label_weights(targets, own)
    columns = enumerate(predictive.probs.double().unbind(-1))
    tables = [_table(column, labels == label, **binning, weights=own) for label, column in columns]
    errors = [_mean_over_rows(table.gap, table) for table in tables if len(table.count)]
    return sum(errors) / len(errors) if errors else float("nan")


def debiased_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """The root mean square calibration error, less what chance alone would give. Lower is better, 0 is calibrated.

    A perfectly calibrated model has gaps too, because accuracies of few rows scatter: in a bin of n rows the squared
    gap is too large by about accuracy * (1 - accuracy) / n. Here that is taken off, so that models may be compared on
    different numbers of rows. The result is noisy near 0, where a negative sum is set to 0. What happens inside a bin
    stays unseen, as with all bins. A bin with a single row tells nothing of its scatter and is dropped; n counts the
    rows of the bins that are kept.

        sqrt( max(0, sum_b n_b / n * ( gap_b^2 - accuracy_b (1 - accuracy_b) / (n_b - 1) )) )

    Reference: Kumar, Liang & Ma (2019), Verified uncertainty calibration, section 5 (there with `scheme="mass"`).
    """
    require(
        binning.get("weights") is None,
        "the debiased calibration error takes off the scatter of so many rows, which weights do not tell: pass none",
    )
    binning = binning | {"min_count": max(2, binning.get("min_count", 2))}
    table = reliability(predictive, targets, **binning)
    scatter = table.accuracy * (1 - table.accuracy) / (table.count - 1)
    if not len(table.count):
        return float("nan")
    squared = ((table.gap.square() - scatter) * table.count).sum() / table.count.sum()
    return math.sqrt(max(0.0, float(squared)))


def pit(predictive: RealPredictive, targets: Any, generator: torch.Generator | None = None) -> Tensor:
    """Where each target lies in its predicted distribution: F(y), in the shape of the targets (PIT values).

    Calibrated predictions have values spread evenly over [0, 1]: a histogram that is flat. Heaped at both ends, the
    predictions are too confident; heaped in the middle, too cautious; leaning to one end, biased. A flat histogram is
    needed but not enough: errors of different rows can cancel.

    F of a count jumps, so its value is drawn evenly from the jump, which takes a generator. So does a censored time c,
    whose event may lie anywhere beyond:

        F(y)    or for counts    F(y - 1) + u * (F(y) - F(y - 1)),    u uniform on [0, 1]
                or censored      F(c) + u * (1 - F(c))

    Reference: Dawid (1984); Gneiting, Balabdaoui & Raftery (2007); for counts Czado, Gneiting & Held (2009);
    for censored times Haider et al. (2020), "Effective ways to build and evaluate individual survival distributions".
    """
    below, upto = predictive.cdf_around(targets)
    if not (upto > below).any():
        return upto
    require(
        generator is not None,
        "the PIT of counts is drawn from the jump of F at each count, that of censored times from what is left: "
        "pass a generator",
    )
    uniform = torch.rand(upto.shape, dtype=upto.dtype, generator=generator)
    return below + uniform * (upto - below)


def quantile_calibration(
    predictive: RealPredictive, targets: Any, levels: Sequence[float] = LEVELS, weights: Any = None
) -> QuantileCalibration:
    """How often the target lies below each predicted quantile: observed = mean [ F(y) <= level ].

    Best where `observed` equals `level`. Below it at high levels and above it at low ones, the predictions are too
    confident. It pools all rows, so doubt that is too large here and too small there can cancel, and a model that
    always predicts the distribution of all targets is calibrated: read it beside a proper score. For counts, whose F
    jumps, each target counts with the part of its jump below the level, the mean of the randomised PIT; a censored time
    counts in the same way with what lies beyond it.

    Args:
        predictive: What was predicted.
        targets: The right answers, `(row,)` or `(row, output)`.
        levels: Probabilities strictly between 0 and 1.
        weights: What each row counts for.

    Reference: Kuleshov, Fenner & Ermon (2018); for counts Czado, Gneiting & Held (2009).
    """
    level = numbers(levels, "levels").double()
    sensible = level.dim() == 1 and len(level) > 0 and bool(((level > 0) & (level < 1)).all())
    require(sensible, f"levels are probabilities strictly between 0 and 1, got {levels}")
    below, upto = (values.double() for values in predictive.cdf_around(targets))
    own = as_weights(predictive, weights)
    observed = [row_mean(_share_below(below, upto, float(one)), own) for one in level]
    return QuantileCalibration(level, torch.tensor(observed, dtype=torch.float64))


def quantile_calibration_error(
    predictive: RealPredictive, targets: Any, levels: Sequence[float] = LEVELS, weights: Any = None
) -> float:
    """Mean over levels of |share of targets below the quantile - level|. Lower is better, in [0, 1].

    Chance alone gives about 0.3 / sqrt(rows). It pools rows, so it misses errors that cancel, and it depends on the
    levels: see `quantile_calibration`.

        1 / L * sum_l | mean [ F(y) <= level_l ] - level_l |

    Reference: Kuleshov, Fenner & Ermon (2018), who take squares; with absolute values Chung et al. (2021).
    """
    return float(quantile_calibration(predictive, targets, levels, weights).gap.mean())


def _table(
    probability: Tensor,
    happened: Tensor,
    bins: int = 15,
    scheme: str = "width",
    closed: str = "right",
    min_count: int = 1,
    weights: Tensor | None = None,
) -> Reliability:
    """Bin events by the probability they were given; weights have the shape of the events."""
    require(bins >= 1, f"at least one bin is needed, got {bins}")
    require(scheme in ("width", "mass"), f'scheme is "width" or "mass", not {scheme!r}')
    require(closed in ("right", "left"), f'closed is "right" or "left", not {closed!r}')
    require(
        weights is None or scheme == "width",
        'bins of equal numbers of rows may cut through a row that counts for several; with weights use scheme="width"',
    )
    probability, happened = probability.flatten(), happened.double().flatten()
    own = None if weights is None else weights.flatten()
    index = _mass_index(probability, bins) if scheme == "mass" else _width_index(probability, bins, closed)
    count = torch.bincount(index, own, minlength=bins)
    kept = count >= min_count if min_count > 1 else count > 0
    parts = (part if own is None else part * own for part in (probability, happened))
    confidence, accuracy = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, index, part)[kept] / count[kept] for part in parts
    )
    total = len(index) if own is None else float(own.sum())
    return Reliability(confidence, accuracy, count[kept], torch.arange(bins)[kept], total)


def _width_index(probability: Tensor, bins: int, closed: str) -> Tensor:
    inner = torch.arange(1, bins, dtype=torch.float64) / bins
    return torch.bucketize(probability.contiguous(), inner, right=closed == "left")


def _mass_index(probability: Tensor, bins: int) -> Tensor:
    index = torch.empty_like(probability, dtype=torch.long)
    index[probability.argsort(stable=True)] = torch.arange(len(probability)) * bins // len(probability)
    return index


def _mean_over_rows(values: Tensor, table: Reliability) -> float:
    """Mean over all rows, those of dropped bins being 0; not a number where no bin is left."""
    return float((values * table.count).sum() / table.num_rows) if len(table.count) else float("nan")


def _share_below(below: Tensor, upto: Tensor, level: float) -> Tensor:
    """The share of [below, upto] that lies under the level; a jump of no height lies there or not."""
    height = upto - below
    share = ((level - below) / height.clamp_min(torch.finfo(height.dtype).tiny)).clamp(0, 1)
    return torch.where(height > 0, share, (upto <= level).double())
