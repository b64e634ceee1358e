import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from helpers import quick_fit, small_mlp, table

METHODS = {
    "swag": be.SWAG(num_members=2, rank=3, start=0.0, learning_rate=0.05, draws=4000),
    "diagonal": be.SWAG(num_members=1, diagonal=True, start=0.0, learning_rate=0.05, draws=4000),
    "mean_field": be.MeanField(num_members=2, initial_std=0.3, draws=4000),
    "full": be.Laplace(num_members=2, select="all", draws=4000),
    "diag": be.Laplace(num_members=1, select="all", structure="diag", draws=4000),
}


def fitted(method, **options):
    return quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical(), be.NormalPrior()), table(), method, **options)


@pytest.mark.parametrize("name", METHODS)
def test_moments_in_closed_form_are_those_of_many_draws(name):
    ensemble = fitted(METHODS[name])
    prior, drawn = ensemble.as_prior(), ensemble.draw(4000).params
    for leaf, mean in prior.means.items():
        std = prior.stds[leaf]
        assert ((drawn[leaf].mean(0) - mean).abs() < 5 * std / 4000**0.5 + 1e-6).all()
        torch.testing.assert_close(drawn[leaf].std(0), std, rtol=0.1, atol=1e-6)


def test_of_members_it_is_their_mean_and_unbiased_variance():
    ensemble = fitted(be.DeepEnsemble(num_members=4))
    prior, params = ensemble.as_prior(), ensemble.state.members.params
    for name, leaf in params.items():
        torch.testing.assert_close(prior.means[name], leaf.mean(0))
        torch.testing.assert_close(prior.stds[name], leaf.std(0))


def test_members_without_weight_say_nothing():
    ensemble = fitted(be.DeepEnsemble(num_members=3)).reweight([0.5, 0.0, 0.5])
    prior, params = ensemble.as_prior(), ensemble.state.members.params
    torch.testing.assert_close(prior.means["weight"], params["weight"][[0, 2]].mean(0))


def test_what_the_likelihood_learns_has_no_prior():
    x, y = table()
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian("learned"), be.NormalPrior())
    ensemble = quick_fit(task, (x, y.float()), be.DeepEnsemble(num_members=3))
    assert list(ensemble.as_prior().means) == ["weight", "bias"]


def test_weights_without_spread_are_refused_or_held():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical(), be.NormalPrior()), table(), be.Laplace())
    with pytest.raises(
        SettingError, match=r"0\.weight, 0\.bias has weights without any spread .* as_prior\(least=0\.01\)"
    ):
        ensemble.as_prior()
    prior = ensemble.as_prior(least=0.01)
    assert (prior.stds["0.weight"] == 0.01).all()
    assert (prior.stds["2.weight"] > 0.01).all()


def test_a_single_network_has_no_spread():
    with pytest.raises(SettingError, match="a single network has no spread"):
        fitted(be.DeepEnsemble(num_members=1)).as_prior()


def test_the_whole_covariance_is_for_a_method_that_knows_it():
    with pytest.raises(SettingError, match=r"is known of Laplace\(structure='full', select='all'\)"):
        fitted(be.DeepEnsemble(num_members=3)).as_prior(covariance="full")
    with pytest.raises(SettingError, match="covariance is one of diag, full, got 'low'"):
        fitted(be.DeepEnsemble(num_members=3)).as_prior(covariance="low")


def test_the_covariance_of_several_members_is_that_of_their_mixture():
    ensemble = fitted(METHODS["full"])
    prior, drawn = ensemble.as_prior(covariance="full"), ensemble.draw(4000).params
    rows = torch.cat([drawn[name].flatten(1) for name in prior.means], dim=1)
    torch.testing.assert_close(torch.cov(rows.T.double()), prior.covariance, rtol=0.1, atol=0.02)
