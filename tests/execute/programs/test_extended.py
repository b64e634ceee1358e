"""The record of many members, from those of one and of two, is the one that many would have given."""

import pytest
import torch
from torch import Tensor

from bayesemble.execute.programs.extended import NotRecordedError, extended
from bayesemble.execute.programs.program import replayed, tidy
from execute.programs.test_program import copies
from execute.programs.test_recorder import normal, recorded
from execute.programs.test_workspace import step_of

X = normal(8, 6)


def of_members(function, stacked: list[Tensor], num: int, *others: Tensor):
    """The record of the first members alone."""
    return recorded(function, *others, *(leaf[:num].clone() for leaf in stacked))


def widened(function, stacked: list[Tensor], *others: Tensor, fewest: int = 1):
    few, more = (of_members(function, stacked, fewest + extra, *others) for extra in (0, 1))
    return extended(few, more, len(stacked[0]) - fewest, [*others, *stacked])


@pytest.mark.parametrize(("name", "fewest"), [("dense", 1), ("dense", 2), ("images", 1), ("images", 2), ("norm", 2)])
def test_a_step_of_many_members_is_that_of_a_few_with_more_of_them(name, fewest):
    step, stacked = step_of(name, members=5)
    found, expected = widened(step, stacked, X, fewest=fewest), of_members(step, stacked, 5, X)
    for slot in range(found.num_inputs):
        assert found.layouts[slot][:2] == expected.layouts[slot][:2]
    assert [one.function for one in found.operations] == [one.function for one in expected.operations]
    replay, here, there = replayed(tidy(found)), copies(stacked), copies(stacked)
    for _ in range(2):
        x = normal(8, 6)
        assert torch.equal(replay(x, *here)[0], step(x, *there))
        assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda leaf: leaf.flatten(0, 1) * 2,
        lambda leaf: leaf.mT.reshape(-1, len(leaf)).sum(0),
        lambda leaf: leaf.movedim(0, 1).contiguous()[:, -1],
        lambda leaf: torch.zeros(len(leaf), 3) + leaf.sum(1),
        lambda leaf: leaf.new_ones(2 * len(leaf)).view(2, -1) * leaf.sum((1, 2)),
    ],
)
def test_wherever_the_member_axis_goes(function):
    leaf = normal(5, 4, 3)
    found = widened(function, [leaf], fewest=2)
    assert torch.equal(replayed(tidy(found))(leaf)[0], function(leaf))


def test_one_member_may_be_run_in_another_way():
    step, stacked = step_of("norm", members=5)
    with pytest.raises(NotRecordedError, match="with one member more, steps are of other operations"):
        widened(step, stacked, X, fewest=1)


OUTSIDE = {1: normal(1), 2: normal(2)}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda leaf: leaf * (1.0 / len(leaf)), "with one member more, it takes 0.5 in place of 1.0"),
        (lambda leaf: torch.stack([own * 2 for own in leaf]), "steps are of other operations"),
        (lambda leaf: leaf.exp() if len(leaf) > 1 else leaf.tanh(), "steps are of other operations"),
        (lambda leaf: leaf.sum((1, 2)) + OUTSIDE[len(leaf)], "numbers from elsewhere that go by the number of members"),
        (lambda leaf: leaf.as_strided((len(leaf), 3), (12, 1)) * 2, "goes by how tensors lie"),
        (lambda leaf: leaf * float(leaf.sum()), "_local_scalar_dense"),
    ],
)
def test_what_does_not_grow_with_the_members_in_a_known_way_is_no_record(function, words):
    with pytest.raises(NotRecordedError, match=words):
        widened(function, [normal(5, 4, 3)])


def test_inputs_that_lie_otherwise_are_no_inputs_of_it():
    few, more = (of_members(lambda leaf: leaf * 2, [normal(5, 4, 3)], num) for num in (1, 2))
    with pytest.raises(NotRecordedError, match="does not lie in memory as those of a few members tell"):
        extended(few, more, 4, [normal(5, 3, 4).mT])


def test_constants_that_grow_are_worked_out_anew():
    leaf, outside = normal(5, 4), normal(1)

    def function(leaf: Tensor) -> Tensor:
        ones = torch.ones_like(leaf.sum(1))
        return leaf * (ones * 3).unsqueeze(1) + torch.arange(len(leaf)).unsqueeze(1) * outside

    found = tidy(widened(function, [leaf]))
    assert torch.equal(replayed(found)(leaf)[0], function(leaf))
    known = {tuple(found.values[number].shape) for number in found.constants}
    assert {(5,), (5, 1)} <= known


def test_whole_numbers_that_grow_are_taken_on():
    leaf = normal(5, 4, 3)
    found = widened(lambda leaf: leaf / len(leaf), [leaf])
    assert torch.equal(replayed(tidy(found))(leaf)[0], leaf / 5)
