"""What an ensemble is made of: parameters and buffers with a member axis, and what a method keeps beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Leaves, exact, widest

_AT_A_TIME = 1 << 18
"""How many numbers are looked at in one go."""


@dataclass(frozen=True, eq=False)
class Members:
    """Networks side by side. A leaf is stacked `(member, ...)`, or shared by all members (no member axis).

    Tensors are updated in place during training.
    """

    params: Leaves
    """What is inferred."""
    buffers: Leaves
    """What is not: batch-norm statistics, frozen parameters."""
    weights: Tensor
    """(member,), sums to one."""
    shared: frozenset[str] = frozenset()
    """Names of the leaves that have no member axis."""

    @staticmethod
    def stack(params: Sequence[Leaves], buffers: Sequence[Leaves], share: frozenset[str] = frozenset()) -> Members:
        """Put single networks side by side, with equal weights; leaves named in `share` are taken from the first."""

        def join(leaves: Sequence[Leaves]) -> Leaves:
            first = leaves[0]
            return {n: first[n] if n in share else torch.stack([one[n] for one in leaves]) for n in first}

        return Members(join(params), join(buffers), _equal_weights(len(params)), share)

    @staticmethod
    def gather(
        draw: Callable[[int], tuple[Leaves, Leaves]],
        num_members: int,
        share: frozenset[str] = frozenset(),
        allocator: Allocator = MEMORY,
    ) -> Members:
        """Stack networks that `draw(index)` gives, each of which comes to its place before the next is drawn."""

        def space(leaves: Leaves, group: str) -> Leaves:
            wide = {n: leaf if n in share else leaf.expand(num_members, *leaf.shape) for n, leaf in leaves.items()}
            if allocator.on_disk:
                return allocator.zeros_like(wide, group)
            kept = torch.contiguous_format
            return {n: one if n in share else torch.empty_like(one, memory_format=kept) for n, one in wide.items()}

        params, buffers = (space(leaves, group) for leaves, group in zip(draw(0), ("params", "buffers"), strict=True))
        for index in range(num_members):
            for stacked, leaves in zip((params, buffers), draw(index), strict=True):
                for name, leaf in leaves.items():
                    if name not in share:
                        stacked[name][index].copy_(leaf)
                    elif index == 0 and allocator.on_disk:
                        stacked[name].copy_(leaf)
        return Members(params, buffers, _equal_weights(num_members), share)

    @property
    def num_members(self) -> int:
        """How many members there are."""
        return len(self.weights)

    def axes(self, leaves: Leaves) -> dict[str, int | None]:
        """Where the member axis of each leaf is: 0, or None for a shared leaf."""
        return {name: None if name in self.shared else 0 for name in leaves}

    def split(self) -> list[tuple[Leaves, Leaves]]:
        """Views of the parameters and buffers of each member."""
        count = self.num_members

        def unbind(leaves: Leaves) -> list[Leaves]:
            rows = {n: [leaf] * count if n in self.shared else leaf.unbind(0) for n, leaf in leaves.items()}
            return [{name: row[i] for name, row in rows.items()} for i in range(count)]

        return list(zip(unbind(self.params), unbind(self.buffers), strict=True))

    def part(self, start: int, stop: int) -> Members:
        """Views of the members from `start` up to `stop`, with the weights they have among all."""
        return self._map_stacked(lambda leaf: leaf[start:stop])

    def take(self, indices: Tensor) -> Members:
        """Copies of the members at the given positions, equally weighted."""
        taken = self._map_stacked(lambda leaf: leaf[indices])
        return replace(taken, weights=_equal_weights(len(indices)))

    def unshared(self, names: Collection[str] | None = None) -> Members:
        """The same networks with a member axis on these shared leaves, or on all: views, not copies."""
        chosen = self.shared if names is None else self.shared & set(names)

        def over(leaves: Leaves) -> Leaves:
            return {
                n: leaf.expand(self.num_members, *leaf.shape) if n in chosen else leaf for n, leaf in leaves.items()
            }

        return replace(self, params=over(self.params), buffers=over(self.buffers), shared=self.shared - chosen)

    @staticmethod
    def concat(parts: Sequence[Members]) -> Members:
        """Parts, each with weights that sum to one and no shared leaves, side by side; each counts by its size."""

        def join(leaves: Sequence[Leaves]) -> Leaves:
            return {name: torch.cat([one[name] for one in leaves]) for name in leaves[0]}

        total = sum(part.num_members for part in parts)
        weights = torch.cat([part.weights * (part.num_members / total) for part in parts])
        return Members(join([part.params for part in parts]), join([part.buffers for part in parts]), weights)

    def reweight(self, weights: Any) -> Members:
        """The same members under other weights, normalised to sum to one."""
        tensor = exact(torch.as_tensor(weights))
        if tensor.shape != (self.num_members,) or not (tensor >= 0).all() or not 0 < tensor.sum() < math.inf:
            raise SettingError(
                f"weights must be {self.num_members} non-negative numbers, one per member, got {weights}"
            )
        return replace(self, weights=(tensor / tensor.sum()).to(self.weights))

    def first_not_finite(self) -> tuple[int | None, str] | None:
        """A member and one of its leaves with numbers that are not finite, or None; a shared leaf has no member.

        Infinite numbers in a buffer may be meant, as in the mask of an attention.
        """
        for name, leaf in (self.params | self.buffers).items():
            rows = leaf.unsqueeze(0) if name in self.shared else leaf
            few = how_many_fit(_AT_A_TIME, rows[:1].numel())  # members on disk do not come into memory at once
            for start, part in zip(range(0, len(rows), few), rows.split(few), strict=True):
                if part.sum().isfinite():  # quick; a sum may overflow though all are finite
                    continue
                sound = _sound(part, name in self.buffers)
                if not sound.all():
                    first = (~sound).reshape(len(part), -1).any(1).nonzero()[0]
                    return None if name in self.shared else start + int(first), name
        return None

    def _map_stacked(self, function: Callable[[Tensor], Tensor]) -> Members:
        def over(leaves: Leaves) -> Leaves:
            return {name: leaf if name in self.shared else function(leaf) for name, leaf in leaves.items()}

        return replace(self, params=over(self.params), buffers=over(self.buffers), weights=function(self.weights))


@dataclass(frozen=True, eq=False)
class State:
    """All a method needs for its next step: the members, and named slots of leaves beside them.

    Slots hold optimiser moments, anchors, running means and the like. Everything here is saved in checkpoints.
    """

    members: Members
    slots: dict[str, Leaves] = field(default_factory=dict)

    def map(self, function: Callable[[str, Tensor], Tensor]) -> State:
        """Apply a function of name and leaf to everything."""

        def over(leaves: Leaves) -> Leaves:
            return {name: function(name, leaf) for name, leaf in leaves.items()}

        old = self.members
        members = Members(over(old.params), over(old.buffers), function("weights", old.weights), old.shared)
        return State(members, {slot: over(leaves) for slot, leaves in self.slots.items()})

    def groups(self) -> dict[str, Leaves]:
        """All leaves but the weights, by group: parameters, buffers, and each slot under its own name."""
        return {"params": self.members.params, "buffers": self.members.buffers, **self.slots}

    def with_groups(self, groups: dict[str, Leaves]) -> State:
        """The state with other leaves in all its groups; weights are copied."""
        members = replace(
            self.members, params=groups["params"], buffers=groups["buffers"], weights=self.members.weights.clone()
        )
        return State(members, {slot: groups[slot] for slot in self.slots})

    def in_order(self, names: Sequence[str]) -> State:
        """The state with the leaves of each group in the order of these names, which a file does not keep."""
        places = {name: place for place, name in enumerate(names)}

        def ordered(leaves: Leaves) -> Leaves:
            return {
                name: leaves[name] for name in sorted(leaves, key=lambda name: (places.get(name, len(places)), name))
            }

        return self.with_groups({group: ordered(leaves) for group, leaves in self.groups().items()})

    def finite_members(self) -> Tensor:
        """Whether all numbers of each member are finite, `(member,)`."""
        finite = torch.ones(self.members.num_members, dtype=torch.bool, device=self.members.weights.device)
        for (group, _), leaf in self._of_members().items():
            finite &= _sound(leaf, group == "buffers").reshape(len(leaf), -1).all(1)
        return finite

    def put_back(self, members: Tensor, earlier: State) -> None:
        """Give some members all that they had in an earlier state, 0 for what was not finite even there; in place."""
        there = earlier._of_members()
        for place, leaf in self._of_members().items():
            kept = there[place][members]
            leaf[members] = kept.masked_fill(~_sound(kept, place[0] == "buffers"), 0)

    def _of_members(self) -> dict[tuple[str, str], Tensor]:
        """The leaves that have a member axis: of a slot, those whose first axis is as long."""
        found, own = {}, ("params", "buffers")
        for group, leaves in self.groups().items():
            for name, leaf in leaves.items():
                shared = name in self.members.shared and group in own
                if not shared and leaf.dim() and len(leaf) == self.members.num_members:
                    found[group, name] = leaf
        return found

    def part(self, start: int, stop: int, common: Collection[str] = ()) -> State:
        """Views of the members from `start` up to `stop`, with what slots have of them.

        What is kept for all together, as the slots that are `common`, is copied.
        """
        own = self._of_members().keys()

        def of_slot(slot: str, leaves: Leaves) -> Leaves:
            members = {name for name in leaves if (slot, name) in own and slot not in common}
            return {n: leaf[start:stop] if n in members else leaf.clone() for n, leaf in leaves.items()}

        slots = {slot: of_slot(slot, leaves) for slot, leaves in self.slots.items()}
        return State(self.members.part(start, stop), slots)

    def clone(self) -> State:
        """Copy, so that training can go on without changing what was kept; frozen leaves that all share stay one."""
        own = {name: leaf for name, leaf in self.members.buffers.items() if name not in self.frozen}
        copied = State(replace(self.members, buffers=own), self.slots).map(lambda _, leaf: leaf.clone())
        return copied.with_frozen(self.members.buffers)

    def with_frozen(self, buffers: Leaves) -> State:
        """The state with the buffers that it lacks, in the order of those given."""
        whole = {name: self.members.buffers.get(name, leaf) for name, leaf in buffers.items()}
        return replace(self, members=replace(self.members, buffers=whole))

    def take(self, positions: Tensor, slots: Collection[str]) -> State:
        """Some of the members, equally weighted; of these slots their rows, other slots whole, or none of any."""
        taken = {
            slot: {name: leaf[positions] for name, leaf in leaves.items()} if slot in slots else leaves
            for slot, leaves in self.slots.items()
        }
        return State(self.members.take(positions), taken if slots else {})

    @property
    def frozen(self) -> frozenset[str]:
        """Names of the leaves that no step changes: buffers that all members share."""
        return self.members.shared & self.members.buffers.keys()

    def to(self, device: torch.device) -> State:
        """Move to a device; numbers that are too exact for it become less so."""
        wide = widest(device)
        return self.map(lambda _, leaf: leaf.to(device, wide if leaf.dtype == torch.float64 else leaf.dtype))


def _equal_weights(num: int) -> Tensor:
    return torch.full((num,), 1 / num, dtype=torch.float64)


def _sound(leaf: Tensor, buffer: bool) -> Tensor:
    """Which numbers may be there."""
    return ~leaf.isnan() if buffer else leaf.isfinite()
