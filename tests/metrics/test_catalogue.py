"""Every score that can come out has its row, and the direction in it is the one in which predictions get better."""

import math

import pytest
import torch

import bayesemble as be
from bayesemble.metrics import aurc, crps, summarise
from bayesemble.metrics.catalogue import SCORES, Score
from bayesemble.predictive import ClassPredictive, RealPredictive
from comparisons import compared


def all_scores(predictive, targets, foreign):
    scores = summarise(predictive, targets, foreign) | {"aurc": aurc(predictive, targets)}
    return scores | ({"crps": crps(predictive, targets)} if isinstance(predictive, RealPredictive) else {})


@pytest.mark.parametrize(("data", "methods"), [("two_moons", "map,deep_ensemble"), ("diabetes", "map")])
def test_every_score_of_a_comparison_has_a_row(tmp_path, data, methods):
    found = compared(data, methods, members=2, epochs=1, seeds=1, out=tmp_path)
    for result in found.results:
        assert result.failure is None
        assert result.scores.keys() <= SCORES.keys()


def classes_pair():
    """Nine rows of class 0 and one of class 1, which the worse prediction misses and is surest of."""

    def predictive(*members):
        first = torch.tensor([[right] * 9 + [missed] for right, missed in members])
        return be.Predictive.from_probs(torch.stack([first, 1 - first], -1))

    targets = torch.tensor([0] * 9 + [1])
    good, bad = predictive((0.95, 0.3), (0.9, 0.4)), predictive((0.7, 0.99), (0.7, 0.99))
    return all_scores(good, targets, predictive((0.99, 0.9), (0.01, 0.1))), all_scores(bad, targets, bad)


def pixels_pair():
    """Rows of two labels each, of which the worse prediction misses one."""
    good, bad = (torch.tensor([[right, 0.8], [0.7, right]]).expand(2, 2, 2) for right in (0.9, 0.2))
    both = [ClassPredictive(torch.ones(2) / 2, torch.stack([one, 1 - one], -1).log()) for one in (good, bad)]
    return tuple(summarise(one, torch.zeros(2, 2).long()) for one in both)


def numbers_pair():
    """Targets scattered around the mean as predicted, and an answer that is surely wrong, and surer for later rows."""
    scatter = torch.distributions.Normal(0, 0.5).icdf((torch.arange(100) + 0.5) / 100)
    deviations = torch.linspace(0.2, 0.1, 100)
    good = be.Predictive.from_normal(torch.zeros(2, 100), torch.full((2, 100), 0.5))
    bad = be.Predictive.from_normal(torch.full((2, 100), -3.0), deviations.repeat(2, 1))
    apart = be.Predictive.from_normal(torch.tensor([[-3.0], [3.0]]), torch.ones(2, 1))
    return all_scores(good, scatter, apart), all_scores(bad, scatter, bad)


@pytest.mark.parametrize("pair", [classes_pair, pixels_pair, numbers_pair])
def test_a_better_prediction_has_the_lower_loss(pair):
    good, bad = pair()
    for name, value in good.items():
        assert SCORES[name].loss(value) < SCORES[name].loss(bad[name]), name


def test_all_kinds_of_targets_together_have_every_row():
    assert {*classes_pair()[0], *pixels_pair()[0], *numbers_pair()[0]} == SCORES.keys()


def test_how_a_score_is_shown_follows_from_its_direction():
    higher, lower, best = (Score("one\ntwo", "", better, "") for better in ("higher", "lower", 0.9))
    assert [score.arrow for score in (higher, lower, best)] == ["↑", "↓", ""]
    assert [score.direction for score in (higher, lower, best)] == [
        "higher is better",
        "lower is better",
        "0.9 is best",
    ]
    assert higher.title == "One two"
    assert [score.loss(0.7) for score in (higher, lower, best)] == pytest.approx([-0.7, 0.7, 0.2])
    assert all(score.loss(math.nan) == math.inf for score in (higher, lower, best)), "no number is the worst"
