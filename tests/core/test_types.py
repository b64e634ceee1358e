import pytest
import torch

from bayesemble.core.types import (
    Batch,
    Clock,
    WeightedTargets,
    in_parts,
    is_named,
    map_tensors,
    tensors_of,
    total_weight,
)


def test_map_tensors_reaches_every_tensor_and_keeps_the_structure():
    nested = {"a": torch.ones(2), "b": (torch.ones(1), [torch.ones(3), "text", 5])}
    doubled = map_tensors(lambda leaf: 2 * leaf, nested)
    assert doubled["a"].tolist() == [2, 2]
    assert doubled["b"][0].tolist() == [2]
    assert doubled["b"][1][0].tolist() == [2, 2, 2]
    assert doubled["b"][1][1:] == ["text", 5]
    assert nested["a"].tolist() == [1, 1]


def test_tensors_of_lists_the_tensors_and_nothing_else():
    first, second = torch.zeros(1), torch.zeros(2)
    found = tensors_of((first, {"mask": second, "flag": True}))
    assert found[0] is first
    assert found[1] is second
    assert len(found) == 2


def test_all_members_see_the_same_batch_unless_it_is_per_member():
    inputs, targets = torch.arange(6.0).reshape(2, 3), torch.arange(2)
    shared = Batch(inputs, targets)
    assert all(shared.inputs_of(m) is inputs and shared.targets_of(m) is targets for m in range(2))

    own = Batch(inputs, targets, inputs_per_member=True, targets_per_member=True)
    assert torch.equal(own.inputs_of(1), inputs[1])
    assert own.targets_of(1) == 1


def test_inputs_and_targets_can_be_per_member_independently():
    batch = Batch({"x": torch.arange(4.0).reshape(2, 2)}, torch.tensor([5, 6]), inputs_per_member=True)
    assert batch.inputs_of(1)["x"].tolist() == [2, 3]
    assert batch.targets_of(1).tolist() == [5, 6]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("numbered", [False, True])
def test_the_parts_of_a_batch_are_views_of_its_rows_in_turn(nested, numbered):
    x, y, rows = torch.arange(10.0).reshape(5, 2), torch.arange(5), torch.arange(5) + 7 if numbered else None
    first, second = Batch({"a": x, "b": (x + 1,)} if nested else x, y, rows).parts([2, 3])
    for part, places in ((first, slice(0, 2)), (second, slice(2, 5))):
        seen = part.inputs["a"] if nested else part.inputs
        assert torch.equal(seen, x[places])
        assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert not nested or torch.equal(part.inputs["b"][0], x[places] + 1)
        assert torch.equal(part.targets, y[places])
        assert torch.equal(part.rows, rows[places]) if numbered else part.rows is None


def test_progress_runs_from_0_to_just_below_1():
    shares = [Clock(step, 4, seed=0).progress for step in range(4)]
    assert shares == [0, 0.25, 0.5, 0.75]


def test_seeds_of_a_member_depend_on_seed_step_and_member_but_not_on_the_number_of_members():
    seeds = Clock(3, 10, seed=1).member_seeds(5)
    assert seeds[:2] == Clock(3, 99, seed=1).member_seeds(2)
    others = [Clock(4, 10, seed=1).member_seeds(5), Clock(3, 10, seed=2).member_seeds(5)]
    assert len({*seeds, *others[0], *others[1]}) == 15


def test_a_clock_cannot_be_turned():
    with pytest.raises(AttributeError, match="cannot assign to field 'step'"):
        Clock(0, 1, 0).step = 1


@pytest.mark.parametrize("per_member", [False, True])
def test_a_batch_is_split_into_parts_that_hold_all_its_rows_in_order(per_member):
    shape = (3, 7) if per_member else (7,)
    values = torch.arange(21.0 if per_member else 7.0).reshape(shape)
    batch = Batch({"x": values.unsqueeze(-1)}, values, values.long(), per_member, per_member)
    parts = batch.within(3)
    assert [part.num_rows for part in parts] == [3, 3, 1]
    axis = 1 if per_member else 0
    for name, whole in (("targets", values), ("rows", values.long())):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], axis), whole)
    assert torch.equal(torch.cat([part.inputs["x"] for part in parts], axis), values.unsqueeze(-1))
    assert batch.within(None) == batch.within(7) == [batch]


def test_a_run_without_steps_is_over():
    assert Clock(0, 0, seed=0).progress == 1.0


def test_rows_are_taken_from_weighted_targets_as_from_a_tensor():
    targets = WeightedTargets(torch.arange(12.0).reshape(6, 2), torch.arange(6.0))
    assert (len(targets), targets.shape) == (6, (6, 2))
    assert torch.equal(targets[1:3].values, targets.values[1:3])
    assert torch.equal(targets[1:3].weights, torch.tensor([1.0, 2.0]))
    parts = targets.split([4, 2])
    assert [part.weights.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5]]
    assert [leaf.shape for leaf in tensors_of(targets)] == [(6, 2), (6,)]
    doubled = map_tensors(lambda leaf: 2 * leaf, targets)
    assert isinstance(doubled, WeightedTargets)
    assert torch.equal(doubled.weights, 2 * targets.weights)
    assert total_weight(targets) == 15
    assert total_weight(targets.values) == 6
    batch = Batch(torch.zeros(6, 1), targets)
    assert [part.num_rows for part in batch.parts([4, 2])] == [4, 2]
    assert in_parts(targets.values) == (targets.values, None)


def test_leaves_are_meant_by_name_or_pattern():
    assert is_named("head.weight", ["head.*"])
    assert is_named("head.weight", ["body.*", "head.weight"])
    assert not is_named("Head.weight", ["head.*"]), "letters are told apart on every system"
    assert not is_named("head.weight", [])
