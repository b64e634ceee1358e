"""Leaves come out of a state in one order, whatever that of its groups, and go back to their places."""

import torch

import bayesemble as be
from bayesemble.core.types import Batch, WeightedTargets
from bayesemble.training.stepping.leaves import leaves_of, places_of, tensors_of_batch, with_leaves
from helpers import norm_mlp, table


def test_leaves_go_back_to_their_places():
    x, _ = table()
    state = be.DeepEnsemble(num_members=3).init(be.Task(norm_mlp, be.Categorical()).bind(len(x), x), seed=0)
    found = leaves_of(state)
    assert len(found) == len(places_of(state)) + 1
    assert found[-1] is state.members.weights
    moved = with_leaves(state, [leaf + 1 for leaf in found])
    assert places_of(moved) == places_of(state)
    for one, other in zip(leaves_of(moved), found, strict=True):
        assert torch.equal(one, other + 1)
    turned = state.in_order(sorted(name for leaves in state.groups().values() for name in leaves)[::-1])
    assert all(one is other for one, other in zip(leaves_of(turned)[:-1], found[:-1], strict=True))


def test_of_a_batch_all_that_a_step_reads_is_taken():
    x, y = table()
    weighted = WeightedTargets(y, torch.ones(len(y)))
    assert [tensor.shape for tensor in tensors_of_batch(Batch(x, y))] == [x.shape, y.shape]
    batch = Batch({"a": x, "b": (x, x)}, weighted, torch.arange(len(x)))
    assert len(tensors_of_batch(batch)) == 6
