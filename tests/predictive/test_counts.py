"""Mixtures of counts against scipy, and their digits for large and tiny numbers."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

import against_scipy
from bayesemble.predictive import NegativeBinomialPredictive, ZeroInflatedPoissonPredictive
from bayesemble.predictive.counts import log_negative_binomial, log_poisson, log_zero_inflated, stirling_remainder
from helpers import poissons
from mixtures import WEIGHTS, random_poissons

RATES = [[0.0, 0.1, 0.7, 1.0, 3.3, 20.0, 500.0, 1e5]]
COUNTS = np.array([0, 1, 2, 5, 10, 40])
LEVELS = pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.9, 0.999])


def negative_binomials(generator):
    means, sizes = (torch.randn(3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return NegativeBinomialPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), (means + 1.5).exp(), sizes.exp())


def zero_inflated(generator):
    rates, logits = (torch.randn(3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return ZeroInflatedPoissonPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), (rates + 1).exp(), logits)


class ZeroInflated:
    """Zero-inflated Poisson distributions by scipy's Poisson and numpy."""

    def __init__(self, rates, logits):
        self.extra, self.inside = 1 / (1 + np.exp(-logits)), scipy.stats.poisson(rates)

    def logpmf(self, counts):
        return np.log(self.extra * (counts == 0) + (1 - self.extra) * self.inside.pmf(counts))

    def cdf(self, counts):
        return self.extra + (1 - self.extra) * self.inside.cdf(counts)

    def mean(self):
        return (1 - self.extra) * self.inside.mean()

    def var(self):
        return (1 - self.extra) * (self.inside.var() + self.inside.mean() ** 2) - self.mean() ** 2


def test_negative_binomials_are_those_of_scipy(generator):
    predictive = negative_binomials(generator)
    means, sizes = predictive.means.numpy(), predictive.sizes.numpy()
    members = [scipy.stats.nbinom(size, size / (size + mean)) for mean, size in zip(means, sizes, strict=True)]
    against_scipy.agree(predictive, members, COUNTS)


def test_zero_inflated_poissons_are_those_of_scipy(generator):
    predictive = zero_inflated(generator)
    pairs = zip(predictive.rates.numpy(), predictive.zero_logits.numpy(), strict=True)
    members = [ZeroInflated(rates, logits) for rates, logits in pairs]
    against_scipy.agree(predictive, members, COUNTS)


@pytest.mark.parametrize("make", [negative_binomials, zero_inflated])
class TestEach:
    @LEVELS
    def test_quantiles_are_the_first_counts_that_reach_the_level(self, make, level, generator):
        against_scipy.quantiles_invert(make(generator), level)

    def test_reduced_they_have_the_moments_of_the_mixture(self, make, generator):
        against_scipy.reduces(make(generator))

    def test_draws_are_counts_of_the_mixture(self, make, generator):
        against_scipy.draws_fit(make(generator))

    def test_nothing_lies_below_0(self, make, generator):
        assert (make(generator).cdf(np.full(6, -0.5)) == 0).all()
        assert (make(generator).quantile(1e-9) == 0).all()


# --- digits ---


@pytest.mark.parametrize("count", [0.0, 1.0, 7.0, 1e3, 1e6])
@pytest.mark.parametrize("size", [1e-6, 0.3, 5.0, 1e4, 1e8])
def test_single_precision_has_the_digits_of_the_negative_binomial(count, size):
    """By the usual formula, differences of numbers as large as 1e7 are left with an error of 1 in single precision."""
    means = np.array([0.5, 1.0, 1.01, 2.0]) * max(count, 1.0)
    expected = scipy.stats.nbinom.logpmf(count, size, size / (size + means))
    single = [torch.tensor(part, dtype=torch.float32) for part in (np.full(4, count), np.log(means))]
    found = log_negative_binomial(*single, torch.tensor(math.log(size), dtype=torch.float32))
    slopes = np.abs(count - means) * size / (size + means)  # how much the logarithm of the mean moves it
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5 + 2e-6 * slopes.max())


