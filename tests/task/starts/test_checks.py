"""Trained networks are not re-initialised without a word, and members that would stay one network are refused."""

import copy
import re

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import ModelError, SettingError, TrainingError
from bayesemble.core.members import Members
from bayesemble.core.seeds import scoped
from bayesemble.task.starts.checks import Clones, equal_members
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table


def trained(make=small_mlp, steps=100) -> nn.Module:
    x, y = table()
    with scoped(3):
        network = make()
        optimizer = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network


def task_of(model, **settings) -> be.Task:
    return be.Task(model, be.Categorical(), **settings)


def test_a_network_that_fits_the_data_is_not_reset_without_a_word():
    with pytest.raises(
        ModelError, match=r'its loss on the first batch is 0\.\d+, with fresh weights it is .* start="given"'
    ):
        quick_fit(task_of(trained()), table())


def test_neither_is_one_whose_norm_layers_have_moved():
    """Pretrained on something else, it does not fit the data better than a fresh one."""
    with pytest.raises(ModelError, match=r"its '1\.\w+' is no longer what it is in a fresh network"):
        quick_fit(task_of(trained(norm_mlp, steps=1)), table())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("make", [small_mlp, norm_mlp])
def test_a_fresh_network_is_no_trained_one(make, seed):
    with scoped(seed):
        network = make()
    quick_fit(task_of(network), table(), epochs=1, batch_size=None)


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_fresh_network_for_real_targets_is_no_trained_one_whatever_the_noise(noise):
    for seed in range(20):
        with scoped(seed):
            network, x = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)), 3 * torch.randn(40, 2)
        quick_fit(be.Task(network, be.Gaussian(noise=noise)), (x, x.sum(1)), epochs=1, batch_size=None)


def test_given_weights_are_what_members_begin_with():
    network = trained()
    ensemble = quick_fit(task_of(network, start="given"), table(), be.Laplace(learning_rate=1e-30), epochs=1)
    for name, leaf in network.named_parameters():
        assert torch.equal(ensemble.state.members.params[name][0], leaf)


def test_fresh_weights_do_not_depend_on_those_that_were_given():
    networks = trained(steps=0), trained()
    method = be.DeepEnsemble(num_members=2, learning_rate=1e-30)
    one, other = (quick_fit(task_of(network, start="fresh"), table(), method, epochs=1) for network in networks)
    assert largest_difference(all_leaves(one), all_leaves(other)) == 0


def test_a_start_that_cannot_be_honoured_is_refused():
    with pytest.raises(SettingError, match="a factory makes each start itself"):
        task_of(small_mlp, start="fresh")
    with pytest.raises(SettingError, match='start is "fresh", "given" or None'):
        task_of(small_mlp, start="trained")
    for jitter in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SettingError, match="jitter is a number from 0"):
            task_of(small_mlp, jitter=jitter)


METHODS = {
    "deep ensemble": be.DeepEnsemble(num_members=4),
    "repulsive": be.Repulsive(num_members=4),
    "function space": be.Repulsive(num_members=4, space="function"),
    "svgd": be.Stein(num_members=4),
    "swag": be.SWAG(num_members=4, start=0.1),
}


@pytest.mark.parametrize(("count", "numbers"), [(5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4, ...")])
def test_of_many_equal_members_the_first_five_are_named(count, numbers):
    leaf, weights = torch.zeros(count, 2), torch.full((count,), 1 / count)
    clones = Clones(Members({"a": leaf}, {}, weights))
    clones.refuse(Members({"a": leaf}, {}, weights))
    with pytest.raises(TrainingError, match=f"members {re.escape(numbers)} began"):
        clones.refuse(Members({"a": leaf + 1}, {}, weights))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", METHODS)
def test_members_that_stay_equal_are_refused_with_what_to_do(name, executor):
    network = trained(steps=3)
    for task in (task_of(lambda: copy.deepcopy(network)), task_of(network, start="given")):
        with pytest.raises(TrainingError, match=r"members 0, 1, 2, 3 began with equal weights.*jitter=0\.1"):
            quick_fit(task, table(), METHODS[name], executor=executor)


@pytest.mark.parametrize(
    "method",
    [
        be.DeepEnsemble(num_members=3, bootstrap=True),
        be.DeepEnsemble(num_members=3, anchored=True),
        be.CyclicalSGMCMC(num_members=3),
        be.Repulsive(num_members=2, sequential=True),
    ],
    ids=lambda method: type(method).__name__,
)
def test_members_with_data_noise_or_a_turn_of_their_own_may_begin_equal(method):
    ensemble = quick_fit(task_of(trained(steps=3), start="given"), table(), method, epochs=4)
    assert equal_members(ensemble.state.members) == []


def test_dropout_tells_members_apart():
    with scoped(0):
        network = nn.Sequential(nn.Linear(table()[0].shape[1], 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    assert equal_members(quick_fit(task_of(network, start="given"), table()).state.members) == []


def test_jitter_is_a_share_of_the_size_of_each_leaf_from_the_seed_of_each_member():
    with scoped(0):
        network = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 2))
        network[0].weight.data.mul_(50)
        network[1].bias.data.zero_()
    task = task_of(network, start="given", jitter=0.1)
    first, again, second = (task.new_member(seed)[0] for seed in (1, 1, 2))
    assert largest_difference(first, again) == 0
    weight = network[0].weight.detach()
    for member in (first, second):
        away = member["0.weight"] - weight
        assert float(away.square().mean().sqrt() / weight.square().mean().sqrt()) == pytest.approx(0.1, rel=0.05)
        assert not member["1.bias"].any()
    assert not torch.equal(first["0.weight"], second["0.weight"])
    assert equal_members(task.new_members(3, seed=0)) == []


def test_equal_members_are_found_whatever_else_is_between_them():
    leaf = torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [0.0, 2.0], [1.0, 3.0], [-0.0, 2.0]])
    params = {"a": leaf[:, :1].contiguous(), "b": leaf[:, 1:].contiguous()}
    members = be.Members(params, {}, torch.full((6,), 1 / 6))
    assert equal_members(members) == [[0, 2], [1, 4]]
    assert equal_members(be.Members({"a": leaf[:1]}, {}, torch.ones(1))) == []


def test_several_architectures_may_be_given_too():
    networks = [trained(small_mlp), trained(norm_mlp)]
    with pytest.raises(ModelError, match="looks trained"):
        quick_fit(task_of(networks), table())
    method = be.DeepEnsemble(num_members=2, learning_rate=1e-30)
    ensemble = quick_fit(task_of(networks, start="given"), table(), method, epochs=1)
    assert torch.equal(ensemble.state.members.params["0.0.weight"][0], networks[0][0].weight)
    assert torch.equal(ensemble.state.members.params["1.0.weight"][1], networks[1][0].weight)
