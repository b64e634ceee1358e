import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics.scores import accuracy, rmse
from bayesemble.metrics.selective import (
    accuracy_against_confidence,
    aurc,
    disagreement_ratio,
    entropy_ratio,
    excess_aurc,
    ood_aupr,
    ood_auroc,
    ood_fpr95,
    ood_table,
    risk_coverage,
)
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.task.likelihoods import Bernoulli

OF_CLASSES = ("total", "epistemic", "aleatoric", "disagreement", "max_probability", "member_std")


def random_classes(generator, rows, sharpness=1.0):
    logits = sharpness * torch.randn(3, rows, 4, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1))


def random_normals(generator, rows, spread=1.0):
    means = spread * torch.randn(3, rows, generator=generator, dtype=torch.float64)
    return Predictive.from_normal(means, torch.rand(3, rows, generator=generator, dtype=torch.float64) + 0.5)


def certain_members(generator, rows, members=4):
    """Probabilities of exactly 0 and 1, so that most rows tie with others."""
    return Predictive.from_probs(
        torch.eye(3, dtype=torch.float64)[torch.randint(0, 3, (members, rows), generator=generator)]
    )


def equal_rows(generator, rows):
    """Every row the same: all doubts are equal."""
    return Predictive.from_probs(np.tile([[[0.5, 0.25, 0.125, 0.125]], [[0.25, 0.25, 0.25, 0.25]]], (1, rows, 1)))


def one_member(generator, rows):
    return Predictive.from_probs(torch.randn(rows, 4, generator=generator, dtype=torch.float64).softmax(-1))


def with_variances(variances):
    return Predictive.from_normal(np.zeros(len(variances)), np.sqrt(variances))


def naive_auroc(familiar, ood):
    """The share of pairs in which the foreign row has more doubt, a tie being half a pair."""
    pairs = [(f > k) + 0.5 * (f == k) for f in ood.tolist() for k in familiar.tolist()]
    return sum(pairs) / len(pairs)


def test_doubt_of_classes_is_in_entropies_and_of_real_numbers_in_variances(generator):
    classes, normals = random_classes(generator, 5), random_normals(generator, 5)
    assert torch.equal(classes.uncertainty(), classes.entropy)
    assert torch.equal(classes.uncertainty("epistemic"), classes.mutual_information)
    assert torch.equal(classes.uncertainty("aleatoric"), classes.expected_entropy)
    assert torch.equal(normals.uncertainty(), normals.variance)
    assert torch.equal(normals.uncertainty("epistemic"), normals.epistemic)
    assert torch.equal(normals.uncertainty("aleatoric"), normals.aleatoric)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_doubt_is_one_number_per_row_summed_over_outputs(measure, generator):
    several = Predictive.from_normal(torch.randn(3, 5, 2, generator=generator), 0.5)
    each = [Predictive.from_normal(several.means[..., i], 0.5) for i in range(2)]
    torch.testing.assert_close(several.uncertainty(measure), sum(one.uncertainty(measure) for one in each))
    labels = Bernoulli().predictive(torch.randn(3, 5, 2, generator=generator), {}, torch.full((3,), 1 / 3))
    assert labels.uncertainty(measure).shape == (5,)


@pytest.mark.parametrize("measure", ["total", "epistemic", "aleatoric"])
def test_auroc_is_the_share_of_pairs_in_which_the_foreign_row_has_more_doubt(measure, generator):
    familiar, ood = random_classes(generator, 40, sharpness=3.0), random_classes(generator, 30)
    expected = naive_auroc(familiar.uncertainty(measure), ood.uncertainty(measure))
    assert ood_auroc(familiar, ood, measure) == pytest.approx(expected)


def test_auroc_of_real_numbers_is_by_variance(generator):
    familiar, ood = random_normals(generator, 40), random_normals(generator, 30, spread=2.0)
    assert ood_auroc(familiar, ood) == pytest.approx(naive_auroc(familiar.variance, ood.variance))


def test_ties_count_half():
    familiar, ood = with_variances([1.0, 4.0, 4.0, 9.0]), with_variances([4.0, 4.0, 16.0])
    expected = naive_auroc(familiar.variance, ood.variance)
    assert ood_auroc(familiar, ood) == pytest.approx(expected) == pytest.approx((2 * 2 + 4) / 12)


