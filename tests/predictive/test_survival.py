"""Mixtures of Weibull and log-normal times against scipy, and what censored times say."""

import numpy as np
import pytest
import scipy.stats
import torch

import against_scipy
import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.predictive import LogNormalPredictive, WeibullPredictive
from bayesemble.predictive.survival import log_ndtr
from mixtures import WEIGHTS

TIMES = np.array([0.01, 0.3, 1.0, 2.0, 10.0, 40.0])


def weibulls(generator):
    scales, shapes = (torch.randn(3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return WeibullPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), scales, (shapes / 2).exp())


def log_normals(generator):
    locations, scales = (torch.randn(3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return LogNormalPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), locations, (scales / 2).exp())


def members_of(predictive):
    if isinstance(predictive, WeibullPredictive):
        pairs = zip(predictive.log_scales.numpy(), predictive.shapes.numpy(), strict=True)
        return [scipy.stats.weibull_min(shape, scale=np.exp(scale)) for scale, shape in pairs]
    pairs = zip(predictive.locations.numpy(), predictive.scales.numpy(), strict=True)
    return [scipy.stats.lognorm(scale, scale=np.exp(location)) for location, scale in pairs]


@pytest.mark.parametrize("make", [weibulls, log_normals])
class TestEach:
    def test_members_and_mixture_are_those_of_scipy(self, make, generator):
        predictive = make(generator)
        against_scipy.agree(predictive, members_of(predictive), TIMES)

    @pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.9, 0.999])
    def test_quantiles_undo_the_distribution_function(self, make, level, generator):
        against_scipy.quantiles_invert(make(generator), level)

    def test_reduced_they_have_the_moments_of_the_mixture(self, make, generator):
        against_scipy.reduces(make(generator))

    def test_draws_are_those_of_the_mixture(self, make, generator):
        predictive = make(generator)
        against_scipy.draws_fit(predictive)
        assert (predictive.sample(100, generator) > 0).all()

    def test_a_censored_time_has_the_probability_of_more(self, make, generator):
        predictive = make(generator)
        seen = np.array([1, 0, 0, 1, 0, 0])
        targets = np.stack([TIMES, seen], axis=1)
        survival = np.stack([member.sf(TIMES) for member in members_of(predictive)])
        expected = np.where(seen, predictive.log_prob(TIMES), np.log(WEIGHTS @ survival))
        np.testing.assert_allclose(predictive.log_prob(targets), expected, rtol=1e-9)
        np.testing.assert_allclose(predictive.survival(TIMES), WEIGHTS @ survival)
        own = np.broadcast_to(targets, (3, 6, 2))
        torch.testing.assert_close(predictive.member_log_prob(own), predictive.member_log_prob(targets))

    def test_no_time_lies_before_0(self, make, generator):
        predictive = make(generator)
        assert (predictive.cdf(np.zeros(6)) == 0).all()
        assert (predictive.cdf(np.full(6, -1.0)) == 0).all()


def test_targets_of_another_shape_are_refused(generator):
    with pytest.raises(DataError, match=r"targets must have shape \(6,\)"):
        weibulls(generator).log_prob(np.ones((6, 3)))


def test_scores_of_censored_times_spread_what_is_not_known(generator):
    """Censored at any time, right predictions have even PIT values, and intervals that hold their share."""
    rows = 20_000
    predictive = WeibullPredictive(
        torch.ones(1).double(), torch.zeros(1, rows).double(), torch.full((1, rows), 1.7).double()
    )
    events = predictive.sample(1, generator)[0]
    censoring = torch.empty(rows, dtype=torch.float64).exponential_(generator=generator)
    targets = torch.stack([torch.minimum(events, censoring), (events <= censoring).double()], dim=1)
    assert 0.3 < float(targets[:, 1].mean()) < 0.7
    assert be.metrics.coverage(predictive, targets, 0.8) == pytest.approx(0.8, abs=0.015)
    assert be.metrics.interval_coverage(predictive, targets, [0.8]).observed.item() == pytest.approx(0.8, abs=0.015)
    assert be.metrics.quantile_calibration_error(predictive, targets) < 0.01
    values = be.metrics.pit(predictive, targets, generator)
    assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3
    biased = WeibullPredictive(predictive.weights, predictive.log_scales - 1, predictive.shapes)
    assert be.metrics.quantile_calibration_error(biased, targets) > 0.1


def test_the_logarithm_of_the_normal_distribution_function_is_that_of_scipy():
    values = torch.tensor([-300.0, -40.0, -5.0, -1.0, -0.999, 0.0, 3.0, 30.0], dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(log_ndtr(values).detach(), scipy.special.log_ndtr(values.detach().numpy()), rtol=1e-12)
    torch.autograd.gradcheck(log_ndtr, values[2:7].detach().requires_grad_())
    single = values.detach().float().requires_grad_()
    log_ndtr(single).sum().backward()
    assert torch.isfinite(single.grad).all()
