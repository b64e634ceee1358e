"""Bayesian linear regression has a known posterior: what must come out is an equation, not an opinion.

y = X w + e, e ~ Normal(0, s^2), w ~ Normal(0, v):   covariance = (X'X / s^2 + I / v)^-1, mean = covariance X'y / s^2
"""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.types import Batch

NOISE, PRIOR_STD = 0.7, 1.3
NUM_ANCHORED = 1000


def make_linear() -> nn.Module:
    return nn.Linear(3, 1).double()


def regression_data(num_rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 0.1])
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3
    return x, y + NOISE * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def posterior(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (weights, bias)."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    precision = design.T @ design / NOISE**2 + torch.eye(4, dtype=torch.float64) / PRIOR_STD**2
    covariance = precision.inverse()
    return covariance @ design.T @ y / NOISE**2, covariance


def linear_task(**options: float) -> be.Task:
    return be.Task(make_linear, be.Gaussian(noise=NOISE), be.NormalPrior(std=PRIOR_STD), **options)


def solution(ensemble: be.Ensemble) -> Tensor:
    params = ensemble.state.members.params
    return torch.cat([params["weight"].flatten(1), params["bias"]], dim=1)


def optimise(method: be.DeepEnsemble, task: be.Task, epochs: int, **options: object) -> be.Ensemble:
    return be.fit(task, method, regression_data(), epochs=epochs, executor="vmap", progress=False, **options)


def test_map_is_the_ridge_solution():
    method = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=0.1)
    fitted = optimise(method, linear_task(), epochs=400)
    mean, _ = posterior(*regression_data())
    torch.testing.assert_close(solution(fitted), mean.expand(2, 4), atol=1e-6, rtol=0)


def test_weight_decay_gives_the_map_of_the_prior_it_stands_for():
    x, _ = regression_data()
    decay = NOISE**2 / (PRIOR_STD**2 * len(x))  # on half the mean squared error
    prior = be.NormalPrior.from_weight_decay(decay, len(x))
    assert prior.std == pytest.approx(PRIOR_STD / NOISE)
    decayed = be.Task(make_linear, be.Gaussian(noise=1.0), prior=None)
    method = be.DeepEnsemble(num_members=1, optimizer="sgd", learning_rate=0.1, weight_decay=decay)
    fitted = be.fit(decayed, method, regression_data(), epochs=400, executor="vmap", progress=False)
    torch.testing.assert_close(solution(fitted)[0], posterior(*regression_data())[0], atol=1e-6, rtol=0)


@cache
def anchored(temperature: float) -> be.Ensemble:
    method = be.DeepEnsemble(num_members=NUM_ANCHORED, optimizer="sgd", learning_rate=0.1 * temperature, anchored=True)
    return optimise(method, linear_task(temperature=temperature), epochs=250)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_anchored_members_are_exact_posterior_draws(temperature):
    draws = solution(anchored(temperature))
    num = len(draws)
    mean, covariance = posterior(*regression_data())
    covariance = covariance * temperature
    assert (draws.mean(0) - mean).abs().lt(4 * (covariance.diagonal() / num).sqrt()).all()
    # The standard error of an entry of a sample covariance of normal draws.
    diagonal = covariance.diagonal()
    error = ((diagonal[:, None] * diagonal + covariance**2) / (num - 1)).sqrt()
    assert (draws.T.cov() - covariance).abs().lt(4 * error).all()
    # The test can fail: without noise on the targets the covariance is S (1/v) S, far outside the error.
    without_noise = covariance @ covariance / (PRIOR_STD**2 * temperature)
    assert (without_noise - covariance).abs().gt(4 * error).any()


def test_the_predictive_variance_of_an_anchored_ensemble_is_the_analytic_one():
    fitted = anchored(1.0)
    far = torch.tensor([[3.0, -3.0, 3.0]], dtype=torch.float64)
    row = torch.cat([far[0], torch.ones(1, dtype=torch.float64)])
    mean, covariance = posterior(*regression_data())
    predictive = fitted.predict(far)
    assert predictive.aleatoric.item() == pytest.approx(NOISE**2)
    variance = (row @ covariance @ row).item()  # within 4 standard errors of normal draws
    assert predictive.epistemic.item() == pytest.approx(variance, rel=4 * (2 / NUM_ANCHORED) ** 0.5)
    assert predictive.mean.item() == pytest.approx((row @ mean).item(), abs=4 * (variance / NUM_ANCHORED) ** 0.5)


def test_halving_the_batch_leaves_the_expected_update_unchanged():
    x, y = regression_data()
    task = linear_task().bind(len(x), x)
    members = task.new_members(3, seed=0)

    def score(rows: slice) -> dict[str, Tensor]:
        batch = Batch(x[rows], y[rows].unsqueeze(1))
        return task.log_joint_gradient(be.Vmap().gradients(task.mean_log_likelihood, members, batch)[1], members.params)

    whole, first, second = score(slice(None)), score(slice(0, 6)), score(slice(6, 12))
    for name in whole:
        torch.testing.assert_close((first[name] + second[name]) / 2, whole[name])


def test_the_score_is_the_gradient_of_the_log_joint():
    x, y = regression_data()
    task = linear_task(temperature=0.5).bind(len(x), x)
    members = task.new_members(2, seed=0)
    values, gradients = be.Loop().gradients(task.mean_log_likelihood, members, Batch(x, y.unsqueeze(1)))
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in members.params.items()}
    outputs = torch.einsum("mof,nf->mno", leaves["weight"], x) + leaves["bias"][:, None]
    log_likelihood = torch.distributions.Normal(outputs, NOISE).log_prob(y[:, None]).sum((1, 2))
    log_prior = sum(
        torch.distributions.Normal(0.0, PRIOR_STD).log_prob(leaf).flatten(1).sum(1) for leaf in leaves.values()
    )
    log_joint = (log_likelihood + log_prior) / 0.5
    torch.testing.assert_close(task.log_joint(values, members.params), log_joint.detach())
    expected = torch.autograd.grad(log_joint.sum(), list(leaves.values()))
    scores = task.log_joint_gradient(gradients, members.params)
    for name, slope in zip(leaves, expected, strict=True):
        torch.testing.assert_close(scores[name], slope)
