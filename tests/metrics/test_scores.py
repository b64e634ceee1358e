import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from bayesemble.errors import DataError
from bayesemble.likelihoods import Poisson
from bayesemble.metrics import accuracy, brier, coverage, expected_calibration_error, nll, reliability, rmse
from bayesemble.predictive import Predictive

LABELS = [0, 1, 2, 3, 3, 2, 1, 0] * 5


def random_classes(generator, members=3, classes=4):
    logits = 2 * torch.randn(members, len(LABELS), classes, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1))


def random_normals(generator, members=3, rows=40):
    means, stds = (torch.randn(members, rows, generator=generator, dtype=torch.float64) for _ in range(2))
    return Predictive.from_normal(means, stds.exp())


# --- classes ---


def test_accuracy_is_that_of_scikit_learn(generator):
    predictive = random_classes(generator)
    expected = sklearn.metrics.accuracy_score(LABELS, predictive.probs.argmax(-1).numpy())
    assert accuracy(predictive, LABELS) == pytest.approx(expected)


def test_the_class_is_chosen_from_averaged_probabilities_and_not_by_votes():
    predictive = Predictive.from_probs([[[0.45, 0.55]], [[0.45, 0.55]], [[0.9, 0.1]]])
    assert accuracy(predictive, [0]) == 1


def test_nll_is_the_log_loss_of_scikit_learn(generator):
    predictive = random_classes(generator)
    expected = sklearn.metrics.log_loss(LABELS, predictive.probs.numpy())
    assert nll(predictive, LABELS) == pytest.approx(expected)


def test_knowing_nothing_of_c_classes_costs_log_c():
    assert nll(Predictive.from_probs(np.full((6, 10), 0.1)), [0, 3, 9, 1, 1, 5]) == pytest.approx(math.log(10))


def test_certainty_costs_nothing_where_right_and_everything_where_wrong():
    certain = Predictive.from_probs([[1.0, 0.0], [0.0, 1.0]])
    assert (nll(certain, [0, 1]), brier(certain, [0, 1]), accuracy(certain, [0, 1])) == (0, 0, 1)
    assert (nll(certain, [1, 0]), brier(certain, [1, 0]), accuracy(certain, [1, 0])) == (math.inf, 2, 0)


def test_brier_is_the_sum_over_classes_of_squared_distances(generator):
    predictive = random_classes(generator)
    naive = [
        sum((p - (c == label)) ** 2 for c, p in enumerate(row))
        for row, label in zip(predictive.probs.tolist(), LABELS, strict=True)
    ]
    assert brier(predictive, LABELS) == pytest.approx(np.mean(naive))


def test_brier_of_two_classes_is_twice_the_one_sided_one_of_scikit_learn(generator):
    predictive, labels = random_classes(generator, classes=2), [label % 2 for label in LABELS]
    one_sided = sklearn.metrics.brier_score_loss(labels, predictive.probs[:, 1].numpy())
    assert brier(predictive, labels) == pytest.approx(2 * one_sided)


@pytest.mark.parametrize("score", [nll, brier])
def test_the_average_scores_no_worse_than_its_members_on_average(score, generator):
    predictive = random_classes(generator, members=5)
    members = [score(predictive.member(m), LABELS) for m in range(5)]
    assert score(predictive, LABELS) <= np.mean(members)


@pytest.mark.parametrize("score", [nll, brier])
def test_scores_are_proper_the_true_probabilities_are_best_on_average(score):
    truth = np.array([0.5, 0.3, 0.2])

    def expected(told):
        return sum(p * score(Predictive.from_probs([told]), [label]) for label, p in enumerate(truth))

    for told in ([0.6, 0.2, 0.2], [0.4, 0.4, 0.2], [1 / 3] * 3, [0.9, 0.05, 0.05]):
        assert expected(truth) < expected(told)


@pytest.mark.parametrize("score", [accuracy, nll, brier])
def test_labels_may_be_lists_arrays_tensors_or_a_column(score, generator):
    predictive = random_classes(generator)
    forms = [np.array(LABELS), torch.tensor(LABELS), np.array(LABELS)[:, None], np.array(LABELS, dtype=float)]
    assert {score(predictive, form) for form in forms} == {score(predictive, LABELS)}


