"""Compiled programs are told apart by what they are; `training/test_steps.py` compiles some."""

import logging

import pytest
import torch
from torch import Tensor

from bayesemble.core.errors import ExecutionError
from bayesemble.execute.optimizers.fused import Optimizer
from bayesemble.execute.optimizers.rates import parts
from bayesemble.execute.programs import compiled as module
from bayesemble.execute.programs.compiled import _Straight, compiled, fingerprint
from bayesemble.execute.programs.program import replayed, tidy
from execute.programs.test_program import X, Y, copies
from execute.programs.test_recorder import normal, recorded


def step_of(optimizer: Optimizer, members: int = 0):
    """A step of an optimiser on two leaves, with all that it keeps; with members, each at its own rate."""
    params = {"a": normal(3), "b": normal(2, 2)}
    slots = optimizer.init(params)
    kept = [leaf for slot in slots.values() for leaf in slot.values()]

    def step(rate: Tensor, *tensors: Tensor) -> Tensor:
        leaves, rest = dict(zip(params, tensors[:2], strict=True)), iter(tensors[2:])
        own = {slot: {name: next(rest) for name in found} for slot, found in slots.items()}
        slopes = {name: 2 * leaf + 1 for name, leaf in leaves.items()}
        torch._foreach_mul_(list(slopes.values()), 3.0)
        torch._foreach_div_(list(slopes.values()), 2.0)
        rates = parts(leaves, [rate * (member + 1) for member in range(members)], {"a": 1.0, "b": 0.5})
        optimizer.update(leaves, slopes, own, rates if members else rate)
        return leaves["a"].sum()

    return step, [torch.tensor(0.1, dtype=torch.float64), *params.values(), *kept]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lion"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("members", [0, 2])
def test_optimisers_in_single_operations_take_the_steps_of_the_fused_ones(name, decay, momentum, members):
    step, inputs = step_of(Optimizer(name, momentum, decay), members)
    record = tidy(recorded(step, *copies(inputs)))
    here, there = copies(inputs), copies(inputs)
    with torch.no_grad():
        for _ in range(3):
            (expected,), (found,) = replayed(record)(*here), _Straight(record)(*there)
            torch.testing.assert_close(found, expected)
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 3), (3, 4)])
def test_gradients_of_dense_layers_lie_as_their_leaves_do_before_they_are_compiled(inputs, outputs):
    """As a product that is read transposed, and by nothing else; a narrow one is turned in a pass of its own."""
    weight, x, slope = normal(2, outputs, inputs), normal(2, 5, inputs), normal(2, 5, outputs)

    def gradient(weight: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        laid_out = torch.empty_like(weight).copy_(torch.bmm(x.mT, slope).mT)
        both_ways = torch.bmm(slope.mT, x)
        return laid_out / -7 + both_ways, both_ways.mT + 1

    record = tidy(recorded(gradient, weight, x, slope))
    assert module._turned_product(x.mT, slope).mT.is_contiguous()
    for one, other in zip(_Straight(record)(weight, x, slope), gradient(weight, x, slope), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("divisor", [3, -0.7, 0, torch.tensor(2.5)])
@pytest.mark.parametrize("numbers", [torch.tensor([1.0, -2.0, 0.3]), torch.tensor([1, 2, 7])])
def test_a_quotient_is_a_product_where_that_can_be(numbers, divisor):
    torch.testing.assert_close(module._divided(numbers, divisor), numbers / divisor, equal_nan=True)


def test_programs_are_told_apart_by_operations_shapes_constants_and_threads(monkeypatch):
    def of(function, *inputs: Tensor) -> str:
        return fingerprint(tidy(recorded(function, *copies(list(inputs)))))

    plain = of(lambda x, y: x + y, X, Y)
    assert plain == of(lambda x, y: x + y, Y, X)
    one, two = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0])
    others = [
        of(lambda x, y: x * y, X, Y),
        of(lambda x, y: x + y, X[:2], Y[:2]),
        of(lambda x, y: x + y, X.double(), Y.double()),
        of(lambda x, y: x + one, X, Y),
        of(lambda x, y: x + two, X, Y),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    others.append(of(lambda x, y: x + y, X, Y))
    assert len({plain, *others}) == 7


def test_without_a_compiler_the_reason_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv(module.FOLDER, str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ExecutionError, match="no C\\+\\+ compiler"):
        compiled(tidy(recorded(lambda x, y: x + y, X.clone(), Y.clone())))
    assert not list(tmp_path.iterdir())


def test_what_the_compiler_says_of_its_own_ways_is_not_for_users(caplog):
    speaker = logging.getLogger("torch._inductor.ir")
    with caplog.at_level(logging.WARNING, "torch._inductor"):
        with module._silent("torch._inductor"):
            speaker.warning("a fallback was taken")
        speaker.warning("now it may speak again")
    assert [one.message for one in caplog.records] == ["now it may speak again"]
