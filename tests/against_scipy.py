"""Mixtures whose members are distributions of scipy: what a predictive says of them is what scipy says."""

import numpy as np
import torch

from bayesemble.predictive import CountPredictive, RealPredictive


def agree(predictive: RealPredictive, members: list, values: np.ndarray) -> None:
    """Densities, distribution functions and moments of members `(row,)` and of their mixture, at values `(row,)`."""
    log_density = "logpmf" if isinstance(predictive, CountPredictive) else "logpdf"
    weights, given = predictive.weights.numpy(), torch.as_tensor(values, dtype=torch.float64)
    logs = np.stack([getattr(member, log_density)(values) for member in members])
    cdfs, means, variances = (np.stack([getattr(one, name)(*at) for one in members]) for name, at in _asked(values))
    np.testing.assert_allclose(predictive.member_log_density(given), logs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predictive.log_prob(given), np.log(weights @ np.exp(logs)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predictive.member_cdf(given), cdfs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(predictive.cdf(given), weights @ cdfs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(predictive.member_mean, means, rtol=1e-9)
    np.testing.assert_allclose(predictive.member_variance, variances, rtol=1e-8)
    between = weights @ np.square(means - weights @ means)
    np.testing.assert_allclose(predictive.epistemic, between, rtol=1e-8)
    np.testing.assert_allclose(predictive.variance, weights @ variances + between, rtol=1e-8)


def _asked(values):
    return [("cdf", (values,)), ("mean", ()), ("var", ())]


def quantiles_invert(predictive: RealPredictive, level: float) -> None:
    """The distribution function of a quantile is its level; of counts, the first whose function reaches it."""
    found = predictive.quantile(level)
    if isinstance(predictive, CountPredictive):
        assert (predictive.cdf(found) >= level).all()
        assert (predictive.cdf(found - 1) < level).all()
    else:
        torch.testing.assert_close(predictive.cdf(found), torch.full_like(found, level), rtol=1e-7, atol=1e-9)


def reduces(predictive: RealPredictive) -> None:
    """One distribution of the same kind has the moments of the mixture."""
    one = predictive.reduce()
    assert one.num_members == 1
    torch.testing.assert_close(one.mean, predictive.mean)
    torch.testing.assert_close(one.variance, predictive.variance)
    torch.testing.assert_close(one.epistemic, predictive.epistemic)
    torch.testing.assert_close(one.member_variance[0], predictive.variance, rtol=1e-6, atol=0)


def draws_fit(predictive: RealPredictive, num: int = 4000) -> None:
    """Draws have the mean, the variance and the intervals of the mixture, as far as chance allows."""
    drawn = predictive.sample(num, torch.Generator().manual_seed(0)).double()
    error = (predictive.variance / num).sqrt()
    assert ((drawn.mean(0) - predictive.mean).abs() < 5 * error).all()
    low, high = predictive.interval(0.8)
    inside = ((drawn >= low) & (drawn <= high)).double().mean(0)
    if isinstance(predictive, CountPredictive):
        expected = predictive.cdf(high) - predictive.cdf(low - 1)
    else:
        expected = torch.full_like(inside, 0.8)
    assert ((inside - expected).abs() < 5 * (0.16 / num) ** 0.5).all()
