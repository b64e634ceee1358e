"""The factorised Gaussian nearest to a Gaussian posterior is known: its mean, and variances 1 / diag(precision)."""

import pytest
import torch

import bayesemble as be
from exact.test_linear_gaussian import linear_task, posterior, regression_data, solution


@pytest.mark.parametrize(("noise", "temperature"), [("local", 1.0), ("plain", 0.25)])
def test_linear_regression_has_the_known_mean_and_factorised_variances(noise, temperature):
    method = be.MeanField(num_members=64, noise=noise, learning_rate=0.05, schedule="cosine", initial_std=0.2)
    task = linear_task(temperature=temperature)
    ensemble = be.fit(task, method, regression_data(), epochs=300, executor="vmap", progress=False)
    mean, covariance = posterior(*regression_data())
    variance = temperature / covariance.inverse().diagonal()
    slot = ensemble.state.slots["log_std"]
    stds = torch.cat([slot["weight"].flatten(1), slot["bias"]], 1).exp()
    # What noise is left in each run averages out over the runs.
    found = solution(ensemble)
    assert (found.mean(0) - mean).abs().lt(4 * found.std(0) / 8).all()
    assert (found.std(0) < 0.25 * variance.sqrt()).all(), "each run is near"
    torch.testing.assert_close(stds.mean(0), variance.sqrt(), rtol=0.02, atol=0)
    # The test can fail: the variances of the posterior itself are larger, for weights that are correlated by 10 %.
    assert (temperature * covariance.diagonal() / variance).sqrt().max() > 1.1
