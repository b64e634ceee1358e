"""Names of what is read off a prediction, and slopes of quantiles."""

import pytest
import torch

from bayesemble.core.errors import SettingError
from bayesemble.predictive import NormalPredictive
from bayesemble.training.outgoing.readings import OUTPUTS, USUAL, Rules, read, tolerances
from helpers import poissons, weighted_normals


def test_names_mean_what_the_prediction_calls_so(generator):
    predictive, _ = weighted_normals(generator)
    found = read(predictive, predictive.means, [*USUAL["numbers"], "variance", "member_mean", OUTPUTS], Rules(0.8))
    assert torch.equal(found["low"], predictive.interval(0.8)[0])
    assert torch.equal(found["high"], predictive.interval(0.8)[1])
    assert torch.equal(found["variance"], predictive.variance)
    assert torch.equal(found[OUTPUTS], predictive.means)


def test_a_name_that_means_nothing_is_refused_with_those_that_do(generator):
    predictive, _ = weighted_normals(generator)
    with pytest.raises(SettingError, match=r"mean, std, low, .*no output called 'probs'"):
        read(predictive, predictive.means, ["probs"], Rules(0.9))


def test_the_slope_of_a_quantile_is_that_of_finite_differences(generator):
    predictive, _ = weighted_normals(generator, rows=5)

    def ends(means: torch.Tensor, stds: torch.Tensor) -> torch.Tensor:
        own = NormalPredictive(predictive.weights, means, stds)
        found = read(own, means, ["low", "high"], Rules(0.8))
        return torch.stack([found["low"], found["high"]])

    inputs = (predictive.means.clone().requires_grad_(), predictive.stds.clone().requires_grad_())
    assert torch.autograd.gradcheck(ends, inputs, eps=1e-6, atol=1e-6)


def test_the_interval_of_a_count_has_no_slope():
    rates = torch.tensor([[2.0, 30.0]], dtype=torch.float64, requires_grad=True)
    found = read(poissons(rates), rates, ["low", "mean"], Rules(0.9))
    assert not found["low"].requires_grad
    assert found["mean"].requires_grad


def test_what_is_rounding_grows_with_the_numbers(generator):
    predictive, _ = weighted_normals(generator)
    small, large = (tolerances(own, ["mean", "epistemic"], 1e-5) for own in (predictive, predictive.rescale(0, 100.0)))
    assert large["mean"] == pytest.approx(100 * small["mean"])
    assert large["epistemic"] == pytest.approx(1e4 * small["epistemic"])
