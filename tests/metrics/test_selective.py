"""Risk at each coverage, and accuracy at each confidence, against loops over rows and over the orders of ties."""

import itertools
import math

import numpy as np
import pytest
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics.scores import accuracy, rmse
from bayesemble.metrics.selective import accuracy_against_confidence, aurc, excess_aurc, risk_coverage
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.task.likelihoods import Bernoulli
from mixtures import (
    OF_CLASSES,
    certain_members,
    equal_rows,
    one_member,
    rows_of_classes,
    rows_of_numbers,
    with_variances,
)

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
    predictive, targets = rows_of_classes(generator, 60), random_labels(generator, 60)
    curve = risk_coverage(predictive, targets, measure)
    pairs = sorted(zip(predictive.uncertainty(measure).tolist(), losses_of(predictive, targets), strict=True))
    if measure != "disagreement":  # which has ties
        expected = [np.mean([loss for _, loss in pairs[:k]]) for k in range(1, 61)]
        np.testing.assert_allclose(curve.risk.numpy(), expected)
    np.testing.assert_allclose(curve.coverage.numpy(), np.arange(1, 61) / 60)
    assert curve.risk[-1].item() == pytest.approx(1 - accuracy(predictive, targets))


def test_risk_of_numbers_is_the_mean_squared_error(generator):
    predictive, targets = rows_of_numbers(generator, 50), torch.randn(50, generator=generator, dtype=torch.float64)
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
    predictive, targets = rows_of_classes(generator, 60), random_labels(generator, 60)
    expected = naive_excess(losses_of(predictive, targets).tolist(), predictive.entropy.tolist())
    assert excess_aurc(predictive, targets) == pytest.approx(expected)
    predictive, targets = rows_of_numbers(generator, 50), torch.randn(50, generator=generator, dtype=torch.float64)
    expected = naive_excess(losses_of(predictive, targets).tolist(), predictive.variance.tolist())
    assert excess_aurc(predictive, targets) == pytest.approx(expected)


def test_perfect_doubt_has_no_excess_and_useless_doubt_more():
    variances, errors = np.arange(1.0, 21.0), np.linspace(0.1, 2, 20)
    assert excess_aurc(with_variances(variances), errors) == pytest.approx(0, abs=1e-12)
    assert excess_aurc(with_variances(variances[::-1].copy()), errors) > 0.5
    assert aurc(with_variances(variances), errors) < np.mean(errors**2)


def test_there_is_no_excess_where_all_is_right_or_all_is_wrong(generator):
    predictive = rows_of_classes(generator, 20)
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
            score(rows_of_classes(generator, 5), [0] * 4)


# --- accuracy against confidence ---


def test_accuracy_against_confidence_is_that_of_a_loop(generator):
    predictive, targets = rows_of_classes(generator, 80, sharpness=3.0), random_labels(generator, 80, 4)
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
        accuracy_against_confidence(rows_of_classes(generator, 3), [0, 1, 2], [threshold])
