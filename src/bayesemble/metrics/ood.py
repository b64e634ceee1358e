"""Does uncertainty know what it does not know: is it larger on foreign data, which is out of distribution (`ood`)?

Foreign rows are always the positive ones: a perfect detector has more doubt on every foreign row than on any familiar
row. `measure` names a measure of uncertainty, written u(row) below; see `Predictive.uncertainty`.
"""

import math

import torch
from torch import Tensor

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.settings import require
from bayesemble.metrics.selective import finite_uncertainty
from bayesemble.predictive import ClassPredictive, Predictive


def ood_auroc(predictive: Predictive, ood: Predictive, measure: str = "total") -> float:
    """Probability that a foreign row has more doubt than a familiar one; ties count half. 0.5 is chance, 1 is best.

    It tells how well the two sets can be told apart, not whether the doubt itself is calibrated. It weighs all
    thresholds alike, also those that raise far too many alarms to be used: read it beside `ood_fpr95`.

    P(u(ood) > u(familiar)) + P(u(ood) = u(familiar)) / 2

    Reference: Hendrycks & Gimpel (2017).
    """
    return auroc(*_uncertainties(predictive, ood, measure))


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

    return float(average_precision_score(*_pooled(*_uncertainties(predictive, ood, measure))))


def ood_fpr95(predictive: Predictive, ood: Predictive, measure: str = "total") -> float:
    """Share of familiar rows that raise a false alarm when 95 % of the foreign rows raise one. 0 is best, 0.95 chance.

    The convention: foreign rows are positive; the alarm is raised at or above the largest doubt that catches at least
    95 % of them, without interpolation. Some papers call the familiar rows positive instead, which is another
    number. It looks at one threshold alone, and the 5 % of the foreign rows in least doubt decide it: with few foreign
    rows it jumps.

    P(u(familiar) >= t) for the largest t with P(u(ood) >= t) >= 0.95

    Reference: Liang, Li & Srikant (2018).
    """
    familiar_uncertainty, ood_uncertainty = _uncertainties(predictive, ood, measure)
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


def _uncertainties(predictive: Predictive, ood: Predictive, measure: str) -> tuple[Tensor, Tensor]:
    """The doubt of familiar rows and of foreign ones, whose predictions have to be of one kind."""
    names = f"{type(predictive).__name__} and {type(ood).__name__}"
    require(
        predictive.kind == ood.kind,
        f"predictions of one kind were needed, both of classes or both of numbers, got {names}",
    )
    return finite_uncertainty(predictive, measure), finite_uncertainty(ood, measure)


def _pooled(familiar: Tensor, ood: Tensor) -> tuple[NumpyArray, NumpyArray]:
    """Which rows are foreign, and the doubt of all rows."""
    is_ood = torch.cat([torch.zeros(len(familiar)), torch.ones(len(ood))])
    return is_ood.numpy(), torch.cat([familiar, ood]).double().cpu().numpy()


def _ratio(predictive: Predictive, ood: Predictive, measure: str) -> float:
    familiar, far = (float(values.double().mean()) for values in _uncertainties(predictive, ood, measure))
    if familiar == 0:
        return math.inf if far > 0 else 1.0
    return far / familiar
