import pytest
import torch
from torch import distributions, nn

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.task.likelihoods import MultivariateGaussian


def test_it_is_the_low_rank_normal_of_torch_distributions(generator):
    outputs, targets = (torch.randn(5, num, generator=generator, dtype=torch.float64) for num in (12, 3))
    means, raw, one, other = outputs.chunk(4, dim=1)
    noise = torch.nn.functional.softplus(raw) + 1e-6
    normal = distributions.LowRankMultivariateNormal(means, torch.stack([one, other], -1), noise)
    torch.testing.assert_close(MultivariateGaussian(2).log_prob(outputs, targets, {}), normal.log_prob(targets))


def test_the_covariance_of_simulated_noise_is_found(generator):
    x = torch.rand(1000, 1, generator=generator)
    noise = torch.randn(1000, 3, generator=generator) @ torch.tensor(
        [[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.5]]
    )
    y = 2 * x + noise
    task = be.Task(lambda: nn.Linear(1, 12), MultivariateGaussian(2), be.NormalPrior(10.0))
    method = be.DeepEnsemble(num_members=2, learning_rate=0.05)
    ensemble = be.fit(task, method, (x, y), epochs=120, batch_size=1000, executor="vmap", progress=False)
    predictive = ensemble.predict(x)
    wanted = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.25]])
    torch.testing.assert_close(predictive.covariance.mean(0), wanted, rtol=0, atol=0.1)
    assert be.metrics.coverage(predictive, y, 0.8) == pytest.approx(0.8, abs=0.03)


def test_a_single_target_is_sent_to_a_simpler_likelihood():
    with pytest.raises(DataError, match=r"use HeteroscedasticGaussian\(\) for a single one"):
        MultivariateGaussian(1).check_targets(torch.zeros(4), (3,))
