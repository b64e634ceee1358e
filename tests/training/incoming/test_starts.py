"""Networks of an earlier ensemble, modules and state dicts as starts; others are refused by their leaves."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.training.incoming.starts import as_starts
from helpers import norm_mlp, quick_fit, small_mlp, table

STILL = {"learning_rate": 1e-30, "optimizer": "sgd"}


def bound(make=norm_mlp, likelihood=None):
    return be.Task(make, likelihood or be.Categorical()).bind(48, table()[0])


def made(num=3, make=norm_mlp):
    networks = []
    for seed in range(num):
        with scoped(seed):
            networks.append(make())
            for _ in range(seed + 1):
                networks[-1](table()[0])  # statistics of their own
    return networks


def leaves(network):
    return dict(network.named_parameters()) | dict(network.named_buffers())


@pytest.mark.parametrize("form", [lambda network: network, lambda network: network.state_dict()])
def test_modules_and_state_dicts_are_starts_with_their_buffers(form):
    networks = made()
    for (params, buffers), network in zip(as_starts([form(one) for one in networks], bound()), networks, strict=True):
        for name, leaf in leaves(network).items():
            assert torch.equal((params | buffers)[name], leaf)


def test_the_members_of_an_ensemble_go_on_under_another_method():
    first = quick_fit(be.Task(norm_mlp, be.Categorical()), table())
    on = quick_fit(
        be.Task(norm_mlp, be.Categorical()), table(), be.Repulsive(num_members=3, repulsion=0.0, **STILL), start=first
    )
    for name, leaf in first.state.members.params.items():
        assert torch.equal(on.state.members.params[name], leaf)
    assert on.task.starts == (), "the new ensemble does not hold on to the old one"


def test_to_go_on_is_to_train_on_from_where_the_members_are():
    """Plain gradient steps on all rows: two epochs and two more are four."""
    task, method = be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(num_members=2, optimizer="sgd", momentum=0.0)
    whole = quick_fit(task, table(), method, epochs=4, batch_size=None)
    half = quick_fit(task, table(), method, epochs=2, batch_size=None)
    on = quick_fit(task, table(), method, epochs=2, batch_size=None, start=half)
    for name, leaf in whole.state.members.params.items():
        torch.testing.assert_close(on.state.members.params[name], leaf)


def test_learned_noise_goes_on_too_and_begins_where_there_is_none():
    x, y = table()[0], table()[0].sum(1)
    net = lambda: nn.Linear(4, 1)  # noqa: E731
    first = quick_fit(
        be.Task(net, be.Gaussian(noise="learned")), (x, y), be.DeepEnsemble(num_members=2, learning_rate=0.1)
    )
    task = be.Task(net, be.Gaussian(noise="learned"))
    on = quick_fit(task, (x, y), be.DeepEnsemble(num_members=2, **STILL), start=first)
    name = "likelihood.log_noise"
    assert torch.equal(on.state.members.params[name], first.state.members.params[name])
    anew = quick_fit(task, (x, y), be.DeepEnsemble(num_members=2, **STILL), start=made(2, net))
    assert anew.state.members.params[name].abs().max() < 1e-20, "its start, but for a step of next to nothing"
    without = quick_fit(be.Task(net, be.Gaussian()), (x, y), be.DeepEnsemble(num_members=2, **STILL), start=first)
    assert name not in without.state.members.params


def test_frozen_leaves_that_are_equal_stay_shared():
    def frozen():
        network = small_mlp()
        with torch.no_grad():
            network[0].weight.fill_(1.0)
        network[0].requires_grad_(False)
        network[0].bias.data.zero_()
        return network

    first = quick_fit(be.Task(frozen, be.Categorical()), table())
    on = quick_fit(be.Task(frozen, be.Categorical()), table(), start=first)
    assert on.state.members.shared == {"0.weight", "0.bias"}


def test_jitter_sets_networks_apart_that_are_given_twice():
    network = made(1, small_mlp)[0]
    task = be.Task(small_mlp, be.Categorical(), jitter=0.1)
    members = quick_fit(task, table(), be.DeepEnsemble(num_members=2, **STILL), start=[network, network]).state.members
    assert not torch.equal(*members.params["0.weight"])


def test_members_that_weigh_nothing_do_not_go_on():
    first = quick_fit(be.Task(norm_mlp, be.Categorical()), table()).reweight([1, 0, 1])
    task, two = be.Task(norm_mlp, be.Categorical()), be.DeepEnsemble(num_members=2, **STILL)
    on = quick_fit(task, table(), two, start=first).state.members.params["0.weight"]
    assert torch.equal(on, first.state.members.params["0.weight"][[0, 2]])
    with pytest.raises(SettingError, match="start has 2 networks, but the method has num_members=3"):
        quick_fit(task, table(), start=first)


REFUSED = {
    "a network alone": (lambda: made(1)[0], r"start is an ensemble, or a list .*got BatchNorm|got Sequential"),
    "nothing": (list, "start is an ensemble, or a list"),
    "numbers": (lambda: [3, 4, 5], "modules or state dicts, but number 0 is a int"),
    "another width": (
        lambda: [*made(2), nn.Sequential(nn.Linear(4, 9))],
        r"'0\.weight' needs \(8, 4\) .*number 2 has \(9, 4\)",
    ),
    "no statistics": (lambda: made(3, small_mlp), r"number 0 has a leaf '2\.weight'"),
    "double": (
        lambda: [net.double() for net in made()],
        r"needs \(8, 4\) torch.float32, number 0 has \(8, 4\) torch.float64",
    ),
    "a leaf too many": (
        lambda: [one.state_dict() | {"lora": torch.zeros(1)} for one in made()],
        "number 0 has a leaf 'lora'",
    ),
    "too few": (lambda: made(2), r"start has 2 networks, but the method has num_members=3.*or num_members=2"),
    "too many": (lambda: made(4), r"start has 4 networks.*ensemble\.keep\(range\(3\)\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_starts_that_do_not_fit_are_refused_with_what_is_wrong(name):
    make, message = REFUSED[name]
    with scoped(0):
        start = make()
    with pytest.raises(SettingError, match=message):
        quick_fit(be.Task(norm_mlp, be.Categorical()), table(), start=start)
