import math

import pytest
import torch

from bayesemble import metrics
from bayesemble.errors import DataError
from bayesemble.likelihoods import Poisson
from bayesemble.metrics import summarise
from bayesemble.predictive import Predictive

LABELS = [0, 1, 2, 0, 1, 2]
VALUES = [0.0, 1.0, -1.0, 0.5, 2.0, 3.0]


def random_classes(generator, members=3):
    return Predictive.from_probs(torch.randn(members, 6, 3, generator=generator).softmax(-1))


def random_normals(generator, members=3):
    return Predictive.from_normal(torch.randn(members, 6, generator=generator), 0.7)


def test_classes_are_scored_by_each_score_that_applies(generator):
    predictive = random_classes(generator)
    assert summarise(predictive, LABELS) == {
        "nll": metrics.nll(predictive, LABELS),
        "accuracy": metrics.accuracy(predictive, LABELS),
        "ece": metrics.expected_calibration_error(predictive, LABELS),
        "brier": metrics.brier(predictive, LABELS),
    }


def test_real_numbers_are_scored_by_each_score_that_applies(generator):
    predictive = random_normals(generator)
    assert summarise(predictive, VALUES) == {
        "nll": metrics.nll(predictive, VALUES),
        "rmse": metrics.rmse(predictive, VALUES),
        "coverage_90": metrics.coverage(predictive, VALUES, 0.9),
    }


def test_counts_are_scored_as_real_numbers_are(generator):
    predictive = Poisson().predictive(torch.randn(3, 6, generator=generator), {}, torch.full((3,), 1 / 3))
    assert summarise(predictive, LABELS).keys() == {"nll", "rmse", "coverage_90"}


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_foreign_data_adds_how_well_doubt_tells_it_apart(make, targets, generator):
    predictive, foreign = make(generator), make(generator)
    scores = summarise(predictive, targets, foreign)
    assert scores["ood_auroc"] == metrics.ood_auroc(predictive, foreign)
    assert scores["ood_auroc_epistemic"] == metrics.ood_auroc(predictive, foreign, "epistemic")
    rest = {name: score for name, score in scores.items() if not name.startswith("ood")}
    assert rest == summarise(predictive, targets)


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_one_member_has_finite_scores_and_no_epistemic_doubt_to_tell_by(make, targets, generator):
    one, foreign = make(generator, members=1), make(generator, members=1)
    scores = summarise(one, targets, foreign)
    assert all(isinstance(score, float) and math.isfinite(score) for score in scores.values())
    assert scores["ood_auroc_epistemic"] == 0.5


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_targets_of_another_length_are_refused(make, targets, generator):
    with pytest.raises(DataError, match=r"targets must have shape \(6,\) to fit the predictions, got \(5,\)"):
        summarise(make(generator), targets[:-1])
