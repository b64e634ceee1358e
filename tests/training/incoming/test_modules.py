"""Networks that were trained elsewhere predict as they did there, and are members like any others."""

import copy

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import DataError, ModelError, SettingError
from bayesemble.core.seeds import scoped
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table

X, Y = table()


def made(make=norm_mlp, num=3):
    networks = []
    for seed in range(num):
        with scoped(seed):
            networks.append(make())
            for _ in range(seed + 1):
                networks[-1](X)  # statistics of their own
    return networks


def probabilities(networks, x=X):
    with torch.no_grad():
        return torch.stack([copy.deepcopy(one).eval()(x).softmax(-1) for one in networks])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("data", [None, (X, Y)], ids=["without data", "with data"])
@pytest.mark.parametrize("make", [small_mlp, norm_mlp, dropout_mlp])
def test_members_predict_as_their_networks_do(make, data, executor):
    networks = made(make)
    ensemble = be.Ensemble.from_modules(networks, be.Categorical(), data=data, executor=executor)
    predictive = ensemble.predict(X)
    torch.testing.assert_close(predictive.member_probs, probabilities(networks))
    torch.testing.assert_close(predictive.probs, probabilities(networks).mean(0))


def test_networks_are_copied_and_stay_as_they_were():
    networks = made()
    before = [copy.deepcopy(one.state_dict()) for one in networks]
    modes = [[layer.training for layer in one.modules()] for one in networks]
    ensemble = be.Ensemble.from_modules(networks, be.Categorical(), data=(X, Y))
    expected = ensemble.predict(X).probs
    for network, state, mode in zip(networks, before, modes, strict=True):
        assert all(torch.equal(leaf, state[name]) for name, leaf in network.state_dict().items())
        assert [layer.training for layer in network.modules()] == mode
        with torch.no_grad():
            network[0].weight.zero_()
    assert torch.equal(ensemble.predict(X).probs, expected)


@pytest.mark.parametrize("data", [None, (X, Y)], ids=["without data", "with data"])
def test_they_are_scored_weighed_diagnosed_calibrated_saved_and_loaded(data, tmp_path):
    ensemble = be.Ensemble.from_modules(made(), be.Categorical(), data=data)
    scores = ensemble.evaluate((X, Y), ood=3 * X)
    assert scores["nll"] == pytest.approx(be.metrics.nll(ensemble.predict(X), Y))
    weights = be.weighting.stacking(ensemble, (X, Y))
    assert ensemble.reweight(weights).evaluate((X, Y))["nll"] <= scores["nll"] + 1e-6
    assert be.weighting.evidence(ensemble, (X, Y)).weights.sum() == pytest.approx(1.0)
    assert "3 of 3 members are distinct" in str(be.diagnose(ensemble, (X, Y)))
    temperature = be.metrics.fit_temperature(ensemble.predict(X), Y)
    assert be.metrics.nll(temperature.apply(ensemble.predict(X)), Y) <= scores["nll"]
    ensemble.save(tmp_path / "run")
    loaded = be.load(tmp_path / "run", norm_mlp)
    assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)
    assert loaded.evaluate((X, Y), ood=3 * X) == scores
    assert ensemble.keep([0, 2]).num_members == 2


def test_they_may_go_on_in_training():
    ensemble = be.Ensemble.from_modules(made(), be.Categorical())
    on = quick_fit(be.Task(norm_mlp, be.Categorical()), (X, Y), start=ensemble, epochs=20)
    assert on.evaluate((X, Y))["nll"] < ensemble.evaluate((X, Y))["nll"]


def test_networks_that_are_frozen_altogether_are_members_too():
    networks = [network.requires_grad_(False) for network in made()]
    ensemble = be.Ensemble.from_modules(networks, be.Categorical())
    torch.testing.assert_close(ensemble.predict(X).member_probs, probabilities(networks))


def test_real_numbers_have_the_noise_that_is_stated():
    networks = made(lambda: nn.Linear(4, 1))
    predictive = be.Ensemble.from_modules(networks, be.Gaussian(noise=0.3)).predict(X)
    with torch.no_grad():
        expected = torch.stack([network(X)[:, 0] for network in networks])
    torch.testing.assert_close(predictive.member_mean, expected)
    torch.testing.assert_close(predictive.aleatoric, torch.full((48,), 0.09))


def test_with_data_and_prior_the_log_joint_is_known():
    prior = be.NormalPrior(std=0.7)
    ensemble = be.Ensemble.from_modules(made(small_mlp), be.Categorical(), data=(X, Y), prior=prior)
    assert ensemble.task.num_data == 48
    found = be.weighting.evidence(ensemble, (X, Y), penalised=True)
    assert found.weights.sum() == pytest.approx(1.0)


class Squashed(nn.Module):
    def __init__(self, squash):
        super().__init__()
        self.layer, self.squash = nn.Linear(4, 2), squash

    def forward(self, x):
        return self.squash(self.layer(x))


def with_other_buffer():
    network = norm_mlp()
    network[1].register_buffer("running_mean", torch.zeros(1))
    return network


REFUSED = {
    "one network": (lambda: small_mlp(), {}, SettingError, "modules is a list of one network or more"),
    "none": (list, {}, SettingError, "modules is a list of one network or more"),
    "another layer": (
        lambda: [small_mlp(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))],
        {},
        ModelError,
        r"one structure are needed: '1' is ReLU\(\) in number 0 and Tanh\(\) in number 1",
    ),
    "another width": (
        lambda: [small_mlp(), nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))],
        {},
        ModelError,
        r"'0' is Linear\(in_features=4, out_features=8.*out_features=9",
    ),
    "a layer more": (
        lambda: [small_mlp(), nn.Sequential(*small_mlp(), nn.Identity())],
        {},
        ModelError,
        "'3' is None in number 0",
    ),
    "another class": (lambda: [nn.Linear(4, 2), nn.Bilinear(4, 2, 2)], {}, ModelError, "the whole"),
    "a buffer of another shape": (
        lambda: [norm_mlp(), with_other_buffer()],
        {},
        SettingError,
        r"'1.running_mean' needs \(8,\)",
    ),
    "other code": (
        lambda: [Squashed(torch.tanh), Squashed(torch.exp)],
        {"data": (X, Y)},
        ModelError,
        "number 1 computes something else than number 0",
    ),
    "learned noise": (
        lambda: [nn.Linear(4, 1)],
        {"likelihood": be.Gaussian(noise="learned")},
        SettingError,
        "say what it is",
    ),
    "a prior alone": (lambda: [small_mlp()], {"prior": be.NormalPrior()}, SettingError, r"pass data=\(x, y\)"),
    "to be chosen": (lambda: [small_mlp()], {"executor": "auto"}, SettingError, "executor is 'loop', 'vmap'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_set_of_like_networks_is_refused(name):
    make, settings, error, message = REFUSED[name]
    with scoped(0):
        modules = make()
    with pytest.raises(error, match=message):
        be.Ensemble.from_modules(modules, **({"likelihood": be.Categorical()} | settings))


def test_what_needs_the_number_of_rows_says_so():
    ensemble = be.Ensemble.from_modules(made(small_mlp), be.Categorical())
    with pytest.raises(SettingError, match="number of training rows is not known"):
        _ = ensemble.task.data_factor
    with pytest.raises(DataError, match=r"targets of shape \(48, 3\) do not fit"):
        ensemble.evaluate((X, torch.zeros(48, 3)))
