"""What is recorded are the operations of a function, and nothing where Python looks at numbers."""

import pytest
import torch

from bayesemble.execute.programs.recorder import Record, Recorder, Slot, mapped

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def recorded(function, *inputs: torch.Tensor) -> Record:
    recording = Recorder(inputs)
    with recording:
        found = function(*inputs)
    return recording.finish(found if isinstance(found, tuple) else (found,))


def test_a_gradient_under_vmap_becomes_plain_operations_on_its_inputs():
    x, w = normal(4, 3), normal(2, 3)

    def slope(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda own, rows: (rows @ own).square().sum()), (0, None))(w, x)

    found = recorded(slope, x, w)
    assert found.obstacle is None
    assert (found.num_inputs, len(found.outputs)) == (2, 1)
    assert torch.equal(found.tensors[found.outputs[0].number], slope(x, w))
    assert all(operation.function.namespace == "aten" for operation in found.operations)


def test_what_is_changed_in_place_keeps_its_number_and_what_comes_from_outside_is_constant():
    outside = torch.ones(3)
    found = recorded(lambda x: x.mul_(2).add_(outside), normal(3))
    assert [slot.number for slot in found.outputs] == [0]
    assert len(found.constants) == 1
    assert found.tensors[found.constants.pop()] is outside


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x.sum()),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x + torch.randn(3),
        lambda x: x + torch.randn(3, generator=torch.Generator().manual_seed(0)),
        lambda x: torch.nn.functional.dropout(x, 0.5),
    ],
    ids=["item", "if", "selection", "random", "generator", "dropout"],
)
def test_there_is_no_record_of_what_depends_on_numbers_or_chance(function):
    x = torch.tensor([1.0, -2.0, 3.0])
    with torch.random.fork_rng():
        found = recorded(function, x)
    assert found.obstacle is not None
    assert (found.operations, found.tensors) == ([], [])


def test_a_record_that_takes_too_much_memory_is_given_up_and_the_function_goes_on():
    recording = Recorder([torch.ones(4)], most_bytes=100)
    with recording:
        found = sum(torch.ones(4) * k for k in range(20))
    assert recording.finish([found]).obstacle == "it takes too much memory"
    assert found.tolist() == [190.0] * 4


def test_arguments_keep_their_kinds_around_what_is_put_in_their_place():
    given = ([Slot(1), None, 2.0], (torch.Size([3]), {"out": Slot(2)}), Slot(3), "sum")
    found = mapped(given, Slot, lambda slot: slot.number)
    assert found == ([1, None, 2.0], (torch.Size([3]), {"out": 2}), 3, "sum")
    assert [type(one) for one in (found[0], found[1], found[1][0])] == [list, tuple, torch.Size]
