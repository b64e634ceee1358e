"""Small shared types: leaves, batches, the clock of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Size, Tensor
from torch.utils import _pytree as pytree

from bayesemble.core import seeds

Leaves = dict[str, Tensor]
"""Named tensors of a network: parameters or buffers, of one member or stacked `(member, ...)`."""

Inputs = Any
"""What the network takes: a tensor, or a tuple or dict of tensors, rows first."""

Info = dict[str, Tensor]
"""What a person wants to see of a step: flat, one number per member."""

MemberFunction = Callable[[Leaves, Leaves, Inputs, Any], Tensor]
"""A function of one member: `(parameters, buffers, inputs, targets) -> tensor`."""

Outputs = dict[str, Tensor]
"""What a member gives by name, of one member or stacked `(member, ...)`."""

OutputFunction = Callable[[Leaves, Leaves, Inputs, Any], Outputs]
"""A function of one member: `(parameters, buffers, inputs, targets) -> named tensors`."""


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns means the leaf of this name: `*` is any text, `?` any letter, `[ab]` one of these."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


_WITHOUT_FLOAT64 = {"mps"}


def widest(device: torch.device) -> torch.dtype:
    """The most exact number type that a kind of device has."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def exact(values: Tensor) -> Tensor:
    """The same numbers in double precision; they come to the CPU if their device has none."""
    return (values if widest(values.device) == torch.float64 else values.cpu()).double()


def brought_to(values: Tensor, device: torch.device) -> Tensor:
    """Exact numbers on a device, as exact as it has them."""
    return values.to(device, widest(device))


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor of nested inputs."""
    return function(inputs) if isinstance(inputs, Tensor) else pytree.tree_map_only(Tensor, function, inputs)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """List the tensors of nested inputs."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, eq=False)
class WeightedTargets:
    """Targets with a weight for each row. Rows are taken from it as from a tensor."""

    values: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> WeightedTargets:
        return WeightedTargets(self.values[rows], self.weights[rows])

    @property
    def shape(self) -> Size:
        """That of the values."""
        return self.values.shape

    def split(self, sizes: Sequence[int]) -> list[WeightedTargets]:
        """Views of so many rows each."""
        return [
            WeightedTargets(*parts) for parts in zip(self.values.split(sizes), self.weights.split(sizes), strict=True)
        ]

    def cpu(self) -> WeightedTargets:
        """The same in main memory."""
        return WeightedTargets(self.values.cpu(), self.weights.cpu())


pytree.register_pytree_node(
    WeightedTargets,
    lambda own: ([own.values, own.weights], None),
    lambda parts, _: WeightedTargets(*parts),
    serialized_type_name="bayesemble.WeightedTargets",
)

Targets = Tensor | WeightedTargets


def in_parts(targets: Targets) -> tuple[Tensor, Tensor | None]:
    """Targets and weights; None if rows have none."""
    return (targets.values, targets.weights) if isinstance(targets, WeightedTargets) else (targets, None)


def total_weight(targets: Targets) -> float:
    """What the rows of one member count for together: their number, unless they have weights."""
    if not isinstance(targets, WeightedTargets):
        return len(targets)
    return float(targets.weights.to(widest(targets.weights.device)).sum())


@dataclass(frozen=True)
class Batch:
    """Some rows of data, seen by all members or (per member) with a leading member axis.

    Shape: inputs `(batch, ...)` or `(member, batch, ...)`, targets likewise.
    """

    inputs: Inputs
    targets: Targets
    rows: Tensor | None = None  # where these rows stand in the data, if that is known: (batch,) or (member, batch)
    inputs_per_member: bool = False
    targets_per_member: bool = False

    @property
    def num_rows(self) -> int:
        """How many rows a member sees."""
        return self.targets.shape[1 if self.targets_per_member else 0]

    def parts(self, sizes: Sequence[int]) -> Iterator[Batch]:
        """Views of so many rows each, one after the other, of a batch that all members see."""
        rows = [None] * len(sizes) if self.rows is None else self.rows.split(sizes)
        inputs: Sequence[Inputs]
        if isinstance(self.inputs, Tensor):
            inputs = self.inputs.split(sizes)
        else:
            leaves, form = pytree.tree_flatten(self.inputs)
            split = [leaf.split(sizes) for leaf in leaves]
            inputs = [pytree.tree_unflatten(one, form) for one in zip(*split, strict=True)]
        return map(Batch, inputs, self.targets.split(sizes), rows)

    def within(self, most: int | None) -> list[Batch]:
        """Views of at most so many rows each, one after the other; None is all of them."""
        if most is None or self.num_rows <= most:
            return [self]
        return [self.rows_between(start, min(start + most, self.num_rows)) for start in range(0, self.num_rows, most)]

    def rows_between(self, start: int, stop: int) -> Batch:
        """A view of the rows from `start` up to `stop`, of each member if they have rows of their own."""
        return self._by_rows(lambda leaf, axis: leaf.narrow(axis, start, stop - start))

    def rows_at(self, places: Tensor) -> Batch:
        """A copy of the rows at these places, of each member if they have rows of their own."""
        return self._by_rows(lambda leaf, axis: leaf.index_select(axis, places))

    def _by_rows(self, function: Callable[[Tensor, int], Tensor]) -> Batch:
        """The batch that a function makes of each tensor and the axis of its rows."""

        def rows(leaf: Tensor, per_member: bool) -> Tensor:
            return function(leaf, 1 if per_member else 0)

        inputs = map_tensors(lambda leaf: rows(leaf, self.inputs_per_member), self.inputs)
        places = None if self.rows is None else rows(self.rows, self.rows.dim() == 2)
        targets = pytree.tree_map(lambda leaf: rows(leaf, self.targets_per_member), self.targets)
        return Batch(inputs, targets, places, self.inputs_per_member, self.targets_per_member)

    def of_members(self, start: int, stop: int) -> Batch:
        """What the members from `start` up to `stop` see of it: a view."""
        inputs, targets, rows = self.inputs, self.targets, self.rows
        if self.inputs_per_member:
            inputs = map_tensors(lambda leaf: leaf[start:stop], inputs)
        if self.targets_per_member:
            targets = targets[start:stop]
        if rows is not None and rows.dim() == 2:
            rows = rows[start:stop]
        return Batch(inputs, targets, rows, self.inputs_per_member, self.targets_per_member)

    def inputs_of(self, member: int) -> Inputs:
        """Give the inputs that one member sees."""
        return map_tensors(lambda leaf: leaf[member], self.inputs) if self.inputs_per_member else self.inputs

    def targets_of(self, member: int) -> Targets:
        """Give the targets that one member sees."""
        return self.targets[member] if self.targets_per_member else self.targets


TrainingData = Callable[[], Iterator[Batch]]
"""Goes through the training rows once, in batches."""


@dataclass(frozen=True)
class Clock:
    """Where a run stands: which step of how many, and the seed that randomness derives from."""

    step: int
    total_steps: int
    seed: int

    @property
    def progress(self) -> float:
        """The share of the run that is done, in [0, 1); 1 of a run without steps."""
        return self.step / self.total_steps if self.total_steps else 1.0

    def of_members(self, start: int, stop: int, num_members: int) -> Clock:
        """The clock of some of the members, who draw the random numbers that they have among all."""
        numbers, whole = seeds.members_of(self.seed, num_members)
        return replace(self, seed=seeds.PartSeed(self.seed, numbers[start:stop], whole))

    def member_seeds(self, num_members: int) -> list[int]:
        """Seeds for what is random inside each member at this step, such as dropout masks."""
        return [seeds.child(self.seed, "member", i, "step", self.step) for i in range(num_members)]
