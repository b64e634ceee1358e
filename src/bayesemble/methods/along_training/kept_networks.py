"""Networks collected along the way of training: weights and statistics of every member at a few chosen steps.

They lie in a slot beside the members, `(member, sample, ...)`, each with the batch-norm statistics that it had then.
Which positions hold one is kept beside them, `(member, sample)`; all members are collected at the same steps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesemble.core.members import Members, State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Leaves

# Names of slots.
NETWORKS = "collected"  # parameters and buffers that members have of their own, (member, sample, ...)
FILLED = "collected_places"  # whether there is one, (member, sample)

SLOTS = (NETWORKS, FILLED)


class Moment(NamedTuple):
    """What is done in a step of a run."""

    factor: float
    """On the learning rate."""
    keep: int | None = None
    """Where the networks are kept afterwards, if they are."""
    sampling: bool = False
    """Whether noise is added."""


def make(members: Members, num: int, allocator: Allocator = MEMORY) -> dict[str, Leaves]:
    """Slots with room for `num` networks of each member."""
    own = {name: leaf for name, leaf in _leaves(members).items() if name not in members.shared}
    wide = {name: leaf.unsqueeze(1).expand(-1, num, *leaf.shape[1:]) for name, leaf in own.items()}
    filled = torch.zeros(members.num_members, num, dtype=torch.bool)
    return {NETWORKS: allocator.zeros_like(wide, NETWORKS), FILLED: {"filled": filled}}


def put(state: State, index: int) -> None:
    """Copy the members, as they are now, at one of the positions; what was there before is replaced."""
    members = state.members
    now = _leaves(members)
    for name, leaf in state.slots[NETWORKS].items():
        leaf[:, index].copy_(now[name])
    state.slots[FILLED]["filled"][:, index] = True


def networks(state: State) -> Members:
    """All that were collected, member after member, in the order of their positions; before there are any, the members.

    Each has its share of the weight of its member.
    """
    members, num = state.members, count(state)
    if not num:
        return members
    kept, filled = state.slots[NETWORKS], _filled(state)

    def joined(leaves: Leaves) -> Leaves:
        return {n: kept[n][:, filled].flatten(0, 1) if n in kept else leaf for n, leaf in leaves.items()}

    weights = (members.weights / num).repeat_interleave(num)
    return Members(joined(members.params), joined(members.buffers), weights, members.shared)


def count(state: State) -> int:
    """How many networks of each member were collected."""
    return int(_filled(state).sum()) if FILLED in state.slots else 0


def _filled(state: State) -> Tensor:
    """The positions that hold networks; those of a member that was left behind may be zero from then on."""
    return state.slots[FILLED]["filled"].any(0)


def _leaves(members: Members) -> Leaves:
    return members.params | members.buffers
