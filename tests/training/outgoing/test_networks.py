"""Members as ordinary networks."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.training.outgoing.networks import Tangent
from helpers import norm_mlp, quick_fit, table

X, Y = table()


def gives(network: nn.Module, probs: torch.Tensor) -> bool:
    with torch.no_grad():
        return torch.allclose(network(X).softmax(-1), probs, rtol=0, atol=1e-6)


def test_each_network_gives_what_its_member_gives_and_is_nobody_elses():
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), (X, Y))
    first, second, _ = ensemble.modules()
    probs = ensemble.predict(X).member_probs
    assert gives(first, probs[0])
    assert set(first.state_dict()) == set(ensemble.task.module.state_dict())
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert gives(second, probs[1])
    assert torch.equal(ensemble.predict(X).member_probs, probs)


def test_what_the_likelihood_learned_is_not_among_the_leaves():
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise="learned"))
    ensemble = quick_fit(task, (X, X[:, 0]))
    assert "likelihood.log_noise" in ensemble.state.members.params
    assert all(set(network.state_dict()) == {"weight", "bias"} for network in ensemble.modules())


def test_members_that_weigh_nothing_are_left_out():
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), (X, Y)).reweight([1, 0, 3])
    assert len(ensemble.modules()) == 2
    assert ensemble.module().weights.tolist() == [0.25, 0.75]


def test_of_several_architectures_each_network_is_its_own():
    task = be.Task([lambda: nn.Linear(4, 2), norm_mlp], be.Categorical())
    ensemble = quick_fit(task, (X, Y), be.DeepEnsemble(num_members=4))
    networks = ensemble.modules()
    assert [type(network) for network in networks] == [nn.Linear, nn.Sequential] * 2
    assert all(map(gives, networks, ensemble.predict(X).member_probs))


def test_weights_that_are_tied_stay_tied_and_frozen_ones_frozen():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight
            self.second.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(self.second(self.first(x).tanh()))

    ensemble = quick_fit(be.Task(Tied, be.Categorical()), (X, Y))
    network = ensemble.modules()[1]
    assert network.second.weight is network.first.weight
    assert not network.second.bias.requires_grad
    assert gives(network, ensemble.predict(X).member_probs[1])


def test_leaves_that_draws_share_are_one_in_a_module_and_their_own_in_networks():
    task = be.Task(norm_mlp, be.Categorical())
    ensemble = quick_fit(task, (X, Y), be.EMP(num_members=1, draws=3, select="output"))
    shared = {id(network[0].weight) for network in ensemble.module().members}
    assert len(shared) == 1
    assert len({id(network[0].weight) for network in ensemble.modules()}) == 3


def test_draws_made_linear_run_in_a_module_and_are_no_ordinary_networks():
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), be.Categorical())
    ensemble = quick_fit(task, (X, Y), be.Laplace(select="all", draws=3))
    module = ensemble.module()
    assert all(isinstance(network, Tangent) for network in module.members)
    assert torch.allclose(module(X)["probs"], ensemble.predict(X).probs, atol=1e-6)
    with pytest.raises(SettingError, match="made linear around their members"):
        ensemble.modules()
    with pytest.raises(SettingError, match="samples"):
        ensemble.export("never.pt2")
