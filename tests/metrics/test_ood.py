"""Detection of foreign data against counting pairs, scikit-learn and torchmetrics."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics.ood import disagreement_ratio, entropy_ratio, ood_aupr, ood_auroc, ood_fpr95, ood_table
from bayesemble.predictive import ClassPredictive, Predictive
from mixtures import (
    OF_CLASSES,
    certain_members,
    equal_rows,
    one_member,
    rows_of_classes,
    rows_of_numbers,
    with_variances,
)


def naive_auroc(familiar, ood):
    """The share of pairs in which the foreign row has more doubt, a tie being half a pair."""
    pairs = [(f > k) + 0.5 * (f == k) for f in ood.tolist() for k in familiar.tolist()]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_auroc_is_the_share_of_pairs_in_which_the_foreign_row_has_more_doubt(measure, generator):
    familiar, ood = rows_of_classes(generator, 40, sharpness=3.0), rows_of_classes(generator, 30)
    expected = naive_auroc(familiar.uncertainty(measure), ood.uncertainty(measure))
    assert ood_auroc(familiar, ood, measure) == pytest.approx(expected)


def test_auroc_of_real_numbers_is_by_variance(generator):
    familiar, ood = rows_of_numbers(generator, 40), rows_of_numbers(generator, 30, scale=2.0)
    assert ood_auroc(familiar, ood) == pytest.approx(naive_auroc(familiar.variance, ood.variance))


def test_ties_count_half():
    familiar, ood = with_variances([1.0, 4.0, 4.0, 9.0]), with_variances([4.0, 4.0, 16.0])
    expected = naive_auroc(familiar.variance, ood.variance)
    assert ood_auroc(familiar, ood) == pytest.approx(expected) == pytest.approx((2 * 2 + 4) / 12)


def test_the_same_data_cannot_be_told_apart_from_itself(generator):
    predictive = rows_of_classes(generator, 50)
    assert ood_auroc(predictive, predictive) == pytest.approx(0.5)


def test_sets_without_overlap_give_1_or_0():
    low, high = with_variances([1.0, 2.0]), with_variances([3.0, 4.0])
    assert ood_auroc(low, high) == 1
    assert ood_auroc(high, low) == 0


def test_exchanging_the_sets_turns_the_auroc_around(generator):
    one, other = rows_of_classes(generator, 40), rows_of_classes(generator, 30)
    assert ood_auroc(one, other) + ood_auroc(other, one) == pytest.approx(1)


def test_only_epistemic_doubt_tells_members_that_disagree_from_a_fair_coin():
    coin = Predictive.from_probs(np.full((2, 3, 2), 0.5))
    disagreeing = Predictive.from_probs(np.stack([np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))]))
    assert ood_auroc(coin, disagreeing, "total") == 0.5
    assert ood_auroc(coin, disagreeing, "epistemic") == 1
    assert ood_auroc(coin, disagreeing, "aleatoric") == 0


def test_a_reduced_prediction_doubts_as_the_whole_one(generator):
    familiar, ood = rows_of_classes(generator, 40), rows_of_classes(generator, 30, sharpness=2.0)
    for measure in ("total", "epistemic", "aleatoric"):
        expected = ood_auroc(familiar, ood, measure)
        assert ood_auroc(familiar.reduce(), ood.reduce(), measure) == pytest.approx(expected)


# --- against other libraries ---


MAKERS = [rows_of_classes, certain_members, equal_rows, one_member]


def pooled(familiar, ood, measure):
    scores = torch.cat([familiar.uncertainty(measure), ood.uncertainty(measure)]).numpy()
    return np.repeat([0, 1], [familiar.num_rows, ood.num_rows]), scores


def fpr95_by_curve(familiar, ood, measure):
    false_rate, true_rate, _ = sklearn.metrics.roc_curve(*pooled(familiar, ood, measure), drop_intermediate=False)
    return false_rate[np.flatnonzero(true_rate >= 0.95)[0]]


@pytest.mark.parametrize("measure", OF_CLASSES)
@pytest.mark.parametrize("make", MAKERS)
def test_scores_of_foreign_data_are_those_of_scikit_learn(make, measure, generator):
    familiar, ood = make(generator, 45), make(generator, 37)
    labels, scores = pooled(familiar, ood, measure)
    assert ood_auroc(familiar, ood, measure) == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores))
    expected = sklearn.metrics.average_precision_score(labels, scores)
    assert ood_aupr(familiar, ood, measure) == pytest.approx(expected)
    assert ood_fpr95(familiar, ood, measure) == pytest.approx(fpr95_by_curve(familiar, ood, measure))


@pytest.mark.parametrize("measure", ["total", "disagreement", "member_std"])
@pytest.mark.parametrize("make", MAKERS)
def test_auroc_and_aupr_are_those_of_torchmetrics(make, measure, generator):
    other = pytest.importorskip("torchmetrics.functional.classification")
    familiar, ood = make(generator, 45), make(generator, 37)
    labels, scores = (torch.as_tensor(values) for values in pooled(familiar, ood, measure))
    inside = scores / (2 * scores.max() + 1)  # torchmetrics takes numbers outside [0, 1] for logits
    auroc, aupr = other.binary_auroc(inside, labels), other.binary_average_precision(inside, labels)
    assert ood_auroc(familiar, ood, measure) == pytest.approx(auroc.item(), abs=1e-6)
    assert ood_aupr(familiar, ood, measure) == pytest.approx(aupr.item(), abs=1e-6)


@pytest.mark.parametrize(("familiar", "ood"), [(1, 1), (3, 1), (1, 3), (20, 20), (19, 21), (40, 100)])
def test_fpr95_of_any_number_of_rows_is_that_of_the_curve(familiar, ood, generator):
    pair = rows_of_classes(generator, familiar, 2.0), rows_of_classes(generator, ood)
    assert ood_fpr95(*pair) == pytest.approx(fpr95_by_curve(*pair, "total"))


def test_fpr95_by_hand():
    """Of 20 foreign rows one may be missed: the alarm is at 2, where two of four familiar rows raise it."""
    ood = with_variances([1.0] + [2.0] + [9.0] * 18)
    assert ood_fpr95(with_variances([0.5, 1.0, 2.0, 3.0]), ood) == 0.5
    assert ood_fpr95(with_variances([0.5, 1.0]), ood) == 0
    assert ood_fpr95(with_variances([9.0, 10.0]), ood) == 1


def test_equal_doubt_everywhere_is_chance(generator):
    familiar, ood = equal_rows(generator, 30), equal_rows(generator, 10)
    assert ood_auroc(familiar, ood) == 0.5
    assert ood_aupr(familiar, ood) == 0.25
    assert ood_fpr95(familiar, ood) == 1
    assert entropy_ratio(familiar, ood) == pytest.approx(1)
    assert disagreement_ratio(familiar, ood) == pytest.approx(1)


def test_ratios_are_ratios_of_means(generator):
    familiar, ood = rows_of_classes(generator, 40, sharpness=3.0), rows_of_classes(generator, 30)
    expected = ood.entropy.mean() / familiar.entropy.mean()
    assert entropy_ratio(familiar, ood) == pytest.approx(expected.item())
    spreads = [one.member_probs.std(0).mean() for one in (ood, familiar)]
    assert disagreement_ratio(familiar, ood) == pytest.approx((spreads[0] / spreads[1]).item())


@pytest.mark.parametrize("ratio", [entropy_ratio, disagreement_ratio])
def test_a_ratio_without_doubt_on_familiar_data_is_infinite_or_one(ratio, generator):
    certain, unsure = Predictive.from_probs([[1.0, 0.0]]), Predictive.from_probs([[[0.5, 0.5]], [[0.3, 0.7]]])
    assert ratio(certain, unsure) == math.inf
    assert ratio(unsure, certain) == 0
    assert ratio(certain, certain) == 1


@pytest.mark.parametrize("ratio", [entropy_ratio, disagreement_ratio])
def test_ratios_of_numbers_are_refused(ratio, generator):
    normals = rows_of_numbers(generator, 5)
    with pytest.raises(SettingError, match="NormalPredictive has uncertainty by total, epistemic, aleatoric, not by"):
        ratio(normals, normals)


@pytest.mark.parametrize(
    ("make", "expected"), [(rows_of_classes, OF_CLASSES), (rows_of_numbers, ("total", "epistemic", "aleatoric"))]
)
def test_the_table_holds_every_score_of_every_measure(make, expected, generator):
    familiar, ood = make(generator, 40), make(generator, 30)
    table = ood_table(familiar, ood)
    assert tuple(table) == expected
    for measure, scores in table.items():
        assert scores == {
            "auroc": ood_auroc(familiar, ood, measure),
            "aupr": ood_aupr(familiar, ood, measure),
            "fpr95": ood_fpr95(familiar, ood, measure),
            "ratio": pytest.approx((ood.uncertainty(measure).mean() / familiar.uncertainty(measure).mean()).item()),
        }


def test_the_table_of_one_member_has_no_gaps(generator):
    table = ood_table(one_member(generator, 20), one_member(generator, 20))
    assert table["epistemic"] == {"auroc": 0.5, "aupr": 0.5, "fpr95": 1, "ratio": 1}
    assert all(math.isfinite(score) for scores in table.values() for score in scores.values())


@pytest.mark.parametrize("score", [ood_auroc, ood_aupr, ood_fpr95])
def test_classes_and_numbers_are_not_compared(score, generator):
    with pytest.raises(SettingError, match="both of classes or both of numbers, got ClassPredictive and NormalPredict"):
        score(rows_of_classes(generator, 5), rows_of_numbers(generator, 5))


@pytest.mark.parametrize("score", [ood_auroc, ood_aupr, ood_fpr95])
def test_doubt_that_is_not_a_number_is_refused(score, generator):
    broken = ClassPredictive(torch.ones(1), torch.tensor([[[-0.7, -0.7], [math.nan, 0.0]]]))
    with pytest.raises(DataError, match="uncertainty must be finite numbers; row 1 holds nan"):
        score(rows_of_classes(generator, 5), broken)
