import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import bayesemble as be
from bayesemble.methods.laplace.gauss_newton import Network, linearised
from bayesemble.methods.laplace.output_layer import features_of

ROWS = 5


class Around(nn.Module):
    """A network of a body, a head, and whatever happens after it."""

    def __init__(self, body: nn.Module, head: nn.Module, after=lambda given, x: given) -> None:
        super().__init__()
        self.body, self.head, self.after = body, head, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.body(x)), x)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.body(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0][-1])


def rows(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network_of(model, x, names=("head.weight", "head.bias"), **options) -> Network:
    task = be.Task(lambda: model().double(), be.Gaussian(), **options).bind(ROWS, x)
    params, buffers = task.new_member(seed=0)
    return Network(task, params, buffers, tuple(names))


def dense(after=lambda given, x: given, head=None):
    return lambda: Around(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), head() if head else nn.Linear(4, 6), after)


def conv(kind, size, after=lambda given, x: given, **settings):
    return lambda: Around(kind(2, 3, 3, padding=1), kind(3, 2, size, **settings), after)


KNOWN = {
    "dense": (dense(), rows(3)),
    "times": (dense(), rows(7, 3)),
    "times folded into rows": (
        lambda: Around(nn.Flatten(0, 1), nn.Linear(3, 6), lambda given, x: given.reshape(*x.shape[:2], 6)),
        rows(7, 3),
    ),
    "some outputs": (dense(lambda given, x: given[..., [4, 0, 4]]), rows(7, 3)),
    "one output": (dense(lambda given, x: given[:, 2]), rows(3)),
    "an own time for each row": (dense(lambda given, x: given[torch.arange(len(x)), x[:, 0, 0].gt(0) + 2]), rows(7, 3)),
    "turned": (dense(lambda given, x: given.mT), rows(7, 3)),
    "by name": (dense(lambda given, x: {"logits": given}), rows(3)),
    "1x1": (conv(nn.Conv2d, 1), rows(2, 5, 4)),
    "3x2": (conv(nn.Conv2d, (3, 2), stride=2, padding=1, dilation=(2, 1)), rows(2, 7, 6)),
    "same": (conv(nn.Conv2d, 3, padding="same"), rows(2, 5, 4)),
    "reflect": (conv(nn.Conv2d, 3, padding=1, padding_mode="reflect"), rows(2, 5, 4)),
    "one axis": (conv(nn.Conv1d, 3, stride=2), rows(2, 9)),
    "three axes": (conv(nn.Conv3d, 2, padding=1), rows(2, 3, 4, 2)),
    "channels last": (conv(nn.Conv2d, 1, lambda given, x: given.movedim(1, -1)), rows(2, 5, 4)),
    "packed": (Packed, (rows(7, 3), torch.tensor([3, 7, 1, 5, 2]))),
}


def times(given: Tensor, x: Tensor) -> Tensor:
    """The third time, but in later rows the first."""
    return given[torch.arange(len(x)), torch.where(torch.arange(len(x)) < 2, 2, 0)]


@pytest.mark.parametrize("zero", [False, True])
def test_rows_that_differ_from_the_first_two_are_told_even_if_the_weight_is_zero(zero):
    """Then all positions look the same, but what enters there is not."""
    x = rows(7, 3)
    network = network_of(dense(times), x)
    if zero:
        network.params["head.weight"].zero_()
    seen = features_of(network, x)
    away = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
    moved = {
        "head.weight": network.params["head.weight"] + away[:, :4],
        "head.bias": network.params["head.bias"] + away[:, 4],
    }
    torch.testing.assert_close(seen.outputs + seen.of_outputs(seen.entering @ away.T), network.outputs(x, moved))