@pytest.mark.parametrize("score", [accuracy, nll, brier])
def test_labels_of_another_length_are_refused(score, generator):
    with pytest.raises(DataError, match=r"targets must have shape \(40,\) to fit the predictions, got \(39,\)"):
        score(random_classes(generator), LABELS[:-1])


@pytest.mark.parametrize("score", [accuracy, nll, brier, reliability, expected_calibration_error])
@pytest.mark.parametrize("label", [0.5, 4, -1])
def test_labels_that_are_not_whole_or_out_of_range_are_refused_by_all_scores_alike(score, label, generator):
    with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.3, got "):
        score(random_classes(generator), [label, *LABELS[1:]])


# --- real numbers ---


def test_rmse_is_that_of_scikit_learn_on_the_mean(generator):
    predictive = random_normals(generator)
    targets = torch.randn(40, generator=generator, dtype=torch.float64)
    expected = sklearn.metrics.root_mean_squared_error(targets, predictive.mean)
    assert rmse(predictive, targets) == pytest.approx(expected)


def test_a_column_of_targets_is_not_broadcast_to_a_square(generator):
    predictive = random_normals(generator)
    targets = torch.randn(40, generator=generator, dtype=torch.float64)
    for score in (rmse, nll, coverage):
        assert score(predictive, targets[:, None]) == score(predictive, targets)


def test_nll_of_one_normal_is_its_closed_form():
    expected = math.log(2) + math.log(2 * math.pi) / 2 + (3 - 1) ** 2 / (2 * 2**2)
    assert nll(Predictive.from_normal([1.0], [2.0]), [3.0]) == pytest.approx(expected)


def test_nll_of_a_list_of_targets_is_taken_in_double_precision():
    expected = math.log(1e-9) + math.log(2 * math.pi) / 2
    assert nll(Predictive.from_normal([0.1], [1e-9]), [0.1]) == pytest.approx(expected)


def test_rmse_of_perfect_means_is_zero():
    assert rmse(Predictive.from_normal([1.0, 2.0], 0.1), [1.0, 2.0]) == 0


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_counts_targets_between_the_quantiles(level, generator):
    predictive = random_normals(generator)
    targets = 2 * torch.randn(40, generator=generator, dtype=torch.float64)
    low, high = predictive.quantile((1 - level) / 2), predictive.quantile((1 + level) / 2)
    naive = [bool(low[i] <= targets[i] <= high[i]) for i in range(40)]
    assert coverage(predictive, targets, level) == pytest.approx(np.mean(naive))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.99])
def test_targets_drawn_from_the_prediction_are_covered_as_often_as_it_says(level, generator):
    predictive = random_normals(generator, rows=5000)
    chosen = torch.randint(0, 3, (5000,), generator=generator)
    noise = torch.randn(5000, generator=generator, dtype=torch.float64)
    rows = torch.arange(5000)
    targets = predictive.means[chosen, rows] + predictive.stds[chosen, rows] * noise
    assert coverage(predictive, targets, level) == pytest.approx(level, abs=0.02)


def test_an_end_of_the_interval_belongs_to_it():
    predictive = Predictive.from_normal([0.0, 0.0], 1.0)
    low, high = predictive.interval(0.9)
    assert coverage(predictive, torch.stack([low[0], high[1]])) == 1
    assert coverage(predictive, torch.stack([low[0] - 1e-6, high[1] + 1e-6])) == 0


def test_intervals_of_counts_cover_at_least_their_level(generator):
    log_rates = torch.randn(3, 2000, generator=generator, dtype=torch.float64)
    predictive = Poisson().predictive(log_rates, {}, torch.full((3,), 1 / 3))
    chosen = torch.randint(0, 3, (2000,), generator=generator)
    counts = torch.poisson(log_rates.exp()[chosen, torch.arange(2000)], generator=generator)
    assert coverage(predictive, counts, 0.8) > 0.8 - 0.02
