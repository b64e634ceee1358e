import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import sklearn.metrics
import torch

import mixtures
from bayesemble import metrics
from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics import accuracy, brier, coverage, crps, expected_calibration_error, nll, reliability, rmse
from bayesemble.metrics.scores import (
    interval_score,
    log_predictive_density,
    mae,
    pinball,
    sharpness,
    top_k_accuracy,
)
from bayesemble.predictive import PoissonPredictive, Predictive
from bayesemble.task.likelihoods import Poisson
from helpers import oracle, poissons, weighted_normals
from mixtures import ROW_WEIGHTS, repeated

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


# --- the right class among the k most probable ---


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_top_k_accuracy_is_that_of_scikit_learn(k, generator):
    predictive = random_classes(generator)
    expected = sklearn.metrics.top_k_accuracy_score(LABELS, predictive.probs, k=k, labels=range(4)) if k < 4 else 1
    assert top_k_accuracy(predictive, LABELS, k=k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 5, 100])
def test_top_k_accuracy_of_1000_classes_is_that_of_scikit_learn_and_torchmetrics(k, generator):
    predictive = random_classes(generator, members=1, classes=1000)
    labels = predictive.probs.argsort(-1, descending=True)[:, 90 * np.arange(40) % 130].diagonal()
    expected = sklearn.metrics.top_k_accuracy_score(labels, predictive.probs, k=k, labels=range(1000))
    assert 0 < expected < 1
    assert top_k_accuracy(predictive, labels, k=k) == pytest.approx(expected)
    classification = oracle("torchmetrics.functional.classification")
    theirs = classification.multiclass_accuracy(predictive.probs, labels, 1000, top_k=k, average="micro")
    assert top_k_accuracy(predictive, labels, k=k) == pytest.approx(theirs.item())


def test_the_one_most_probable_class_is_that_of_the_accuracy_ties_included(generator):
    ties = Predictive.from_probs(torch.randint(1, 3, (40, 4), generator=generator).double().pow(50).softmax(-1))
    for predictive in (ties, random_classes(generator), Predictive.from_probs(np.full((40, 4), 0.25))):
        assert top_k_accuracy(predictive, LABELS, k=1) == accuracy(predictive, LABELS)


def test_of_equally_probable_classes_the_lower_label_comes_first_where_scikit_learn_takes_the_higher():
    even = np.full((4, 4), 0.25)
    assert top_k_accuracy(Predictive.from_probs(even), [0, 1, 2, 2], k=2) == 0.5
    assert sklearn.metrics.top_k_accuracy_score([0, 1, 2, 2], even, k=2, labels=range(4)) == 0.5
    assert top_k_accuracy(Predictive.from_probs(even), [0, 0, 1, 2], k=2) == 0.75
    assert sklearn.metrics.top_k_accuracy_score([0, 0, 1, 2], even, k=2, labels=range(4)) == 0.25


