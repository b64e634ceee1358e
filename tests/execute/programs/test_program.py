"""A program gives what its record gave, bit for bit, on other numbers too; what it leaves out changes nothing."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesemble.core import seeds
from bayesemble.execute.programs.program import replayed, tidy
from execute.programs.test_recorder import normal, recorded

NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)),
    "norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 2)),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)
    ),
}


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_training_is_the_same_on_other_numbers(name):
    with seeds.scoped(0):
        network = NETWORKS[name]()
    leaves = dict(network.named_parameters()) | dict(network.named_buffers())
    names = [key for key, _ in network.named_parameters()]

    def step(x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(leaves, state, strict=True))
        params = {key: own[key].detach().requires_grad_() for key in names}
        with torch.enable_grad():
            loss = functional_call(network, own | params, (x,)).square().mean()
        for key, slope in zip(names, torch.autograd.grad(loss, list(params.values())), strict=True):
            own[key].sub_(slope, alpha=0.1)
        return (loss.detach(),)

    def inputs() -> list[Tensor]:
        state = [normal(*leaf.shape).abs() if leaf.is_floating_point() else leaf.clone() for leaf in leaves.values()]
        return [normal(7, 6), *state]

    found = recorded(step, *inputs())
    assert found.obstacle is None
    short = tidy(found)
    assert len(short.operations) < len(found.operations)
    for record in (found, short):
        replay = replayed(record)
        for _ in range(3):
            here = inputs()
            there = copies(here)
            expected, got = step(*here), replay(*there)
            assert all(torch.equal(one, other) for one, other in zip((*here, *expected), (*there, *got), strict=True))


def same(function, *inputs: Tensor) -> int:
    """The number of operations of the tidy program, after a look at what it gives."""
    record = tidy(recorded(function, *copies(list(inputs))))
    here, there = copies(list(inputs)), copies(list(inputs))
    expected, got = function(*here), replayed(record)(*there)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert all(torch.equal(one, other) for one, other in zip((*here, *expected), (*there, *got), strict=True))
    return len(record.operations)


X, Y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])


def test_views_of_a_tensor_as_it_is_and_factors_of_one_are_left_out():
    assert same(lambda x, y: x.view(3).detach().expand(3) * 1 + y, X, Y) == 1


def test_a_copy_that_outlives_its_source_stays():
    def function(x: Tensor, y: Tensor) -> Tensor:
        before = x * 1
        x.add_(y)
        return before + y

    assert same(function, X, Y) == 3


def test_of_two_copies_only_one_can_be_the_source_itself():
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        source = x + y
        kept, changed = source * 1, source * 1
        changed.mul_(3)
        return kept + y, changed + 0.5

    same(function, X, Y)


def test_a_copy_that_is_changed_does_not_change_its_source():
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        copy = x * 1
        copy.mul_(3)
        return x + y, copy + y

    same(function, X, Y)


def test_what_only_constants_go_into_is_worked_out_once_unless_it_is_changed():
    constant = torch.tensor([1.0, 2.0, 4.0])
    assert same(lambda x, y: x + constant.log().exp(), X, Y) == 1

    def counts(x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x).add_(y)

    record = tidy(recorded(counts, X, Y))
    replay = replayed(record)
    assert replay(X, Y)[0].tolist() == replay(X, Y)[0].tolist() == Y.tolist()


def test_what_nobody_reads_is_left_out_but_never_what_writes():
    def function(x: Tensor, y: Tensor) -> Tensor:
        torch.exp(x)
        torch.empty_like(y).copy_(x)
        return x + y

    assert same(function, X, Y) in (1, 3)

    def written(x: Tensor, y: Tensor) -> Tensor:
        return torch.empty_like(y).copy_(x) + y

    assert same(written, X, Y) == 3


def test_operations_that_give_several_tensors_or_none_of_some_are_repeated():
    def function(x: Tensor, y: Tensor) -> Tensor:
        first, second, third = (x * y).split(1)
        torch._foreach_mul_([x, y], 2.0)
        return first + second * third

    same(function, X, Y)
