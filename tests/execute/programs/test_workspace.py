"""Results that have a place beforehand are the same to the bit, and never lie where another is still needed."""

import pytest
import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.execute.programs import workspace
from bayesemble.execute.programs.program import replayed, tidy
from bayesemble.execute.programs.workspace import INTO, MADE_EMPTY, Workspace
from execute.programs.test_program import NETWORKS, copies
from execute.programs.test_recorder import normal, recorded

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _small_results_have_a_place_too(monkeypatch) -> None:
    monkeypatch.setattr(workspace, "_LARGE", 1)


def step_of(name: str, members: int = 3):
    """A gradient step of stacked networks, in place, and its leaves."""
    with seeds.scoped(0):
        network = NETWORKS[name]()
    leaves = {key: torch.stack([leaf.detach() + 0.1 * i for i in range(members)]) for key, leaf in _all(network)}
    names = [key for key, _ in network.named_parameters()]

    def loss(own: dict[str, Tensor], others: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(network, own | others, (x,)).square().mean()

    def step(x: Tensor, *state: Tensor) -> Tensor:
        whole = dict(zip(leaves, state, strict=True))
        own = {key: whole[key].detach().requires_grad_() for key in names}
        others = {key: leaf for key, leaf in whole.items() if key not in names}
        with torch.enable_grad():
            values = torch.vmap(loss, (0, 0, None))(own, others, x)
        for key, slope in zip(names, torch.autograd.grad(values.sum(), list(own.values())), strict=True):
            whole[key].sub_(torch.empty_like(whole[key]).copy_(slope), alpha=0.1)
        return values.detach()

    return step, list(leaves.values())


def _all(network: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return [*network.named_parameters(), *network.named_buffers()]


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_with_a_workspace_are_the_same_bits_on_other_numbers_too(name):
    step, leaves = step_of(name)
    record = tidy(recorded(step, normal(8, 6), *copies(leaves)))
    room = Workspace()
    with_places, here, there = replayed(record, room), copies(leaves), copies(leaves)
    assert room.places(record)
    for _ in range(3):
        x = normal(8, 6)
        assert torch.equal(with_places(x, *here)[0], step(x, *there))
        for one, other in zip(here, there, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_needed_at_the_same_time_shares_no_place(name):
    step, leaves = step_of(name)
    record = tidy(recorded(step, normal(8, 6), *copies(leaves)))
    blocks = workspace._blocks(record)
    total = workspace._settled(blocks)
    assert 0 < total < sum(block.num_bytes for block in blocks)
    for number, one in enumerate(blocks):
        assert one.offset % 64 == 0
        assert one.offset + one.num_bytes <= total
        for other in blocks[:number]:
            apart = one.offset + one.num_bytes <= other.offset or other.offset + other.num_bytes <= one.offset
            assert apart or not one.meets(other)


def test_inputs_constants_and_outputs_have_no_place():
    outside = normal(5)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x.tanh()
        return kept.exp() + outside, kept.view(1, 5)

    record = tidy(recorded(function, normal(5)))
    places = Workspace().places(record)
    held = {record.memory_of(slot.number) for slot in record.outputs} | {record.memory_of(0)}
    assert len(places) == 1  # the exponentials alone: what the second output looks at is an output too
    assert not {record.memory_of(number) for number in places} & held
    replay = replayed(record, Workspace())
    (one, kept), (two, _) = replay(x := normal(5)), replay(normal(5))
    assert torch.equal(one, function(x)[0])
    assert torch.equal(kept, function(x)[1])
    assert not torch.equal(one, two)


def test_a_tensor_is_not_written_over_before_all_have_read_it():
    """It is read twice by one operation, or once more later, or by a view."""
    for function in (
        lambda x: (x.exp() * 2).neg() + x.exp().mul(3),
        lambda x: (kept := x.exp()).neg().tanh() + kept,
        lambda x: (kept := x.exp()) * kept.flip(0) + kept.view(25).neg().view(5, 5),
        lambda x: ((kept := x.exp()) + kept.mT).neg(),
        lambda x: (kept := x.exp()).mm(kept).neg(),
    ):
        x = normal(5, 5)
        record = tidy(recorded(function, x))
        assert torch.equal(replayed(record, Workspace())(x)[0], function(x))


def test_programs_share_the_room_of_the_largest():
    room = Workspace()
    small, large = (tidy(recorded(lambda x: x.exp().tanh().sum(), normal(size))) for size in (100, 1000))
    one, other = replayed(large, room), replayed(small, room)
    (places,) = {place.untyped_storage().data_ptr() for place in room.places(small).values()}
    assert places == next(iter(room.places(large).values())).untyped_storage().data_ptr()
    for replay, size in ((one, 1000), (other, 100), (one, 1000)):
        x = normal(size)
        assert torch.equal(replay(x)[0], x.exp().tanh().sum())


SPECIAL = torch.tensor([[0.0, -0.0, 1e-30, float("nan"), float("inf"), -float("inf"), -2.5, 3.0]] * 8)
ARGUMENTS = {
    aten.threshold_backward.default: lambda: (normal(8, 8), SPECIAL, 0),
    aten.bmm.default: lambda: (normal(2, 8, 8), normal(2, 8, 8)),
    aten.baddbmm.default: lambda: (normal(2, 1, 8), normal(2, 8, 8), normal(2, 8, 8)),
    aten.mm.default: lambda: (normal(8, 8), normal(8, 8)),
    aten.addmm.default: lambda: (normal(8), normal(8, 8), normal(8, 8)),
}


@pytest.mark.parametrize("function", INTO, ids=str)
def test_an_operation_puts_the_same_bits_into_a_place(function):
    count = sum(argument.name in ("self", "other") for argument in function._schema.arguments)
    given = ARGUMENTS.get(function, lambda: (SPECIAL, normal(8, 8))[:count])()
    expected = function(*given)
    place = torch.full_like(expected, 7)
    found = INTO[function](*given, out=place)
    assert found.data_ptr() == place.data_ptr()
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_room_for_a_copy_is_made_without_an_operation():
    record = tidy(recorded(lambda x: torch.empty_like(x).copy_(x).exp(), normal(4, 4)))
    assert record.operations[0].function in MADE_EMPTY
    assert set(Workspace().places(record)) == {record.operations[0].results[0]}
