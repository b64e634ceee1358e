import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import bayesemble as be
from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.prior_gradient import add_gradient
from bayesemble.task.priors import Prior

SHAPES = {"weight": (2, 3), "bias": (2,)}


def leaves(generator, members=None):
    shape = () if members is None else (members,)
    return {name: torch.randn(*shape, *own, generator=generator, dtype=torch.float64) for name, own in SHAPES.items()}


def independent(generator):
    return PosteriorPrior.of(leaves(generator), {name: leaf.exp() for name, leaf in leaves(generator).items()})


def coupled(generator):
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    whole = root @ root.T + torch.eye(8)
    weight, bias = whole.diagonal().split([6, 2])
    return PosteriorPrior.of(leaves(generator), {"weight": weight.reshape(2, 3), "bias": bias}, whole)


def joint(prior):
    """The same as one normal over all weights."""
    mean = torch.cat([leaf.flatten() for leaf in prior.means.values()])
    stds = torch.cat([leaf.flatten() for leaf in prior.stds.values()])
    return MultivariateNormal(mean, torch.diag(stds.square()) if prior.covariance is None else prior.covariance)


def flat(params):
    return torch.cat([params[name].flatten(1) for name in SHAPES], dim=1)


@pytest.mark.parametrize("make", [independent, coupled])
class TestEach:
    def test_its_density_and_gradient_are_those_of_a_normal(self, make, generator):
        prior, params = make(generator), leaves(generator, members=4)
        scales = prior.scales(SHAPES)
        values = flat(params).requires_grad_()
        density = joint(prior).log_prob(values)
        density.sum().backward()
        torch.testing.assert_close(prior.log_prob(params, scales), density.detach())
        torch.testing.assert_close(flat(prior.gradient(params, scales)), values.grad)

    def test_draws_have_its_moments(self, make, generator):
        prior = make(generator)
        drawn = [prior.sample(SHAPES, generator, torch.float64) for _ in range(4000)]
        rows = flat({name: torch.stack([one[name] for one in drawn]) for name in SHAPES})
        normal = joint(prior)
        assert ((rows.mean(0) - normal.mean).abs() < 5 * (normal.variance / 4000).sqrt()).all()
        torch.testing.assert_close(torch.cov(rows.T), normal.covariance_matrix, rtol=0.15, atol=0.6)

    def test_it_is_saved_as_settings(self, make, generator):
        prior = make(generator)
        again = settings.parse(settings.dump(prior), Prior)
        assert again == prior
        assert list(again.means) == list(SHAPES)
        for name in SHAPES:
            assert torch.equal(again.means[name], prior.means[name])
        assert len(repr(prior)) < 80

    def test_the_part_of_the_log_joint_is_added_by_member(self, make, generator):
        prior, params = make(generator), leaves(generator, members=3)
        found = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
        factor = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
        add_gradient(prior, prior.scales(SHAPES), found, params, None, factor, 2.0, 1 << 18)
        expected = flat(prior.gradient(params, prior.scales(SHAPES))) * factor[:, None] / 2
        torch.testing.assert_close(flat(found), expected)

    def test_a_distance_is_in_its_own_units(self, make, generator):
        prior, params = make(generator), leaves(generator)
        rows = flat({name: leaf.unsqueeze(0) for name, leaf in params.items()})
        normal = joint(prior)
        log_det = torch.logdet(2 * math.pi * normal.covariance_matrix)
        expected = -2 * normal.log_prob(rows) - log_det
        assert prior.squared_distance(params) == pytest.approx(expected.item())

    def test_a_network_of_another_shape_is_refused(self, make, generator):
        with pytest.raises(SettingError, match=r"networks whose 'weight' is \(2, 3\); in this one it is \(2, 4\)"):
            make(generator).scales(SHAPES | {"weight": (2, 4)})
        with pytest.raises(SettingError, match=r"'bias' is .*; in this one it is not there"):
            make(generator).scales({"weight": (2, 3)})


def test_scales_are_root_mean_squares(generator):
    prior = independent(generator)
    expected = {name: float(leaf.square().mean().sqrt()) for name, leaf in prior.stds.items()}
    assert prior.scales(SHAPES) == pytest.approx(expected)


def test_a_covariance_is_about_all_weights(generator):
    prior, params = coupled(generator), leaves(generator, members=2)
    with pytest.raises(SettingError, match="ties all weights together, and was asked about some of them alone"):
        prior.gradient({"bias": params["bias"]}, {})


def test_a_variance_of_0_is_refused(generator):
    with pytest.raises(SettingError, match="a variance above 0 for every weight, which 'bias' has not"):
        PosteriorPrior.of(leaves(generator), {"weight": torch.ones(2, 3), "bias": torch.zeros(2)})


@pytest.mark.parametrize("method", [be.DeepEnsemble(num_members=2), be.MeanField(), be.HMC(num_members=2, num_draws=2)])
def test_methods_train_under_it_and_runs_are_saved_with_it(method, tmp_path, generator):
    x = torch.randn(20, 3, generator=generator)
    prior = PosteriorPrior.of(
        {"weight": torch.ones(1, 3), "bias": torch.zeros(1)},
        {"weight": torch.full((1, 3), 1e-6), "bias": torch.ones(1)},
    )
    task = be.Task(lambda: torch.nn.Linear(3, 1), be.Gaussian(), prior)
    options = {"epochs": 4, "checkpoint": tmp_path, "progress": False, "executor": "loop"}
    ensemble = be.fit(task, method, (x, x.sum(1)), **options)
    loaded = be.load(tmp_path, lambda: torch.nn.Linear(3, 1))
    assert loaded.task.prior == prior
    assert torch.equal(loaded.predict(x).mean, ensemble.predict(x).mean)
