"""Mixtures of mixtures of normals are mixtures of normals."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import distributions

import against_scipy
from bayesemble.predictive import GaussianMixturePredictive
from mixtures import WEIGHTS


def random_mixtures(generator, outputs=()):
    shares = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64).log_softmax(-1)
    centers, stds = (2 * torch.randn(3, 6, *outputs, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    return GaussianMixturePredictive(torch.tensor(WEIGHTS, dtype=torch.float64), shares, centers, (stds / 4).exp())


class Mixture:
    """Mixtures of normals by scipy."""

    def __init__(self, shares, centers, stds):
        self.shares, self.parts = np.exp(shares), scipy.stats.norm(centers, stds)

    def logpdf(self, values):
        return np.log((self.shares * self.parts.pdf(values[:, None])).sum(-1))

    def cdf(self, values):
        return (self.shares * self.parts.cdf(values[:, None])).sum(-1)

    def mean(self):
        return (self.shares * self.parts.mean()).sum(-1)

    def var(self):
        return (self.shares * (self.parts.var() + self.parts.mean() ** 2)).sum(-1) - self.mean() ** 2


def test_members_and_mixture_are_those_of_scipy(generator):
    predictive = random_mixtures(generator)
    parts = (predictive.log_shares.numpy(), predictive.centers.numpy(), predictive.stds.numpy())
    members = [Mixture(*own) for own in zip(*parts, strict=True)]
    against_scipy.agree(predictive, members, np.linspace(-4, 4, 6))


@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.9, 0.999])
def test_quantiles_undo_the_distribution_function(level, generator):
    against_scipy.quantiles_invert(random_mixtures(generator), level)


def test_reduced_it_has_the_moments_of_the_mixture(generator):
    against_scipy.reduces(random_mixtures(generator))
    against_scipy.reduces(random_mixtures(generator, (3,)))


def test_draws_are_those_of_the_mixture(generator):
    against_scipy.draws_fit(random_mixtures(generator))


def test_outputs_of_a_row_share_their_component(generator):
    predictive = random_mixtures(generator, (3,))
    values = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    components = distributions.Independent(distributions.Normal(predictive.centers.mT, predictive.stds.mT), 1)
    joint = distributions.MixtureSameFamily(distributions.Categorical(logits=predictive.log_shares), components)
    torch.testing.assert_close(predictive.member_log_prob(values), joint.log_prob(values))
    drawn = predictive.member(0).sample(20_000, generator)[:, 0]
    shares, centers = predictive.log_shares[0, 0].exp(), predictive.centers[0, 0]
    away = centers - (shares * centers).sum(-1, keepdim=True)
    covariance = (shares * away) @ away.T + torch.diag((shares * predictive.stds[0, 0].square()).sum(-1))
    torch.testing.assert_close(torch.cov(drawn.T), covariance, rtol=0.06, atol=0.06)


def test_a_component_without_a_share_says_nothing():
    shares = torch.tensor([[[0.0, -torch.inf]]]).double()
    centers, stds = torch.tensor([[[1.0, 50.0]]]).double(), torch.ones(1, 1, 2).double()
    predictive = GaussianMixturePredictive(torch.ones(1).double(), shares, centers, stds)
    assert predictive.mean.item() == 1
    assert predictive.log_prob([1.0]).item() == pytest.approx(scipy.stats.norm.logpdf(0))
