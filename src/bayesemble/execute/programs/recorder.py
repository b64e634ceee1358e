"""Records which operations of torch a function is made of, below autograd and vmap.

What is recorded are plain operations on plain tensors, in their order. The function itself runs as ever meanwhile. A
record stands for the function only if Python did not look at any number on the way; where it did, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core.seeds import EagerMode, is_random


class Slot(NamedTuple):
    """A tensor of a record, by its number."""

    number: int


@dataclass(frozen=True)
class Operation:
    """One operation: slots stand where tensors were."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[int | None, ...]
    """Slots of the tensors that it gave, None where it gave none; those that it only changed have theirs already."""
    single: bool
    """Whether it gave a tensor, rather than several."""

    @property
    def results(self) -> tuple[int, ...]:
        """Slots of the tensors that it gave."""
        return tuple(number for number in self.given if number is not None)


@dataclass
class Record:
    """Operations in their order, on tensors by number: first the inputs, then constants and results as they came."""

    tensors: list[Tensor] = field(default_factory=list)
    """Each as it was when the function had run: of their values, only those of constants are of use."""
    num_inputs: int = 0
    constants: set[int] = field(default_factory=set)
    operations: list[Operation] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)
    obstacle: str | None = None
    """Why there is no record, if so."""

    def memory_of(self, number: int) -> int:
        """What tells the memory that a tensor lies in from other memory."""
        return self.tensors[number].untyped_storage()._cdata


def mapped(values: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Arguments of an operation, with something in the place of each that is of a kind."""
    if isinstance(values, kind):
        return function(values)
    if type(values) is tuple or type(values) is list:
        return type(values)([mapped(value, kind, function) for value in values])
    if type(values) is dict:
        return {name: mapped(value, kind, function) for name, value in values.items()}
    return values


class Recorder(EagerMode):
    """Inside `with recorder:`, operations are recorded; `recorder.finish(outputs)` gives the record.

    All tensors are held meanwhile, up to so many bytes. Tensors that are `steady` keep their numbers, and parts of them
    may come from anywhere; whoever says so sees to it that the function does not write into them.
    """

    def __init__(self, inputs: Sequence[Tensor], most_bytes: int = 1 << 26, steady: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._steady = {tensor.untyped_storage()._cdata for tensor in steady}
        self.record = Record()
        self._slots: dict[int, int] = {}
        self._storages: set[int] = set()
        self._bytes = 0
        for tensor in inputs:
            self._add(tensor)
        self.record.num_inputs = len(inputs)
        self._bytes = 0  # inputs are there anyway, and may be a few rows of much
        if len(self._slots) < len(inputs):
            self.give_up("two inputs are one tensor")

    def finish(self, outputs: Sequence[Tensor]) -> Record:
        """The record of a function that gave these outputs."""
        if self.record.obstacle is None:
            self.record.outputs = [self._slot(tensor) for tensor in outputs]
        return self.record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.record.obstacle is not None:
            return func(*args, **kwargs)
        slots = mapped((args, kwargs), Tensor, self._slot)
        found = func(*args, **kwargs)
        self._keep(func, slots, found)
        return found

    def _keep(self, func: Any, slots: Any, found: Any) -> None:
        leaves = [] if found is None else pytree.tree_leaves(found)
        if is_random(func, *slots) or "generator" in slots[1]:
            self.give_up(f"{func} draws random numbers")
        elif torch.Tag.dynamic_output_shape in func.tags or not all(isinstance(leaf, Tensor | None) for leaf in leaves):
            self.give_up(f"what is done depends on numbers that {func} gives")
        elif self._bytes > self._most_bytes:
            self.give_up("it takes too much memory")
        if self.record.obstacle is None:
            given = tuple(None if leaf is None else self._number(leaf) for leaf in leaves)
            args, kwargs = slots
            self.record.operations.append(Operation(func, args, kwargs, given, isinstance(found, Tensor)))

    def _slot(self, tensor: Tensor) -> Slot:
        if id(tensor) not in self._slots:
            if tensor.untyped_storage()._cdata in self._storages - self._steady:
                self.give_up("a tensor came about in a way that cannot be seen")
            self.record.constants.add(self._add(tensor))
        return Slot(self._slots[id(tensor)])

    def _number(self, tensor: Tensor) -> int:
        return self._slots[id(tensor)] if id(tensor) in self._slots else self._add(tensor)

    def _add(self, tensor: Tensor) -> int:
        number = len(self.record.tensors)
        self.record.tensors.append(tensor)
        self._slots[id(tensor)] = number
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            self._bytes += storage.nbytes()
        return number

    def give_up(self, obstacle: str) -> None:
        """Let go of all tensors; the function goes on unrecorded."""
        self.record = Record(obstacle=obstacle)
        self._slots.clear()