def test_channels_that_are_equal_are_told_apart_in_rows_after_the_first_two():
    """Their outputs are the same bits, but move with other weights."""
    x = rows(3)
    network = network_of(dense(lambda given, x: given[torch.arange(len(x)), torch.arange(len(x)).ge(2).long()]), x)
    for name in ("head.weight", "head.bias"):
        network.params[name][1] = network.params[name][0]
    seen = features_of(network, x)
    assert seen.picked.flatten().tolist() == [0, 0] + [1] * (len(x) - 2)


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("leaves", [("weight", "bias"), ("weight",), ("bias",)], ids="+".join)
def test_features_tell_the_outputs_for_all_weights(case, leaves):
    model, x = KNOWN[case]
    network = network_of(model, x, [f"head.{leaf}" for leaf in leaves], output="logits" if case == "by name" else None)
    seen = features_of(network, x)
    generator = torch.Generator().manual_seed(1)
    away = {n: torch.randn(leaf.shape, generator=generator).double() for n, leaf in network.chosen.items()}
    matrix = torch.cat([leaf.reshape(len(leaf), -1) for leaf in away.values()], dim=1)
    moved = {name: leaf + away[name] for name, leaf in network.chosen.items()}
    found = seen.outputs + seen.of_outputs(seen.entering @ matrix.T)
    torch.testing.assert_close(found, network.outputs(x, moved).detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(seen.outputs, network.outputs(x))


def test_values_of_outputs_are_added_where_the_layer_gave_them():
    model, x = KNOWN["some outputs"]
    seen = features_of(network_of(model, x), x)
    values = torch.arange(float(seen.outputs.numel())).reshape(seen.outputs.shape)
    found = seen.of_layer(values)
    assert torch.equal(found[..., 0], values[..., 1])
    assert torch.equal(found[..., 4], values[..., 0] + values[..., 2])
    assert not found[..., [1, 2, 3, 5]].any()


def test_half_precision_is_told_too():
    """Its whole numbers are exact up to 256 only, and there are more numbers to tell apart."""
    x = rows(3).bfloat16()
    task = be.Task(lambda: nn.Linear(3, 700).bfloat16(), be.Categorical()).bind(ROWS, x)
    seen = features_of(Network(task, *task.new_member(0), ("weight", "bias")), x)
    assert torch.equal(seen.picked[0], torch.arange(700))


class Derived(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


class Twice(Around):
    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        return torch.cat([self.head(features), self.head(features + 1)], dim=1)


class Elsewhere(Around):
    """The head's weight takes part in its own features."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) * self.head.weight.sum())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
        self.body.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Tempered(Around):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0.7


def in_place(given: Tensor, x: Tensor) -> Tensor:
    return given.mul_(2)


UNKNOWN = {
    "scaled": lambda: Tempered(nn.Linear(3, 4), nn.Linear(4, 2)),
    "in place": dense(in_place),
    "softmax": dense(lambda given, x: given.log_softmax(-1)),
    "relu": dense(lambda given, x: given.relu()),
    "a bound": dense(lambda given, x: given.clamp(-50, 50)),
    "a mean": dense(lambda given, x: given.mean(1)),
    "a residual": dense(lambda given, x: given + x.repeat(1, 2)),
    "scaled in later rows": dense(lambda given, x: given * torch.where(torch.arange(len(x)) < 3, 1.0, 2.0)[:, None]),
    "another row": dense(lambda given, x: given.roll(1, 0)),
    "derived": dense(head=lambda: Derived(4, 6)),
    "twice": lambda: Twice(nn.Linear(3, 4), nn.Linear(4, 2)),
    "elsewhere": lambda: Elsewhere(nn.Linear(3, 4), nn.Linear(4, 2)),
    "tied": Tied,
    "two layers": dense(),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_features_do_not_tell_is_left_alone(case):
    x = rows(3)
    names = ["body.0.weight", "head.weight"] if case == "two layers" else ["head.weight", "head.bias"]
    if case == "tied":
        names = ["body.weight"]
    assert features_of(network_of(UNKNOWN[case], x, names), x) is None


def test_groups_of_channels_are_left_alone():
    x = rows(4, 5)
    network = network_of(lambda: nn.Sequential(nn.Conv1d(4, 4, 1, groups=2)), x, ["0.weight", "0.bias"])
    assert features_of(network, x) is None


def test_what_is_seen_leaves_the_network_as_it_was():
    model, x = KNOWN["dense"]
    network = network_of(model, x)
    features_of(network, x)
    assert not network.task.module.head._forward_hooks
    torch.testing.assert_close(linearised(network, x, network.chosen), 2 * network.outputs(x))
