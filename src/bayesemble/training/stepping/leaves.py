"""The tensors of a step in an order of their own: a program takes and gives them one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from bayesemble.core.members import State
from bayesemble.core.types import Batch, tensors_of


def places_of(state: State) -> list[tuple[str, str]]:
    """Group and name of each leaf, but for the weights of the members; sorted, as groups have no order of their own."""
    return sorted((group, name) for group, leaves in state.groups().items() for name in leaves)


def leaves_of(state: State) -> list[Tensor]:
    """All leaves of a state in that order, and the weights of the members last."""
    groups = state.groups()
    return [*(groups[group][name] for group, name in places_of(state)), state.members.weights]


def with_leaves(like: State, found: Sequence[Tensor]) -> State:
    """A state that is laid out like another, with leaves as `leaves_of` gives them."""
    *leaves, weights = found
    places = dict(zip(places_of(like), leaves, strict=True))
    groups = {group: {name: places[group, name] for name in own} for group, own in like.groups().items()}
    state = like.with_groups(groups)
    return replace(state, members=replace(state.members, weights=weights))


def tensors_of_batch(batch: Batch) -> list[Tensor]:
    """Inputs, targets with their weights, and the numbers of the rows if these are known."""
    inputs = [batch.inputs] if isinstance(batch.inputs, Tensor) else tensors_of(batch.inputs)
    targets = [batch.targets] if isinstance(batch.targets, Tensor) else tensors_of(batch.targets)
    return [*inputs, *targets, *([] if batch.rows is None else [batch.rows])]
