"""Distributions that are known by quantiles: proper ones, with the quantiles they are made of."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import against_scipy
from bayesemble.predictive import QuantilePredictive
from mixtures import WEIGHTS

LEVELS = (0.1, 0.2, 0.5, 0.9)


def random_quantiles(generator, shape=(3, 6)):
    lowest = torch.randn(shape, generator=generator, dtype=torch.float64)
    gaps = torch.rand(*shape, 3, generator=generator, dtype=torch.float64) + 0.1
    return QuantilePredictive(torch.tensor(WEIGHTS, dtype=torch.float64), lowest, gaps, LEVELS)


@pytest.mark.parametrize("index", range(4))
def test_each_member_has_the_quantiles_it_is_made_of(index, generator):
    predictive = random_quantiles(generator)
    for member in range(3):
        one = predictive.member(member)
        own = predictive.member_quantiles[member, :, index]
        torch.testing.assert_close(one.quantile(LEVELS[index]), own)
        torch.testing.assert_close(one.cdf(own), torch.full_like(own, LEVELS[index]))


def test_the_density_is_proper_and_has_these_moments(generator):
    one = random_quantiles(generator, (3, 1)).member(1)
    knots = one.member_quantiles.flatten().tolist()

    def moment(power):
        ends = [knots[0] - 40, *knots, knots[-1] + 40]
        density = lambda y: y**power * float(one.log_prob([y]).exp())  # noqa: E731
        return sum(scipy.integrate.quad(density, low, high)[0] for low, high in pairwise(ends))

    assert moment(0) == pytest.approx(1, abs=1e-6)
    assert moment(1) == pytest.approx(one.mean.item(), abs=1e-5)
    assert moment(2) - moment(1) ** 2 == pytest.approx(one.variance.item(), abs=1e-4)


def test_the_density_is_the_slope_of_the_distribution_function(generator):
    predictive = random_quantiles(generator)
    values = torch.tensor([-8.0, -1.0, 0.1, 0.7, 1.3, 9.0], dtype=torch.float64)
    slopes = (predictive.member_cdf(values + 1e-6) - predictive.member_cdf(values - 1e-6)) / 2e-6
    torch.testing.assert_close(predictive.member_log_density(values).exp(), slopes, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("level", [0.001, 0.05, 0.1, 0.5, 0.9, 0.999])
def test_quantiles_of_the_mixture_undo_its_distribution_function(level, generator):
    against_scipy.quantiles_invert(random_quantiles(generator), level)


def test_draws_are_those_of_the_mixture(generator):
    against_scipy.draws_fit(random_quantiles(generator))


def test_variance_is_inside_and_between_members(generator):
    predictive = random_quantiles(generator)
    weights, means = np.array(WEIGHTS), predictive.member_mean.numpy()
    between = weights @ np.square(means - weights @ means)
    np.testing.assert_allclose(predictive.epistemic, between)
    np.testing.assert_allclose(predictive.variance, weights @ predictive.member_variance.numpy() + between)


def test_reduced_it_keeps_moments_and_the_quantiles_of_the_mixture(generator):
    predictive = random_quantiles(generator)
    one = predictive.reduce()
    for name in ("mean", "variance", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(one, name), getattr(predictive, name))
    for level in LEVELS:
        torch.testing.assert_close(one.quantile(level), predictive.quantile(level))


def test_several_outputs_are_read_one_by_one(generator):
    predictive = random_quantiles(generator, (3, 6, 2))
    values = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    for output in range(2):
        one = QuantilePredictive(
            predictive.weights, predictive.lowest[..., output], predictive.gaps[..., output, :], LEVELS
        )
        torch.testing.assert_close(predictive.cdf(values)[:, output], one.cdf(values[:, output]))
        torch.testing.assert_close(predictive.quantile(0.3)[:, output], one.quantile(0.3))


def test_many_quantiles_of_a_normal_are_that_normal():
    levels = tuple(np.linspace(0.005, 0.995, 199))
    normal = scipy.stats.norm(1, 2)
    own = torch.as_tensor(normal.ppf(levels))
    predictive = QuantilePredictive(torch.ones(1), own[None, :1], own.diff()[None, None], levels)
    assert predictive.mean.item() == pytest.approx(1, abs=1e-6)
    assert predictive.std.item() == pytest.approx(2, rel=0.01)
    assert predictive.log_prob([0.3]).item() == pytest.approx(normal.logpdf(0.3), abs=0.02)
