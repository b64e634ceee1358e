"""Does uncertainty know where the answer is wrong: what is risked when only the rows in least doubt are answered?

`measure` names a measure of uncertainty, see `Predictive.uncertainty`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import check_finite, numbers
from bayesemble.core.settings import require
from bayesemble.predictive import ClassPredictive, Predictive


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """What is risked when only the rows in least doubt are answered.

    Shape: both `(row,)`; the last entry answers every row.
    """

    coverage: Tensor
    """The share of rows that is answered, 1/n, 2/n, ..., 1."""
    risk: Tensor
    """The error rate (classes) or the mean squared error (real numbers and counts) of the answered rows."""


def risk_coverage(predictive: Predictive, targets: Any, measure: str = "total") -> RiskCoverage:
    """Answer rows in order of rising doubt: what is the risk at each share of answered rows? Lower is better.

    A useful measure of uncertainty gives a curve that rises to the right. Rows in equal doubt have no order: the risk
    is its mean over all orders of them, so the curve does not depend on how rows happen to be sorted. Its left end
    rests on few rows and is noise. With several outputs a row's loss is the mean over them.

    risk(k/n) = (1/k) sum of the losses of the k rows in least doubt

    Reference: El-Yaniv & Wiener (2010).
    """
    losses = _losses(predictive, targets)
    return RiskCoverage(
        torch.arange(1, len(losses) + 1) / len(losses), _risks(losses, finite_uncertainty(predictive, measure))
    )


def aurc(predictive: Predictive, targets: Any, measure: str = "total") -> float:
    """Area under the risk-coverage curve: the risk, averaged over all shares of answered rows. Lower is better.

    It mixes how good the answers are with how good the doubt is: a model with fewer errors has a lower area whatever
    its doubt. See `excess_aurc` for the doubt alone. The rows in least doubt weigh most: they are in all the means.

    (1/n) sum_k risk(k/n)

    Reference: Geifman, Uziel & El-Yaniv (2019).
    """
    return float(risk_coverage(predictive, targets, measure).risk.mean())


def excess_aurc(predictive: Predictive, targets: Any, measure: str = "total") -> float:
    """The area under the risk-coverage curve beyond that of perfect doubt with the same errors. 0 is best.

    Perfect doubt is larger on every worse answer. Models with different error rates can be compared a little better
    than by `aurc`, but not fully: the room for a bad order is larger where more is wrong. 0 if nothing or all is wrong.

    aurc - (1/n) sum_k (mean of the k smallest losses)

    Reference: Geifman, Uziel & El-Yaniv (2019), with the exact best area in place of their approximation.
    """
    losses = _losses(predictive, targets)
    return aurc(predictive, targets, measure) - float(_risks(losses, losses).mean())


@dataclass(frozen=True, eq=False)
class ConfidenceCurve:
    """Accuracy of the rows whose confidence reaches a threshold; thresholds that no row reaches are left out.

    Shape: all `(threshold,)`.
    """

    threshold: Tensor
    kept: Tensor
    """The share of rows whose confidence is at or above the threshold; never 0."""
    accuracy: Tensor
    """The accuracy of those rows."""


def accuracy_against_confidence(
    predictive: ClassPredictive, targets: Any, thresholds: Sequence[float] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
) -> ConfidenceCurve:
    """Keep the rows whose largest probability is at or above each threshold: how many, and how often are they right?

    Higher is better at equal shares of kept rows; at a threshold the accuracy should not be below the threshold itself.
    Two models at the same threshold keep different rows: compare the shares too. Thresholds that no row reaches have no
    accuracy and are left out. Several outputs are pooled.

    accuracy(t) = mean of [argmax_c p_c = y] over rows with max_c p_c >= t

    Reference: Lakshminarayanan, Pritzel & Blundell (2017), section 3.6.
    """
    confidence, choice = (values.flatten() for values in predictive.probs.max(-1))
    right = (choice == predictive.labels(targets).flatten()).double()
    levels = numbers(thresholds, "thresholds").flatten().to(confidence.dtype)
    require(bool(((levels >= 0) & (levels <= 1)).all()), f"thresholds are probabilities in [0, 1], got {thresholds}")
    reached = (confidence >= levels[:, None]).double()
    some = reached.sum(1) > 0
    return ConfidenceCurve(levels[some], reached[some].mean(1), (reached[some] @ right) / reached[some].sum(1))


def finite_uncertainty(predictive: Predictive, measure: str) -> Tensor:
    """The uncertainty of each row, or which row has none."""
    values = predictive.uncertainty(measure)
    check_finite(values, "uncertainty")
    return values


def _losses(predictive: Predictive, targets: Any) -> Tensor:
    """What each row costs, `(row,)`: 1 for a wrong class, or the squared error of the mean."""
    losses = predictive.losses(targets)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _risks(losses: Tensor, uncertainties: Tensor) -> Tensor:
    """Mean loss of the k rows in least doubt for each k; every row of a tie counts as the mean of its tie."""
    _, group, size = uncertainties.unique(return_inverse=True, return_counts=True)
    shared = torch.zeros(len(size), dtype=losses.dtype).index_add_(0, group, losses) / size
    return shared.repeat_interleave(size).cumsum(0) / torch.arange(1, len(losses) + 1)
