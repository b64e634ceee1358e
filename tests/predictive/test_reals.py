"""Mixtures of normals against torch.distributions and scipy."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import distributions

from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import NormalPredictive, Predictive
from mixtures import WEIGHTS, random_normals, random_poissons


def mixture_of(predictive):
    """The same mixture of normals by torch.distributions, batched over rows."""
    weights = distributions.Categorical(predictive.weights.expand(predictive.num_rows, -1))
    members = distributions.Normal(predictive.means.T, predictive.stds.T)
    return distributions.MixtureSameFamily(weights, members)


# --- real numbers ---


def test_moments_of_a_mixture_of_normals_are_those_of_torch_distributions(generator):
    predictive = random_normals(generator)
    torch.testing.assert_close(predictive.mean, mixture_of(predictive).mean)
    torch.testing.assert_close(predictive.variance, mixture_of(predictive).variance)
    torch.testing.assert_close(predictive.std, mixture_of(predictive).stddev)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_the_second_moment_less_the_squared_mean_is_aleatoric_plus_epistemic_variance(make, generator):
    predictive = make(generator)
    weights = torch.tensor(WEIGHTS).double()
    second_moment = weights @ (predictive.member_variance + predictive.member_mean.square())
    torch.testing.assert_close(predictive.variance, second_moment - predictive.mean.square())
    torch.testing.assert_close(predictive.aleatoric, weights @ predictive.member_variance)
    torch.testing.assert_close(predictive.epistemic, predictive.variance - predictive.aleatoric)


def test_density_and_cdf_of_a_mixture_of_normals_are_those_of_torch_distributions(generator):
    predictive = random_normals(generator)
    values = 3 * torch.randn(6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(predictive.log_prob(values), mixture_of(predictive).log_prob(values))
    torch.testing.assert_close(predictive.cdf(values), mixture_of(predictive).cdf(values))


def test_the_density_of_a_target_hundreds_of_standard_deviations_away_stays_finite():
    predictive = Predictive.from_normal(np.zeros((2, 1)), np.ones((2, 1)))
    assert predictive.log_prob([500.0]).item() == pytest.approx(scipy.stats.norm.logpdf(500.0))


@pytest.mark.parametrize("level", [1e-6, 0.05, 0.5, 0.9, 1 - 1e-6])
def test_quantiles_of_a_mixture_of_normals_invert_its_cdf(generator, level):
    predictive = random_normals(generator)
    for row, quantile in enumerate(predictive.quantile(level).tolist()):
        means, stds = predictive.means[:, row].numpy(), predictive.stds[:, row].numpy()

        def excess(value, means=means, stds=stds):
            return WEIGHTS @ scipy.stats.norm.cdf(value, means, stds) - level

        assert quantile == pytest.approx(scipy.optimize.brentq(excess, -50, 50, xtol=1e-13), abs=1e-8)


@pytest.mark.parametrize("level", [1e-12, 0.1, 0.5, 0.975])
def test_the_quantile_of_one_member_is_that_of_a_normal(level):
    predictive = Predictive.from_normal([1.0, -2.0], [0.5, 3.0])
    expected = scipy.stats.norm.ppf(level, [1.0, -2.0], [0.5, 3.0])
    np.testing.assert_allclose(predictive.quantile(level).numpy(), expected)


def test_quantiles_of_far_modes_lie_in_the_modes():
    predictive = Predictive.from_normal([[-1000.0], [1000.0]], 1.0)
    low, high = predictive.interval(0.5)
    assert (low.item(), high.item()) == pytest.approx((-1000, 1000))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_central_interval_leaves_half_of_the_rest_on_each_side(generator, level):
    predictive = random_normals(generator)
    low, high = predictive.interval(level)
    tail = torch.full((6,), (1 - level) / 2, dtype=torch.float64)
    torch.testing.assert_close(predictive.cdf(low), tail)
    torch.testing.assert_close(1 - predictive.cdf(high), tail)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_level_that_is_no_probability_is_refused(make, level, generator):
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        make(generator).quantile(level)


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_draws_have_the_moments_of_the_mixture(make, generator):
    predictive = make(generator)
    draws = predictive.sample(40_000, generator)
    torch.testing.assert_close(draws.mean(0), predictive.mean, atol=0.05, rtol=0.02)
    torch.testing.assert_close(draws.var(0), predictive.variance, atol=0.05, rtol=0.05)


def test_a_draw_of_real_numbers_is_one_function_plus_noise(generator):
    predictive = Predictive.from_normal([[-100.0] * 3, [100.0] * 3], 1.0)
    signs = predictive.sample(50, generator).sign()
    assert (signs == signs[:, :1]).all()
    assert len(signs[:, 0].unique()) == 2


def test_one_member_of_real_numbers_has_no_epistemic_variance(generator):
    predictive = random_normals(generator, (1, 6), weights=None)
    assert torch.equal(predictive.epistemic, torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(predictive.std, predictive.stds[0])
    torch.testing.assert_close(predictive.mean, predictive.means[0])


def in_closed_form(generator: torch.Generator) -> tuple[NormalPredictive, NormalPredictive]:
    """Two members whose means are normal, and the mixture of many networks that they stand for: at Hermite's nodes."""
    means, noise, stds = (torch.rand(2, 5, generator=generator).double() + 0.5 for _ in range(3))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    exact = NormalPredictive(weights, means, (noise**2 + stds**2).sqrt(), mean_variance=stds**2)
    nodes, shares = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(60))
    spread = means + stds * nodes[:, None, None]
    shares = (shares / shares.sum())[:, None] * weights
    many = NormalPredictive(shares.flatten(), spread.flatten(0, 1), noise.expand(60, -1, -1).flatten(0, 1))
    return exact, many


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one,
        lambda one: one.rescale(3.0, -2.0),
        lambda one: one.reduce(),
        lambda one: one.rescale(3.0, -2.0).reduce(),
        lambda one: one.reduce().rescale(3.0, -2.0),
        lambda one: type(one).concat([one, one]),
        lambda one: one.reweight(one.weights).double(),
    ],
)
def test_a_member_in_closed_form_is_the_limit_of_many_networks(change, generator):
    exact, many = (change(one) for one in in_closed_form(generator))
    for name in ("mean", "aleatoric", "epistemic", "variance"):
        torch.testing.assert_close(getattr(exact, name), getattr(many, name), msg=name)
    targets = exact.mean + 0.3
    torch.testing.assert_close(exact.log_prob(targets), many.log_prob(targets), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(exact.cdf(targets), many.cdf(targets), rtol=1e-6, atol=1e-6)


def test_one_member_in_closed_form_has_its_own_epistemic_variance(generator):
    exact, _ = in_closed_form(generator)
    assert torch.equal(exact.member(1).epistemic, exact.mean_variance[1])
    stretched = exact.member(1).stretch(3.0)
    torch.testing.assert_close(stretched.epistemic, 9 * exact.mean_variance[1])
    torch.testing.assert_close(stretched.std, 3 * exact.stds[1])
    torch.testing.assert_close(stretched.aleatoric, 9 * exact.member(1).aleatoric)


def test_several_real_outputs_are_summed_in_the_log_density_of_a_member(generator):
    predictive = random_normals(generator, (3, 5, 2))
    values = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    each = distributions.Normal(predictive.means, predictive.stds).log_prob(values).sum(-1)
    torch.testing.assert_close(predictive.member_log_prob(values), each)
    assert predictive.mean.shape == predictive.variance.shape == predictive.quantile(0.3).shape == (5, 2)


def test_rescaling_is_a_change_of_variables(generator):
    predictive = random_normals(generator)
    values = torch.randn(6, generator=generator, dtype=torch.float64)
    scaled = predictive.rescale(shift=5.0, scale=3.0)
    torch.testing.assert_close(scaled.mean, 5 + 3 * predictive.mean)
    torch.testing.assert_close(scaled.quantile(0.2), 5 + 3 * predictive.quantile(0.2))
    torch.testing.assert_close(scaled.log_prob(5 + 3 * values), predictive.log_prob(values) - math.log(3))
    reduced = predictive.reduce().rescale(5.0, 3.0)
    for part in ("aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(scaled, part), 9 * getattr(predictive, part))
        torch.testing.assert_close(getattr(reduced, part), 9 * getattr(predictive, part))


def test_a_negative_scale_turns_the_distribution_around(generator):
    predictive = random_normals(generator)
    values = torch.randn(6, generator=generator, dtype=torch.float64)
    turned = predictive.rescale(shift=5.0, scale=-2.0)
    torch.testing.assert_close(turned.mean, 5 - 2 * predictive.mean)
    torch.testing.assert_close(turned.variance, 4 * predictive.variance)
    torch.testing.assert_close(turned.quantile(0.2), 5 - 2 * predictive.quantile(0.8))
    torch.testing.assert_close(turned.cdf(5 - 2 * values), 1 - predictive.cdf(values))
    torch.testing.assert_close(turned.log_prob(5 - 2 * values), predictive.log_prob(values) - math.log(2))


def test_targets_given_as_a_list_are_as_precise_as_the_prediction():
    predictive = Predictive.from_normal([0.1], [1e-9])
    assert predictive.log_prob([0.1]).item() == pytest.approx(-math.log(1e-9) - math.log(2 * math.pi) / 2)
    assert predictive.cdf([0.1]).item() == 0.5


# --- reduced ---


@pytest.mark.parametrize("make", [random_normals, random_poissons])
def test_reduced_real_predictions_keep_mean_and_both_variances(make, generator):
    predictive = make(generator)
    for name in ("mean", "aleatoric", "epistemic", "variance", "std"):
        torch.testing.assert_close(getattr(predictive.reduce(), name), getattr(predictive, name))


def test_a_reduced_mixture_of_normals_has_the_quantiles_of_the_normal_with_its_moments(generator):
    predictive = random_normals(generator)
    expected = scipy.stats.norm.ppf(0.8, predictive.mean.numpy(), predictive.std.numpy())
    np.testing.assert_allclose(predictive.reduce().quantile(0.8).numpy(), expected)


# --- predictions of other models ---


def test_one_standard_deviation_serves_all_means():
    predictive = Predictive.from_normal([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], 0.5)
    assert isinstance(predictive, NormalPredictive)
    assert predictive.aleatoric.tolist() == [0.25] * 3
    assert predictive.epistemic.tolist() == [0.25] * 3


@pytest.mark.parametrize("std", [np.ones(2), np.ones((3, 1)), np.ones((1, 2, 3))], ids=np.shape)
def test_a_standard_deviation_that_does_not_broadcast_is_refused(std):
    shape = str(std.shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DataError, match=rf"std of shape {shape} does not fit means \(2, 3\)"):
        Predictive.from_normal(np.zeros((2, 3)), std)


@pytest.mark.parametrize("std", [0.0, -1.0])
def test_standard_deviations_must_be_positive(std):
    with pytest.raises(DataError, match=f"must be positive, the smallest is {std:g}"):
        Predictive.from_normal([0.0, 0.0], [1.0, std])


# --- numbers at the edge of single precision ---


@pytest.mark.parametrize("shift", [1e30, 3e37])
def test_a_standard_deviation_is_finite_where_its_square_is_not(shift):
    means = torch.tensor([[0.0, shift], [1.0, -shift]])
    predictive = NormalPredictive(torch.tensor([0.5, 0.5]), means, torch.ones(2, 2))
    torch.testing.assert_close(predictive.std, torch.tensor([math.sqrt(1.25), shift]))
    torch.testing.assert_close(predictive.reduce().std, predictive.std)
    low, high = predictive.interval(0.9)
    assert (low[1].isfinite(), high[1].isfinite()) == (True, True)
