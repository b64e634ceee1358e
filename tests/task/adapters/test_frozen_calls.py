"""Calls of frozen parts are found where they are the same for all members, and answered with what they gave."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.types import map_tensors
from bayesemble.task.adapters.frozen_calls import FrozenCalls, Prepared, answered, close, features_of
from bayesemble.training.pretrained.frozen_features import FrozenFeatures

CPU = torch.device("cpu")


class Body(nn.Module):
    """A frozen part that returns more than a tensor, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 4), 0

    def forward(self, x, mask=None):
        self.calls += 1
        return {"states": self.layer(x).tanh(), "nothing": None}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Body().requires_grad_(False), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x, mask=None)["states"])


class Middle(nn.Module):
    """A frozen layer behind a trained one, in which members differ."""

    def __init__(self):
        super().__init__()
        self.first, self.trained = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 4)
        self.second, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.second(self.trained(self.first(x))))


class Positions(nn.Module):
    """What the frozen embedding gives has no axis of rows, though it has as many numbers as there are rows."""

    def __init__(self):
        super().__init__()
        self.places, self.head = nn.Embedding(4, 3).requires_grad_(False), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x + self.places(torch.arange(3)).sum(0))


class Written(Network):
    """The trained part writes into what the frozen part gave."""

    def forward(self, x):
        return self.head(self.body(x)["states"].mul_(2))


class Doubtful(nn.Module):
    """A frozen part that is random even in evaluation."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 4), Noisy()).requires_grad_(False), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Beside(nn.Module):
    """A frozen part in which rows meet."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 4), Centred()).requires_grad_(False), nn.Linear(4, 2)

    forward = Doubtful.forward


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def layered():
    frozen = [nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.BatchNorm1d(4)]
    for layer in frozen:
        layer.requires_grad_(False)
    return nn.Sequential(*frozen, nn.ReLU(), nn.Linear(4, 2))


def found_in(network, generator):
    rows = torch.randn(4, 3, generator=generator)
    task = be.Task(network, be.Categorical(), start="fresh").bind(4, rows)
    features = FrozenFeatures.of(task, CPU)
    return task, rows, features


@pytest.mark.parametrize(
    ("network", "parts", "needed"),
    [
        (Network, ("body",), (True,)),
        (Middle, ("first",), (True,)),
        (layered, ("0", "1", "2", "3", "4"), (False, False, False, False, True)),
    ],
)
def test_what_is_found(network, parts, needed, generator):
    task, rows, features = found_in(network(), generator)
    assert (features.calls.parts, features.calls.needed) == (parts, needed)
    prepared = features.prepared(rows)
    for seed in range(3):
        params, buffers = task.new_member(seed)
        assert torch.equal(task.forward(params, buffers, prepared, True), task.forward(params, buffers, rows, True))


@pytest.mark.parametrize("network", [Positions, Written, Doubtful, Beside])
def test_what_is_not_the_same_for_all_members_and_rows_is_left_alone(network, generator):
    assert found_in(network(), generator)[2] is None


def test_a_network_in_which_nothing_is_frozen_or_members_have_frozen_leaves_of_their_own_has_none(generator):
    rows = torch.randn(4, 3, generator=generator)
    for model in (nn.Linear(3, 2), Network):
        task = be.Task(model, be.Categorical()).bind(4, rows)
        assert FrozenFeatures.of(task, CPU) is None


def test_calls_are_answered_and_not_carried_out(generator):
    network = Network()
    task, rows, features = found_in(network, generator)
    prepared, params = features.prepared(rows), task.new_member(0)
    before = task.module.body.calls
    for _ in range(5):
        task.forward(*params, prepared)
    assert task.module.body.calls == before
    task.forward(*params, rows)
    assert task.module.body.calls == before + 1


def test_the_run_is_broken_off_behind_the_last_call_that_is_needed(generator):
    network = Middle()
    reached = []
    network.head.register_forward_hook(lambda *_: reached.append(1))
    calls = FrozenCalls(("first",), ("first",), (True,))
    rows = torch.randn(4, 3, generator=generator)
    (given,) = features_of(network, calls, lambda: network(rows))
    assert torch.equal(given, network.first(rows))
    assert not reached


def test_modules_are_as_they_were_afterwards(generator):
    network, rows = Network(), torch.randn(4, 3, generator=generator)
    prepared = Prepared(rows, ({"states": torch.zeros(4, 4)},), FrozenCalls(("body",), ("body",), (True,)))
    with answered(network, prepared):
        assert torch.equal(network(rows), network.head.bias.expand(4, 2))
    assert "forward" not in vars(network.body)
    assert not torch.equal(network(rows), network.head.bias.expand(4, 2))


def test_rows_are_cut_with_what_was_found_for_them(generator):
    rows = torch.randn(4, 3, generator=generator)
    prepared = Prepared(rows, ({"states": torch.arange(4.0)},), FrozenCalls(("body",), ("body",), (True,)))
    few = map_tensors(lambda leaf: leaf[1:3], prepared)
    assert torch.equal(few.inputs, rows[1:3])
    assert few.features[0]["states"].tolist() == [1, 2]


def test_numbers_are_close_but_for_rounding():
    one = torch.tensor([1.0, -torch.inf, 1e-9])
    assert close(one, one + 1e-6)
    assert not close(one, one + 1e-2)
    assert close(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert not close(torch.tensor([1]), torch.tensor([2]))