def test_the_same_data_cannot_be_told_apart_from_itself(generator):
    predictive = random_classes(generator, 50)
    assert ood_auroc(predictive, predictive) == pytest.approx(0.5)


def test_sets_without_overlap_give_1_or_0():
    low, high = with_variances([1.0, 2.0]), with_variances([3.0, 4.0])
    assert ood_auroc(low, high) == 1
    assert ood_auroc(high, low) == 0


def test_exchanging_the_sets_turns_the_auroc_around(generator):
    one, other = random_classes(generator, 40), random_classes(generator, 30)
    assert ood_auroc(one, other) + ood_auroc(other, one) == pytest.approx(1)


def test_only_epistemic_doubt_tells_members_that_disagree_from_a_fair_coin():
    coin = Predictive.from_probs(np.full((2, 3, 2), 0.5))
    disagreeing = Predictive.from_probs(np.stack([np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))]))
    assert ood_auroc(coin, disagreeing, "total") == 0.5
    assert ood_auroc(coin, disagreeing, "epistemic") == 1
    assert ood_auroc(coin, disagreeing, "aleatoric") == 0


def test_a_reduced_prediction_doubts_as_the_whole_one(generator):
    familiar, ood = random_classes(generator, 40), random_classes(generator, 30, sharpness=2.0)
    for measure in ("total", "epistemic", "aleatoric"):
        expected = ood_auroc(familiar, ood, measure)
        assert ood_auroc(familiar.reduce(), ood.reduce(), measure) == pytest.approx(expected)


def test_an_unknown_measure_is_refused(generator):
    with pytest.raises(SettingError, match=r"ClassPredictive has uncertainty by total, .* not by 'fear'"):
        random_classes(generator, 3).uncertainty("fear")


# --- foreign data, against other libraries ---

MAKERS = [random_classes, certain_members, equal_rows, one_member]


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
    pair = random_classes(generator, familiar, 2.0), random_classes(generator, ood)
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
    familiar, ood = random_classes(generator, 40, sharpness=3.0), random_classes(generator, 30)
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
    normals = random_normals(generator, 5)
    with pytest.raises(SettingError, match="NormalPredictive has uncertainty by total, epistemic, aleatoric, not by"):
        ratio(normals, normals)