def test_classes_of_probability_zero_are_found_only_once_all_others_are_spent():
    certain = Predictive.from_probs([[0.0, 1.0, 0.0]] * 3)
    assert [top_k_accuracy(certain, [0, 1, 2], k=k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("k", [0, -1, 5])
def test_more_places_than_classes_or_none_are_refused(k, generator):
    with pytest.raises(SettingError, match=f"k lies between 1 and the number of classes, 4; got {k}"):
        top_k_accuracy(random_classes(generator), LABELS, k=k)


# --- errors and densities of real numbers ---


def test_mae_is_that_of_scikit_learn_on_the_mean(generator):
    predictive, targets = weighted_normals(generator)
    assert mae(predictive, targets) == pytest.approx(sklearn.metrics.mean_absolute_error(targets, predictive.mean))
    assert mae(predictive, targets) < rmse(predictive, targets)


def test_the_log_density_of_the_mixture_is_that_of_scipy(generator):
    predictive, targets = weighted_normals(generator)
    densities = scipy.stats.norm(predictive.means, predictive.stds).pdf(targets)
    expected = np.log(predictive.weights.numpy() @ densities).mean()
    assert log_predictive_density(predictive, targets) == pytest.approx(expected)
    assert log_predictive_density(predictive, targets) == -nll(predictive, targets)


def test_the_log_density_of_the_moments_is_that_of_the_normal_with_these_moments(generator):
    predictive, targets = weighted_normals(generator)
    mean = predictive.weights @ predictive.means
    second = predictive.weights @ (predictive.means**2 + predictive.stds**2)
    expected = scipy.stats.norm(mean, (second - mean**2).sqrt()).logpdf(targets).mean()
    assert log_predictive_density(predictive, targets, "moments") == pytest.approx(expected)
    assert log_predictive_density(predictive, targets, "moments") != pytest.approx(-nll(predictive, targets), rel=0.01)


def test_both_kinds_agree_for_one_member_and_for_a_reduced_prediction(generator):
    predictive, targets = weighted_normals(generator)
    for single in (predictive.member(1), predictive.reduce()):
        one, other = (log_predictive_density(single, targets, kind) for kind in ("mixture", "moments"))
        assert one == pytest.approx(other)


def test_only_the_moments_fill_the_gap_between_two_members():
    apart = Predictive.from_normal([[-5.0], [5.0]], 0.1)
    assert log_predictive_density(apart, [0.0], "moments") > -4 > log_predictive_density(apart, [0.0], "mixture")
    assert log_predictive_density(apart, [5.0], "moments") < -3 < log_predictive_density(apart, [5.0], "mixture")


def test_a_noise_of_precision_one_tenth_cannot_beat_the_floor_of_the_published_tables():
    assert log_predictive_density(Predictive.from_normal([2.0], math.sqrt(10)), [2.0]) == pytest.approx(
        -2.0703, abs=1e-4
    )


def test_the_log_density_of_classes_and_counts_is_that_of_the_mixture_and_they_have_no_moments(generator):
    classes, counts = random_classes(generator), PoissonPredictive(torch.ones(1), torch.ones(1, 40))
    for predictive in (classes, counts):
        assert log_predictive_density(predictive, LABELS) == -nll(predictive, LABELS)
        with pytest.raises(SettingError, match=r'"moments" needs a mixture of normals, got .*; use "mixture"'):
            log_predictive_density(predictive, LABELS, "moments")


def test_an_unknown_kind_of_density_is_refused(generator):
    predictive, targets = weighted_normals(generator)
    with pytest.raises(SettingError, match='kind is "mixture" or "moments", not \'normal\''):
        log_predictive_density(predictive, targets, "normal")


# --- quantiles and intervals ---


@pytest.mark.parametrize("level", [0.05, 0.5, 0.9])
def test_pinball_is_that_of_scikit_learn(level, generator):
    predictive, targets = weighted_normals(generator)
    expected = sklearn.metrics.mean_pinball_loss(targets, predictive.quantile(level), alpha=level)
    assert pinball(predictive, targets, level) == pytest.approx(expected)


def test_netcal_means_another_thing_by_its_quantile_loss(generator):
    """There the level is that of a central interval, of which the nearer end is scored by whether y lies inside."""
    predictive, targets = weighted_normals(generator, members=1)
    ends = torch.stack(predictive.interval(0.9))
    inside = (targets >= ends[0]) & (targets <= ends[1])
    expected = ((targets - ends).abs().amin(0) * torch.where(inside, 0.1, 0.9)).mean().item()
    normal = predictive.means[0].numpy(), predictive.stds[0].numpy()
    theirs = oracle("netcal.metrics").QuantileLoss().measure(normal, targets.numpy(), q=np.array([0.9]), kind="meanstd")
    assert theirs == pytest.approx(expected)
    assert theirs != pytest.approx(pinball(predictive, targets, 0.9), rel=0.1)


def test_pinball_of_the_median_is_half_its_absolute_error():
    assert pinball(Predictive.from_normal([1.0, 2.0], 1.0), [4.0, 2.0], 0.5) == pytest.approx(1.5 / 2)


def test_a_missed_quantile_costs_by_its_level():
    predictive = Predictive.from_normal([0.0], 1.0)
    quantile = predictive.quantile(0.9)
    assert pinball(predictive, quantile + 1, 0.9) == pytest.approx(0.9)
    assert pinball(predictive, quantile - 1, 0.9) == pytest.approx(0.1)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_interval_score_is_that_of_a_loop_over_rows(level, generator):
    predictive, targets = weighted_normals(generator)
    low, high = (end.tolist() for end in predictive.interval(level))
    naive = [
        (h - l) + 2 / (1 - level) * ((l - y) * (y < l) + (y - h) * (y > h))
        for l, h, y in zip(low, high, targets.tolist(), strict=True)  # noqa: E741
    ]
    assert interval_score(predictive, targets, level) == pytest.approx(np.mean(naive))


def test_interval_score_is_the_cost_of_its_two_quantiles(generator):
    predictive, targets = weighted_normals(generator)
    ends = pinball(predictive, targets, 0.1), pinball(predictive, targets, 0.9)
    assert interval_score(predictive, targets, 0.8) == pytest.approx(2 / 0.2 * sum(ends))


def test_interval_score_without_misses_is_the_sharpness(generator):
    predictive, _ = weighted_normals(generator)
    assert interval_score(predictive, predictive.quantile(0.5), 0.9) == pytest.approx(sharpness(predictive, 0.9))


def test_sharpness_and_coverage_of_one_normal_are_those_of_netcal(generator):
    predictive, targets = weighted_normals(generator, members=1)
    normal = predictive.means[0].numpy(), predictive.stds[0].numpy()
    theirs = oracle("netcal.metrics").PICP().measure(normal, targets.numpy(), q=np.array([0.9]), kind="meanstd")
    assert sharpness(predictive, 0.9) == pytest.approx(theirs.mpiw.item(), abs=1e-6)
    assert coverage(predictive, targets, 0.9) == pytest.approx(theirs.picp.item())


def test_sharpness_of_a_normal_is_its_width_in_standard_deviations():
    predictive = Predictive.from_normal([0.0, 100.0], [1.0, 3.0])
    assert sharpness(predictive, 0.95) == pytest.approx(2 * 1.959964 * 2, abs=1e-5)


def test_scores_of_intervals_of_counts(generator):
    predictive = poissons(torch.rand(3, 50, generator=generator) * 9)
    counts = torch.randint(0, 15, (50,), generator=generator)
    low, high = predictive.interval(0.8)
    missed = (low - counts).clamp_min(0) + (counts - high).clamp_min(0)
    assert sharpness(predictive, 0.8) == pytest.approx((high - low).mean().item())
    assert interval_score(predictive, counts, 0.8) == pytest.approx((high - low + 10 * missed).mean().item())


@pytest.mark.parametrize("score", [crps, interval_score, lambda p, y: pinball(p, y, 0.8)])
def test_scores_of_real_numbers_are_proper(score, generator):
    """Targets are drawn from the first prediction, so on average every other one does worse."""
    truth = Predictive.from_normal(torch.zeros(2, 4000) + torch.tensor([[-1.0], [2.0]]), 1.0, [0.3, 0.7])
    noise = torch.randn(4000, generator=generator)
    targets = torch.where(torch.rand(4000, generator=generator) < 0.3, -1.0, 2.0) + noise
    for other in (
        truth.rescale(0.0, 1.5),
        truth.rescale(0.7, 1.0),
        truth.rescale(0.0, 0.5),
        truth.reweight([0.7, 0.3]),
    ):
        assert score(truth, targets) < score(other, targets)


@pytest.mark.parametrize("level", [0, 1, -0.5, 1.5])
def test_levels_that_are_no_probabilities_are_refused(level, generator):
    predictive, targets = weighted_normals(generator)
    for score in (pinball, interval_score):
        with pytest.raises(SettingError, match="level is a probability strictly between 0 and 1, got"):
            score(predictive, targets, level)
    with pytest.raises(SettingError, match=f"level is a probability strictly between 0 and 1, got {level}"):
        sharpness(predictive, level)


@pytest.mark.parametrize("score", [mae, crps, interval_score, log_predictive_density, lambda p, y: pinball(p, y, 0.8)])
def test_a_column_of_targets_is_a_row_of_them_and_another_length_is_refused(score, generator):
    predictive, targets = weighted_normals(generator)
    assert score(predictive, targets[:, None]) == score(predictive, targets) == score(predictive, targets.tolist())
    with pytest.raises(DataError, match=r"targets must have shape \(12,\) to fit the predictions, got \(11,\)"):
        score(predictive, targets[:-1])


# --- weights of rows ---

OF_CLASSES = {"accuracy": {}, "brier": {}, "nll": {}, "top_k_accuracy": {"k": 2}}
OF_NUMBERS = {"nll": {}, "rmse": {}, "mae": {}, "coverage": {"level": 0.5}, "pinball": {"level": 0.3}}
OF_NUMBERS |= {"interval_score": {"level": 0.5}, "log_predictive_density": {"kind": "moments"}}


@pytest.mark.parametrize("make", [mixtures.random_classes, mixtures.random_tokens])
@pytest.mark.parametrize("ignore_index", [None, 1])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_weighted_scores_of_classes_are_those_of_repeated_rows(name, make, ignore_index, generator):
    score, options = getattr(metrics, name), OF_CLASSES[name]
    predictive = replace(make(generator), ignore_index=ignore_index)
    labels = torch.randint(4, predictive.answers.shape, generator=generator)
    found = score(predictive, labels, **options, weights=ROW_WEIGHTS)
    assert found == pytest.approx(score(*repeated(predictive, labels), **options), rel=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 2)])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_weighted_scores_of_numbers_are_those_of_repeated_rows(name, shape, generator):
    score, options = getattr(metrics, name), OF_NUMBERS[name]
    predictive = mixtures.random_normals(generator, shape)
    values = torch.randn(shape[1:], generator=generator)
    found = score(predictive, values, **options, weights=ROW_WEIGHTS.tolist())
    assert found == pytest.approx(score(*repeated(predictive, values), **options), rel=1e-12)
    assert found != pytest.approx(score(predictive, values, **options), rel=1e-6)


def test_the_mean_width_goes_by_the_weights_too(generator):
    predictive = mixtures.random_normals(generator)
    found = sharpness(predictive, 0.5, weights=ROW_WEIGHTS)
    assert found == pytest.approx(sharpness(repeated(predictive, torch.zeros(6))[0], 0.5), rel=1e-12)


def test_a_row_of_weight_0_is_as_if_it_were_not_there():
    certain = Predictive.from_probs([[[1.0, 0.0], [0.5, 0.5]]])
    assert nll(certain, [1, 0], weights=[0.0, 2.5]) == pytest.approx(math.log(2))


def test_weights_that_leave_nothing_or_do_not_fit_are_refused(generator):
    predictive = mixtures.random_normals(generator)
    with pytest.raises(DataError, match="nothing to score: all weights are 0"):
        rmse(predictive, torch.zeros(6), weights=torch.zeros(6))
    with pytest.raises(DataError, match=r"6 rows need as many weights, got them in the shape \(2,\)"):
        rmse(predictive, torch.zeros(6), weights=[1.0, 2.0])
    with pytest.raises(DataError, match=r"weights are numbers from 0, that of row 1 is -1\.0"):
        nll(predictive, torch.zeros(6), weights=[1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
