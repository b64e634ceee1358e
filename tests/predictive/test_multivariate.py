"""Normals of several numbers against scipy's, and the law of total covariance."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

import bayesemble as be
from bayesemble.predictive import MultivariateNormalPredictive
from bayesemble.predictive.multivariate import log_low_rank_normal
from mixtures import WEIGHTS


def random_normals(generator, rank=2, outputs=3):
    means, noise = (torch.randn(3, 6, outputs, generator=generator, dtype=torch.float64) for _ in range(2))
    factors = torch.randn(3, 6, outputs, rank, generator=generator, dtype=torch.float64)
    stds = (noise.exp() + factors.square().sum(-1)).sqrt()
    return MultivariateNormalPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), means, stds, noise.exp(), factors)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_densities_of_all_outputs_together_are_those_of_scipy(rank, generator):
    predictive, values = random_normals(generator, rank), torch.randn(6, 3, generator=generator, dtype=torch.float64)
    for member in range(3):
        for row in range(6):
            normal = scipy.stats.multivariate_normal(
                predictive.means[member, row], predictive.member_covariance[member, row]
            )
            assert float(predictive.member_log_prob(values)[member, row]) == pytest.approx(normal.logpdf(values[row]))
    expected = np.log(WEIGHTS @ predictive.member_log_prob(values).exp().numpy())
    np.testing.assert_allclose(predictive.log_prob(values), expected)


def test_covariances_inside_and_between_members_add_up(generator):
    predictive = random_normals(generator)
    means, weights = predictive.means.numpy(), np.array(WEIGHTS)
    within = np.einsum("m,mrij->rij", weights, predictive.member_covariance.numpy())
    away = means - np.einsum("m,mri->ri", weights, means)
    between = np.einsum("m,mri,mrj->rij", weights, away, away)
    np.testing.assert_allclose(predictive.covariance, within + between)
    torch.testing.assert_close(predictive.covariance.diagonal(dim1=1, dim2=2), predictive.variance)
    torch.testing.assert_close(predictive.variance, predictive.aleatoric + predictive.epistemic)


def test_draws_have_the_covariance(generator):
    predictive = random_normals(generator)
    drawn = predictive.sample(20_000, generator)
    torch.testing.assert_close(torch.cov(drawn[:, 2].T), predictive.covariance[2], rtol=0.1, atol=0.1)


def test_reduced_it_keeps_mean_and_covariance(generator):
    predictive = random_normals(generator, rank=1)
    one = predictive.reduce()
    torch.testing.assert_close(one.mean, predictive.mean)
    torch.testing.assert_close(one.covariance, predictive.covariance)
    normal = scipy.stats.multivariate_normal(predictive.mean[1], predictive.covariance[1])
    assert float(one.log_prob(np.zeros((6, 3)))[1]) == pytest.approx(normal.logpdf(np.zeros(3)))


@pytest.mark.parametrize("scale", [2.0, [0.5, 1.0, 3.0]])
def test_rescaling_is_a_change_of_variables(scale, generator):
    predictive, values = random_normals(generator), torch.randn(6, 3, generator=generator, dtype=torch.float64)
    scales = torch.as_tensor(scale, dtype=torch.float64).expand(3)
    other = predictive.rescale(1.0, scale)
    expected = predictive.log_prob(values) - scales.log().sum()
    torch.testing.assert_close(other.log_prob(1 + scales * values), expected)
    torch.testing.assert_close(other.covariance.diagonal(dim1=1, dim2=2), other.variance)


def test_a_stretch_is_that_of_all_standard_deviations(generator):
    predictive = random_normals(generator)
    torch.testing.assert_close(predictive.stretch(2.0).member_covariance, 4 * predictive.member_covariance)
    torch.testing.assert_close(predictive.stretch(2.0).stds, 2 * predictive.stds)


def test_the_energy_score_sees_correlations(generator):
    predictive = random_normals(generator, rank=1).member(0)
    strong = replace(predictive, noise=torch.full_like(predictive.noise, 1e-3))
    alone = replace(strong, noise=strong.noise + strong.factors.square().sum(-1), factors=0 * strong.factors)
    rows = strong.take_rows([0] * 400), alone.take_rows([0] * 400)
    targets = torch.stack([rows[0].take_rows([0]).sample(1, generator)[0, 0] for _ in range(400)])
    assert be.metrics.energy_score(rows[0], targets) < be.metrics.energy_score(rows[1], targets)


def test_gradients_are_right_and_finite_for_tiny_noise(generator):
    away = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    noise = torch.rand(4, 3, generator=generator, dtype=torch.float64).add(0.1).requires_grad_()
    factors = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(log_low_rank_normal, (away, noise, factors))
    single = [part.detach().float().requires_grad_() for part in (away, noise * 1e-6, 100 * factors)]
    value = log_low_rank_normal(*single)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert all(torch.isfinite(part.grad).all() for part in single)
    exact = log_low_rank_normal(*(part.detach().double() for part in single))
    torch.testing.assert_close(value.detach().double(), exact, rtol=2e-3, atol=1e-2)
