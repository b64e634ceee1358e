import pytest
import torch
from torch import distributions

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.task.likelihoods import GaussianMixture
from task.likelihoods.simulate import coverage_on_fresh_rows


def two_branches(x, generator):
    side = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return side * (1 + x) + 0.1 * torch.randn(x.shape, generator=generator)


def test_intervals_hold_their_share_of_targets_on_two_branches():
    assert coverage_on_fresh_rows(GaussianMixture(2), 6, two_branches) == pytest.approx(0.8, abs=0.04)


def test_it_is_the_mixture_of_torch_distributions(generator):
    outputs, targets = (torch.randn(5, num, generator=generator, dtype=torch.float64) for num in (15, 2))
    means, raw = outputs[:, 3:9].reshape(5, 2, 3), outputs[:, 9:].reshape(5, 2, 3)
    stds = (torch.nn.functional.softplus(raw) + 1e-6).sqrt()
    normals = distributions.Independent(distributions.Normal(means.mT, stds.mT), 1)
    joint = distributions.MixtureSameFamily(distributions.Categorical(logits=outputs[:, :3]), normals)
    torch.testing.assert_close(GaussianMixture(3).log_prob(outputs, targets, {}), joint.log_prob(targets))


def test_one_component_is_a_heteroscedastic_gaussian(generator):
    outputs, targets = (torch.randn(5, num, generator=generator, dtype=torch.float64) for num in (5, 2))
    expected = be.HeteroscedasticGaussian().log_prob(outputs[:, 1:], targets, {})
    torch.testing.assert_close(GaussianMixture(1).log_prob(outputs, targets, {}), expected)


def test_the_number_of_outputs_is_told():
    with pytest.raises(DataError, match=r"9 outputs for one target and 6 more .*; the network gives 10 per row"):
        GaussianMixture(3).check_targets(torch.zeros(4), (10,))