@pytest.mark.parametrize("count", [0.0, 1.0, 9.0, 1e3, 1e6])
def test_single_precision_has_the_digits_of_the_poisson(count):
    rates = np.array([0.5, 1.0, 1.001, 2.0]) * max(count, 1.0)
    single = [torch.tensor(part, dtype=torch.float32) for part in (np.full(4, count), np.log(rates))]
    slopes = np.abs(count - rates)
    expected = scipy.stats.poisson.logpmf(count, rates)
    np.testing.assert_allclose(log_poisson(*single), expected, rtol=2e-5, atol=1e-5 + 2e-6 * slopes.max())


def test_a_huge_size_is_a_poisson():
    counts, log_means = torch.arange(5.0).double(), torch.full((5,), 0.7).double()
    torch.testing.assert_close(
        log_negative_binomial(counts, log_means, torch.tensor(25.0).double()), log_poisson(counts, log_means)
    )


def test_the_remainder_of_stirlings_formula():
    values = torch.tensor([1e-8, 0.1, 1.0, 7.99, 8.01, 100.0], dtype=torch.float64)
    leading = (values - 0.5) * values.log() - values + math.log(2 * math.pi) / 2
    torch.testing.assert_close(stirling_remainder(values) + leading, torch.lgamma(values), rtol=1e-10, atol=1e-11)
    assert stirling_remainder(torch.tensor(1e20)).item() == pytest.approx(1 / 12e20)


@pytest.mark.parametrize("function", [log_negative_binomial, log_zero_inflated])
def test_gradients_are_right(function, generator):
    counts = torch.tensor([0.0, 1.0, 3.0, 50.0, 20.0], dtype=torch.float64)
    parts = [torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    near = torch.tensor([-3.0, 0.0, 1.1, 3.9, 3.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda first, second: function(counts, first, second), tuple(parts))
    torch.autograd.gradcheck(lambda first, second: function(counts, first, second), (near, parts[1]))


@pytest.mark.parametrize("function", [log_negative_binomial, log_zero_inflated])
@pytest.mark.parametrize("count", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("first", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("second", [-20.0, 20.0])
def test_extreme_parameters_have_finite_values_and_slopes_in_single_precision(function, count, first, second):
    parts = [torch.tensor(value, requires_grad=True) for value in (first, second)]
    value = function(torch.tensor(count), *parts)
    value.backward()
    assert all(torch.isfinite(number) for number in (value, *(part.grad for part in parts)))


# --- Poisson ---


@pytest.mark.parametrize("level", [0.001, 0.05, 0.31, 0.5, 0.9, 0.999])
def test_quantiles_of_one_poisson_are_those_of_scipy(level):
    expected = scipy.stats.poisson.ppf(level, RATES[0])
    np.testing.assert_array_equal(poissons(RATES).quantile(level).numpy(), expected)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.77, 0.95])
def test_the_quantile_of_a_poisson_mixture_is_the_first_count_whose_cdf_reaches_the_level(generator, level):
    predictive = random_poissons(generator)
    for row, quantile in enumerate(predictive.quantile(level).tolist()):
        cumulative = WEIGHTS @ scipy.stats.poisson.cdf(np.arange(60), predictive.rates[:, row, None].numpy())
        assert quantile == np.argmax(cumulative >= level)


@pytest.mark.parametrize("value", [-3.0, -0.5, 0.0, 0.5, 2.0, 2.999, 30.0])
def test_the_cdf_of_a_poisson_is_that_of_scipy_between_and_below_the_counts_too(value):
    predictive = poissons(RATES)
    expected = scipy.stats.poisson.cdf(value, RATES[0])
    np.testing.assert_allclose(predictive.cdf(np.full(8, value)).numpy(), expected, atol=1e-14)


def test_probabilities_of_counts_are_mixed_poissons(generator):
    predictive = random_poissons(generator)
    counts = np.array([0, 1, 2, 5, 10, 40])
    expected = np.log(WEIGHTS @ scipy.stats.poisson.pmf(counts, predictive.rates.numpy()))
    np.testing.assert_allclose(predictive.log_prob(counts).numpy(), expected)


def test_a_rate_of_0_is_certain_of_the_count_0():
    predictive = poissons([[0.0, 0.0]])
    assert predictive.log_prob([0, 1]).tolist() == [0, -math.inf]
    assert predictive.variance.tolist() == [0, 0]
