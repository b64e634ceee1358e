"""A prior around given weights: the posterior shrinks to them, in every method, and after saving too."""

import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.task.starts.center import around_start
from helpers import quick_fit

STD, NOISE = 0.3, 0.5


def line(seed=0) -> nn.Module:
    with scoped(seed):
        network = nn.Linear(3, 1).double()
        network.weight.data.add_(2.0)
    return network


def rows(num=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def task_of(network, prior=None, **settings):
    prior = prior or be.NormalPrior(std=STD, center="start")
    return be.Task(network, be.Gaussian(noise=NOISE), prior, start="given", **settings)


def posterior(network, fresh=()) -> torch.Tensor:
    """Mean of weights and bias: (X'X / s^2 + I / t^2)^-1 (X'y / s^2 + c / t^2)."""
    x, y = rows()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    center = torch.cat([network.weight.detach()[0], network.bias.detach() * ("bias" not in fresh)])
    precision = design.T @ design / NOISE**2 + torch.eye(4, dtype=x.dtype) / STD**2
    return torch.linalg.solve(precision, design.T @ y / NOISE**2 + center / STD**2)


SURE = {"optimizer": "sgd", "learning_rate": 0.05}  # of a quadratic function
METHODS = {
    "deep ensemble": be.DeepEnsemble(num_members=1, **SURE),
    "repulsive": be.Repulsive(num_members=2, repulsion=0.0, **SURE),
    "laplace": be.Laplace(**SURE),
    "mean field": be.MeanField(noise="plain", **SURE),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", METHODS)
def test_the_posterior_mean_is_that_of_bayesian_linear_regression_around_the_start(name, executor):
    network = line()
    task = task_of(network, jitter=0.01)
    ensemble = quick_fit(task, rows(), METHODS[name], epochs=150, batch_size=None, executor=executor)
    params = ensemble.state.members.params
    found = torch.cat([params["weight"][:, 0], params["bias"]], 1)
    tolerance = 0.2 if name == "mean field" else 1e-3  # whose steps follow one draw each
    torch.testing.assert_close(found, posterior(network).expand_as(found), atol=tolerance, rtol=0)


def test_leaves_that_are_drawn_anew_shrink_to_zero():
    network = line()
    ensemble = quick_fit(task_of(network, fresh="bias"), rows(), METHODS["deep ensemble"], epochs=150, batch_size=None)
    params = ensemble.state.members.params
    found = torch.cat([params["weight"][0, 0], params["bias"][0]])
    torch.testing.assert_close(found, posterior(network, fresh=("bias",)), atol=1e-3, rtol=0)


def test_density_and_gradient_are_those_of_a_normal_around_the_start():
    network = line()
    task = task_of(network).bind(20, rows()[0])
    away = torch.linspace(0, 1, 3, dtype=torch.float64)
    params = {
        name: (leaf.detach() + away.reshape(3, *[1] * leaf.dim())).requires_grad_()
        for name, leaf in network.named_parameters()
    }
    log_prob = task.prior.log_prob(params, task.scales)
    normal = torch.distributions.Normal
    expected = sum(
        normal(dict(network.named_parameters())[name].detach(), STD).log_prob(leaf).flatten(1).sum(1)
        for name, leaf in params.items()
    )
    torch.testing.assert_close(log_prob, expected)
    slopes = torch.autograd.grad(log_prob.sum(), list(params.values()))
    for slope, found in zip(slopes, task.prior.gradient(params, task.scales).values(), strict=True):
        torch.testing.assert_close(found, slope)


def test_prior_draws_stand_around_the_start():
    network = line()
    prior = be.NormalPrior(std=0.01, center="start")
    predictive = be.prior_predictive(task_of(network, prior), None, rows()[0], num=50)
    away = predictive.mean - network(rows()[0])[:, 0].detach()
    assert away.abs().max() < 0.02


def test_the_evidence_of_laplace_counts_the_distance_from_the_start():
    """Exact for a linear model: log p(y) is that of a normal with mean X c and covariance s^2 + t^2 X X'."""
    network, (x, y) = line(), rows()
    ensemble = quick_fit(task_of(network), (x, y), METHODS["laplace"], epochs=150, batch_size=None)
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    covariance = NOISE**2 * torch.eye(len(x), dtype=x.dtype) + STD**2 * design @ design.T
    mean = network(x)[:, 0].detach()
    expected = torch.distributions.MultivariateNormal(mean, covariance).log_prob(y)
    assert float(ensemble.state.slots["laplace"]["log_evidence"][0]) == pytest.approx(float(expected), abs=1e-3)


def test_anchors_are_drawn_around_the_start():
    """Randomise-then-optimise: the mean over members is the posterior mean, whatever the start is."""
    network = line()
    method = be.DeepEnsemble(num_members=200, anchored=True, **SURE)
    ensemble = quick_fit(task_of(network), rows(), method, epochs=150, batch_size=None, executor="vmap")
    params = ensemble.state.members.params
    found = torch.cat([params["weight"][:, 0], params["bias"]], 1)
    error = float(found.std(0).max()) / math.sqrt(len(found))
    torch.testing.assert_close(found.mean(0), posterior(network), atol=4 * error, rtol=0)


def test_the_centre_is_saved_with_the_ensemble_and_checked_on_resuming(tmp_path):
    network = line()
    options = {"epochs": 2, "checkpoint": tmp_path / "run"}
    ensemble = quick_fit(task_of(network), rows(), METHODS["deep ensemble"], **options)
    for folder, found in ((tmp_path / "saved", ensemble), (tmp_path / "run", None)):
        if found is not None:
            found.save(folder)
        loaded = be.load(folder, lambda: nn.Linear(3, 1).double())
        assert torch.equal(loaded.task.prior.centers["weight"], network.weight)
        assert loaded.describe() == ensemble.describe()
        torch.testing.assert_close(
            be.weighting.log_prior_of_members(loaded), be.weighting.log_prior_of_members(ensemble), rtol=0, atol=0
        )
    on = options | {"epochs": 4, "resume": True}
    with pytest.raises(CheckpointError, match="stands around other weights"):
        quick_fit(task_of(line(seed=3)), rows(), METHODS["deep ensemble"], **on)
    whole = quick_fit(task_of(network), rows(), METHODS["deep ensemble"], epochs=4)
    resumed = quick_fit(task_of(network), rows(), METHODS["deep ensemble"], **on)
    assert torch.equal(resumed.state.members.params["weight"], whole.state.members.params["weight"])


def test_recorded_steps_have_the_bits_of_steps_in_python():
    method = be.DeepEnsemble(num_members=3)
    one, other = (
        quick_fit(
            task_of(line(), jitter=0.1), rows(), method, epochs=60, batch_size=None, executor=be.Vmap(steps=steps)
        )
        for steps in ("traced", "eager")
    )
    assert torch.equal(one.state.members.params["weight"], other.state.members.params["weight"])


def test_a_prior_without_a_given_network_is_refused():
    prior = be.NormalPrior(center="start")
    with pytest.raises(SettingError, match='pass one network itself, with start="given"'):
        around_start(prior, None, ())
    with pytest.raises(SettingError, match="pass one network itself"):
        quick_fit(be.Task(lambda: nn.Linear(3, 1), be.Gaussian(), prior), rows())
    with pytest.raises(SettingError, match="stands around zero"):
        be.VaguePrior(center="start")
    with pytest.raises(SettingError, match="was not told the weights"):
        prior.log_prob({"a": torch.zeros(2, 3)}, {"a": 1.0})
    with pytest.raises(SettingError, match="a prior around given weights is NormalPrior"):
        be.LaplacePrior().centred_on({})
