"""What is recorded are the operations of a function, and nothing where Python looks at numbers."""

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bayesemble.execute.programs.program import replayed, tidy
from bayesemble.execute.programs.recorder import Record, Recorder, Slot, mapped

SPARSE = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (3, 3), check_invariants=True)
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
    assert torch.equal(replayed(found)(x, w)[0], slope(x, w))
    assert all(operation.function.namespace == "aten" for operation in found.operations)


def test_what_is_changed_in_place_keeps_its_number_and_what_comes_from_outside_is_constant():
    outside = torch.ones(3)
    found = recorded(lambda x: x.mul_(2).add_(outside), normal(3))
    assert [slot.number for slot in found.outputs] == [0]
    assert len(found.constants) == 1
    assert found.values[found.constants.pop()] is outside


@pytest.mark.filterwarnings("ignore::UserWarning")  # nested and sparse tensors are new to torch
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x.sum()),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x + torch.randn(3),
        lambda x: x + torch.randn(3, generator=torch.Generator().manual_seed(0)),
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: x.to_sparse().to_dense(),
        lambda x: SPARSE @ x,
        lambda x: torch.nested.nested_tensor([x, x]).to_padded_tensor(0.0),
    ],
    ids=["item", "if", "selection", "random", "generator", "dropout", "sparse", "sparse constant", "nested"],
)
def test_there_is_no_record_of_what_depends_on_numbers_or_chance_or_has_no_strides(function):
    x = torch.tensor([1.0, -2.0, 3.0])
    with torch.random.fork_rng():
        found = recorded(function, x)
    assert found.obstacle is not None
    assert (found.operations, found.layouts, found.values) == ([], [], {})


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


def test_what_python_lets_go_of_is_not_held():
    gone = []

    def function(x: torch.Tensor) -> torch.Tensor:
        between = x.exp()
        gone.append(StorageWeakRef(between.untyped_storage()))
        found = between.sum()
        del between
        gone.append(gone[0].expired())
        return found

    x = normal(3)
    record = recorded(function, x)
    assert gone[1]
    assert torch.equal(replayed(tidy(record))(x)[0], x.exp().sum())


def test_what_comes_to_a_place_that_was_let_go_of_is_something_new():
    places = []

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = (x[:-40] * 1.5).sin()  # shorter, as a block that is free again may be too small for one of its size
            places.append(x.data_ptr())
        return x

    record = recorded(function, normal(4096))
    assert record.obstacle is None
    assert len(set(places)) < 100  # some memory is used again
    made = [number for one in record.operations if not one.function.is_view for number in one.results]
    assert len({record.memory_of(number) for number in made}) == len(made) == 200
    other = normal(4096)
    assert all(torch.equal(replayed(one)(other)[0], function(other)) for one in (record, tidy(record)))


def test_a_constant_is_held_though_python_lets_go_of_it():
    def function(x: torch.Tensor) -> torch.Tensor:
        for number in range(20):
            x = x + torch.from_numpy(np.full(64, number, np.float32)).exp() * 1e-9
        return x

    record, other = tidy(recorded(function, normal(64))), normal(64)
    assert len(record.constants) >= 20
    assert torch.equal(replayed(record)(other)[0], function(other))


def test_a_tensor_that_is_turned_in_place_is_known_as_it_lies_then():
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.t_()
        return y.t() + y

    record, other = tidy(recorded(function, normal(3, 3))), normal(3, 3)
    assert torch.equal(replayed(record)(other)[0], function(other))


def test_memory_that_was_seen_before_and_comes_back_in_an_unseen_way_ends_the_record():
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with torch.utils._python_dispatch._disable_current_modes():
            unseen = y[1:]
        return unseen + 1

    assert recorded(function, normal(3)).obstacle == "a tensor came about in a way that cannot be seen"