@pytest.mark.parametrize(
    ("make", "expected"), [(random_classes, OF_CLASSES), (random_normals, ("total", "epistemic", "aleatoric"))]
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
        score(random_classes(generator, 5), random_normals(generator, 5))


@pytest.mark.parametrize("score", [ood_auroc, ood_aupr, ood_fpr95])
def test_doubt_that_is_not_a_number_is_refused(score, generator):
    broken = ClassPredictive(torch.ones(1), torch.tensor([[[-0.7, -0.7], [math.nan, 0.0]]]))
    with pytest.raises(DataError, match="uncertainty must be finite numbers; row 1 holds nan"):
        score(random_classes(generator, 5), broken)


# --- risk and coverage ---


def losses_of(predictive, targets):
    if isinstance(predictive, ClassPredictive):
        return (predictive.probs.argmax(-1).numpy() != np.asarray(targets)).astype(float)
    return (predictive.mean.numpy() - np.asarray(targets)) ** 2


def naive_risks(losses, uncertainties):
    """Row by row, in order of doubt; the mean over all orders of the rows that keep doubt rising."""
    orders = [
        order
        for order in itertools.permutations(range(len(losses)))
        if all(uncertainties[i] <= uncertainties[j] for i, j in itertools.pairwise(order))
    ]
    curves = [[np.mean([losses[i] for i in order[:k]]) for k in range(1, len(order) + 1)] for order in orders]
    return np.mean(curves, axis=0)


def random_labels(generator, rows, classes=3):
    return torch.randint(0, classes, (rows,), generator=generator)


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_risk_is_that_of_a_loop_in_order_of_doubt(measure, generator):
    predictive, targets = random_classes(generator, 60), random_labels(generator, 60)
    curve = risk_coverage(predictive, targets, measure)
    pairs = sorted(zip(predictive.uncertainty(measure).tolist(), losses_of(predictive, targets), strict=True))
    if measure != "disagreement":  # which has ties
        expected = [np.mean([loss for _, loss in pairs[:k]]) for k in range(1, 61)]
        np.testing.assert_allclose(curve.risk.numpy(), expected)
    np.testing.assert_allclose(curve.coverage.numpy(), np.arange(1, 61) / 60)
    assert curve.risk[-1].item() == pytest.approx(1 - accuracy(predictive, targets))


def test_risk_of_numbers_is_the_mean_squared_error(generator):
    predictive, targets = random_normals(generator, 50), torch.randn(50, generator=generator, dtype=torch.float64)
    curve = risk_coverage(predictive, targets, "epistemic")
    order = np.argsort(predictive.epistemic.numpy())
    losses = losses_of(predictive, targets)[order]
    np.testing.assert_allclose(curve.risk.numpy(), [losses[:k].mean() for k in range(1, 51)])
    assert curve.risk[-1].item() == pytest.approx(rmse(predictive, targets) ** 2)


@pytest.mark.parametrize("values", [[1, 1, 1, 1, 1, 1], [1, 2, 2, 3, 3, 3], [2, 1, 2, 1, 3, 1], [1, 2, 3, 4, 5, 6]])
def test_ties_are_averaged_over_all_their_orders(values, generator):
    predictive = with_variances(np.array(values, dtype=float))
    targets = torch.randn(6, generator=generator, dtype=torch.float64)
    expected = naive_risks(losses_of(predictive, targets), values)
    np.testing.assert_allclose(risk_coverage(predictive, targets).risk.numpy(), expected)
    assert aurc(predictive, targets) == pytest.approx(expected.mean())


@pytest.mark.parametrize("make", [certain_members, equal_rows, one_member])
def test_the_order_of_rows_does_not_matter_even_with_ties(make, generator):
    predictive, targets = make(generator, 40), random_labels(generator, 40)
    order = torch.randperm(40, generator=generator)
    shuffled = Predictive.from_probs(predictive.member_probs[:, order])
    for score in (aurc, excess_aurc):
        assert score(shuffled, targets[order]) == pytest.approx(score(predictive, targets))


def test_equal_doubt_has_the_same_risk_at_every_coverage(generator):
    predictive, targets = equal_rows(generator, 30), random_labels(generator, 30)
    risk = risk_coverage(predictive, targets).risk
    np.testing.assert_allclose(risk.numpy(), 1 - accuracy(predictive, targets))
    assert aurc(predictive, targets) == pytest.approx(1 - accuracy(predictive, targets))


def naive_excess(losses, uncertainties):
    areas = []
    for keys in (uncertainties, losses):
        ordered = [loss for _, loss in sorted(zip(keys, losses, strict=True))]
        areas.append(np.mean([np.mean(ordered[:k]) for k in range(1, len(ordered) + 1)]))
    return areas[0] - areas[1]


def test_the_excess_is_the_area_beyond_that_of_the_best_order(generator):
    predictive, targets = random_classes(generator, 60), random_labels(generator, 60)
    expected = naive_excess(losses_of(predictive, targets).tolist(), predictive.entropy.tolist())
    assert excess_aurc(predictive, targets) == pytest.approx(expected)
    predictive, targets = random_normals(generator, 50), torch.randn(50, generator=generator, dtype=torch.float64)
    expected = naive_excess(losses_of(predictive, targets).tolist(), predictive.variance.tolist())
    assert excess_aurc(predictive, targets) == pytest.approx(expected)


def test_perfect_doubt_has_no_excess_and_useless_doubt_more():
    variances, errors = np.arange(1.0, 21.0), np.linspace(0.1, 2, 20)
    assert excess_aurc(with_variances(variances), errors) == pytest.approx(0, abs=1e-12)
    assert excess_aurc(with_variances(variances[::-1].copy()), errors) > 0.5
    assert aurc(with_variances(variances), errors) < np.mean(errors**2)


def test_there_is_no_excess_where_all_is_right_or_all_is_wrong(generator):
    predictive = random_classes(generator, 20)
    right = predictive.probs.argmax(-1)
    assert (aurc(predictive, right), excess_aurc(predictive, right)) == (0, 0)
    wrong = (right + 1) % 4
    assert aurc(predictive, wrong) == pytest.approx(1)
    assert excess_aurc(predictive, wrong) == pytest.approx(0)


def test_the_exact_best_area_nears_the_known_approximation():
    """r + (1 - r) log(1 - r) for an error rate r, Geifman et al. (2019)."""
    rows, rate = 5000, 0.2
    probs = np.stack([np.linspace(0.99, 0.6, rows), np.linspace(0.01, 0.4, rows)], axis=-1)
    targets = (np.arange(rows) >= rows * (1 - rate)).astype(int)
    assert aurc(Predictive.from_probs(probs), targets) == pytest.approx(rate + (1 - rate) * np.log(1 - rate), abs=1e-3)


def test_several_outputs_share_a_row(generator):
    several = Predictive.from_normal(torch.randn(3, 6, 2, generator=generator, dtype=torch.float64), 0.5)
    targets = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    assert risk_coverage(several, targets).risk[-1].item() == pytest.approx(rmse(several, targets) ** 2)
    labels = Bernoulli().predictive(torch.randn(3, 6, 2, generator=generator), {}, torch.full((3,), 1 / 3))
    wrong = 1 - labels.probs.argmax(-1)
    assert risk_coverage(labels, wrong).risk.tolist() == pytest.approx([1] * 6)


def test_targets_of_another_length_are_refused(generator):
    for score in (risk_coverage, aurc, excess_aurc):
        with pytest.raises(DataError, match=r"targets must have shape \(5,\) to fit the predictions, got \(4,\)"):
            score(random_classes(generator, 5), [0] * 4)


# --- accuracy against confidence ---


def test_accuracy_against_confidence_is_that_of_a_loop(generator):
    predictive, targets = random_classes(generator, 80, sharpness=3.0), random_labels(generator, 80, 4)
    thresholds = np.linspace(0, 1, 21)
    curve = accuracy_against_confidence(predictive, targets, thresholds)
    confidence, choice = (values.tolist() for values in predictive.probs.max(-1))
    expected = []
    for threshold in thresholds:
        kept = [i for i in range(80) if confidence[i] >= threshold]
        if kept:
            expected.append((threshold, len(kept) / 80, np.mean([choice[i] == targets[i].item() for i in kept])))
    assert len(expected) < 21
    np.testing.assert_allclose(torch.stack([curve.threshold, curve.kept, curve.accuracy], dim=1).numpy(), expected)


def test_thresholds_that_no_row_reaches_are_left_out():
    predictive = Predictive.from_probs([[0.6, 0.4], [0.2, 0.8]])
    curve = accuracy_against_confidence(predictive, [0, 0], [0.0, 0.7, 0.81, 1.0])
    assert curve.threshold.tolist() == [0, 0.7]
    assert curve.kept.tolist() == [1, 0.5]
    assert curve.accuracy.tolist() == [0.5, 0]
    assert len(accuracy_against_confidence(predictive, [0, 0], [0.9]).accuracy) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidence_at_a_threshold_is_kept_in_any_number_type(dtype):
    predictive = ClassPredictive(torch.ones(1), torch.tensor([[[0.7, 0.3], [1.0, 0.0]]], dtype=dtype).log())
    threshold = predictive.probs[0, 0].item()
    assert accuracy_against_confidence(predictive, [0, 0], (threshold, 1.0)).kept.tolist() == [1, 0.5]


def test_the_usual_thresholds_and_several_outputs(generator):
    labels = Bernoulli().predictive(torch.randn(3, 6, 2, generator=generator), {}, torch.full((3,), 1 / 3))
    targets = labels.probs.argmax(-1)
    curve = accuracy_against_confidence(labels, targets)
    assert curve.kept[0] == 1
    assert curve.accuracy.tolist() == [1] * len(curve.threshold)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_thresholds_that_are_no_probabilities_are_refused(threshold, generator):
    with pytest.raises(SettingError, match=r"thresholds are probabilities in \[0, 1\], got"):
        accuracy_against_confidence(random_classes(generator, 3), [0, 1, 2], [threshold])
