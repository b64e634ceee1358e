"""Calibration: do events that are given probability p happen with frequency p?"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.predictive import ClassPredictive
from bayesemble.settings import require


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy by bins of confidence; bins that hold too few rows are left out.

    Shape: all `(bin,)`.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def gap(self) -> Tensor:
        """|accuracy - confidence| of each bin."""
        return (self.accuracy - self.confidence).abs()


def reliability(
    predictive: ClassPredictive,
    targets: Any,
    bins: int = 15,
    scheme: str = "width",
    closed: str = "right",
    min_count: int = 1,
) -> Reliability:
    """Bin rows by the probability of their most probable class.

    Args:
        predictive: What was predicted.
        targets: The right labels, `(row,)`.
        bins: Number of bins.
        scheme: "width" for bins of equal width on [0, 1], "mass" for bins of equal numbers of rows.
        closed: Which end of a bin belongs to it, "right" or "left"; confidence 1 is always in the last bin.
        min_count: Bins with fewer rows are dropped.
    """
    require(bins >= 1, f"at least one bin is needed, got {bins}")
    require(scheme in ("width", "mass"), f'scheme is "width" or "mass", not {scheme!r}')
    require(closed in ("right", "left"), f'closed is "right" or "left", not {closed!r}')
    confidence, choice = predictive.probs.double().max(-1)
    right = (choice == predictive.labels(targets)).double()
    confidence, right = confidence.flatten(), right.flatten()
    if scheme == "width":
        inner = torch.arange(1, bins, dtype=torch.float64) / bins
        index = torch.bucketize(confidence, inner, right=closed == "left")
    else:
        index = torch.empty_like(confidence, dtype=torch.long)
        index[confidence.argsort(stable=True)] = torch.arange(len(confidence)) * bins // len(confidence)
    count = torch.bincount(index, minlength=bins)
    kept = count >= max(min_count, 1)
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, index, values)[kept] for values in (confidence, right)]
    return Reliability(sums[0] / count[kept], sums[1] / count[kept], count[kept])


def expected_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Mean gap between confidence and accuracy over bins, weighted by their rows (ECE). Lower is better.

    It is biased upwards for few rows and depends on the binning, see `reliability`. A model that always says the
    base rate is perfectly calibrated: read it beside a proper score.

    Reference: Naeini et al. (2015); Guo et al. (2017).
    """
    table = reliability(predictive, targets, **binning)
    return float((table.gap * table.count).sum() / table.count.sum()) if len(table.count) else float("nan")


def maximum_calibration_error(predictive: ClassPredictive, targets: Any, **binning: Any) -> float:
    """Largest gap between confidence and accuracy over bins (MCE). Lower is better.

    Noise where bins hold few rows: state `min_count` beside the number.
    """
    table = reliability(predictive, targets, **binning)
    return float(table.gap.max()) if len(table.count) else float("nan")
