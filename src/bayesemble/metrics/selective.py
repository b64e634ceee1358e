"""Does uncertainty know what it should: is it larger on foreign data (`ood`), and larger where the answer is wrong?

Foreign rows are always the positive ones: a perfect detector has more doubt on every foreign row than on any familiar
row. `measure` names a measure of uncertainty, written u(row) below; see `Predictive.uncertainty`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import NumpyArray, check_finite, numbers
from bayesemble.core.settings import require
from bayesemble.predictive import ClassPredictive, Predictive


def ood_auroc(predictive: Predictive, ood: Predictive, measure: str = "total") -> float:
    """Probability that a foreign row has more doubt than a familiar one; ties count half. 0.5 is chance, 1 is best.

    It tells how well the two sets can be told apart, not whether the doubt itself is calibrated. It weighs all
    thresholds alike, also those that raise far too many alarms to be used: read it beside `ood_fpr95`.

    P(u(ood) > u(familiar)) + P(u(ood) = u(familiar)) / 2

    Reference: Hendrycks & Gimpel (2017).
    """
    _check_same_kind(predictive, ood)
    return auroc(_finite_uncertainty(predictive, measure), _finite_uncertainty(ood, measure))


def auroc(familiar: Tensor, ood: Tensor) -> float:
    """Probability that a number of the second kind is larger than one of the first, ties counting half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_pooled(familiar, ood)))


def ood_aupr(predictive: Predictive, ood: Predictive, measure: str = "total") -> float:
    """Mean share of foreign rows among those in most doubt, over thresholds (average precision). 1 is best.

    Chance is the share of foreign rows, not 0.5: it rises with the number of foreign rows, so only values for the same
    two sets can be compared. Rows in equal doubt come in together.

    sum_k (recall_k - recall_(k-1)) precision_k, over the distinct values of doubt from the largest down

    Reference: Davis & Goadrich (2006); Hendrycks & Gimpel (2017), there "AUPR Out".
    """
    from sklearn.metrics import average_precision_score

    _check_same_kind(predictive, ood)
    uncertainties = _pooled(_finite_uncertainty(predictive, measure), _finite_uncertainty(ood, measure))
    return float(average_precision_score(*uncertainties))


def ood_fpr95(predictive: Predictive, ood: Predictive, measure: str = "total") -> float:
    """Share of familiar rows that raise a false alarm when 95 % of the foreign rows raise one. 0 is best, 0.95 chance.

    The convention: foreign rows are positive; the alarm is raised at or above the largest doubt that catches at least
    95 % of them, without interpolation. Some papers call the familiar rows positive instead, which is another
    number. It looks at one threshold alone, and the 5 % of the foreign rows in least doubt decide it: with few foreign
    rows it jumps.

    P(u(familiar) >= t) for the largest t with P(u(ood) >= t) >= 0.95

    Reference: Liang, Li & Srikant (2018).
    """
    _check_same_kind(predictive, ood)
    familiar_uncertainty, ood_uncertainty = _finite_uncertainty(predictive, measure), _finite_uncertainty(ood, measure)
    caught = -(-19 * len(ood_uncertainty) // 20)  # 95 % of the rows, rounded up without the rounding of 0.95
    threshold = ood_uncertainty.sort(descending=True).values[caught - 1]
    return float((familiar_uncertainty >= threshold).double().mean())


def entropy_ratio(predictive: ClassPredictive, ood: ClassPredictive) -> float:
    """How many times larger the mean entropy is on foreign data than on familiar data (H_o/H_t). Higher is better.

    A ratio of means: small doubt on familiar data drives it up, also where the confidence there is not deserved, and a
    few foreign rows can carry it. The base of the logarithm cancels. Infinite where there is no entropy on familiar
    data only; 1 where there is none at all.

    mean_ood H[p] / mean_familiar H[p]

    Reference: D'Angelo & Fortuin (2021).
    """
    return _ratio(predictive, ood, "entropy")


def disagreement_ratio(predictive: ClassPredictive, ood: ClassPredictive) -> float:
    """How many times more the members differ on foreign data than on familiar data (MD_o/MD_t). Higher is better.

    The measure is "member_std": the standard deviation of a class probability over members, mean over classes. It
    misleads as `entropy_ratio` does, and says nothing of how much the members differ. Infinite where they differ on
    foreign data only; 1 where they differ nowhere, as one member does.

    mean_ood std_m[p_m] / mean_familiar std_m[p_m]

    Reference: D'Angelo & Fortuin (2021).
    """
    return _ratio(predictive, ood, "member_std")


def ood_table(predictive: Predictive, ood: Predictive) -> dict[str, dict[str, float]]:
    """How well each measure of uncertainty that applies tells foreign data apart: measure -> score -> value.

    The scores are "auroc" and "aupr" (higher is better), "fpr95" (lower is better) and "ratio", mean foreign doubt by
    mean familiar doubt (higher is better). To pick the best measure by this table and to report its value on the same
    data flatters it.
    """
    return {
        measure: {
            "auroc": ood_auroc(predictive, ood, measure),
            "aupr": ood_aupr(predictive, ood, measure),
            "fpr95": ood_fpr95(predictive, ood, measure),
            "ratio": _ratio(predictive, ood, measure),
        }
        for measure in predictive.measures
    }


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
        torch.arange(1, len(losses) + 1) / len(losses), _risks(losses, _finite_uncertainty(predictive, measure))
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


def _check_same_kind(predictive: Predictive, ood: Predictive) -> None:
    names = f"{type(predictive).__name__} and {type(ood).__name__}"
    require(
        predictive.kind == ood.kind,
        f"predictions of one kind were needed, both of classes or both of numbers, got {names}",
    )


def _finite_uncertainty(predictive: Predictive, measure: str) -> Tensor:
    values = predictive.uncertainty(measure)
    check_finite(values, "uncertainty")
    return values


def _pooled(familiar: Tensor, ood: Tensor) -> tuple[NumpyArray, NumpyArray]:
    """Which rows are foreign, and the doubt of all rows."""
    is_ood = torch.cat([torch.zeros(len(familiar)), torch.ones(len(ood))])
    return is_ood.numpy(), torch.cat([familiar, ood]).double().cpu().numpy()


def _ratio(predictive: Predictive, ood: Predictive, measure: str) -> float:
    _check_same_kind(predictive, ood)
    familiar, far = (float(_finite_uncertainty(one, measure).double().mean()) for one in (predictive, ood))
    if familiar == 0:
        return math.inf if far > 0 else 1.0
    return far / familiar


def _losses(predictive: Predictive, targets: Any) -> Tensor:
    """What each row costs, `(row,)`: 1 for a wrong class, or the squared error of the mean."""
    losses = predictive.losses(targets)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _risks(losses: Tensor, uncertainties: Tensor) -> Tensor:
    """Mean loss of the k rows in least doubt for each k; every row of a tie counts as the mean of its tie."""
    _, group, size = uncertainties.unique(return_inverse=True, return_counts=True)
    shared = torch.zeros(len(size), dtype=losses.dtype).index_add_(0, group, losses) / size
    return shared.repeat_interleave(size).cumsum(0) / torch.arange(1, len(losses) + 1)
