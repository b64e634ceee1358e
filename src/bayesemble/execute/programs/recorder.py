"""Records which operations of torch a function is made of, below autograd and vmap.

What is recorded are plain operations on plain tensors, in their order. The function itself runs as ever meanwhile, and
lets go of tensors as ever: of most, a record needs to know only how they lay in memory. It stands for the function only
if Python did not look at any number on the way; where it did, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from bayesemble.core.seeds import EagerMode, is_random

CONSTANT_BYTES = 1 << 20  # the largest constant that is worked out beforehand
MADE_BY_SHAPE = {torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default, torch.ops.aten.full_like.default}


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


class Layout(NamedTuple):
    """How a tensor lies in memory, and in which."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    memory: int
    """What tells this memory from other memory."""
    memory_bytes: int

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        """That of a tensor."""
        memory, offset = tensor.untyped_storage(), int(tensor.storage_offset())
        return Layout(
            tensor.shape, tensor.stride(), offset, tensor.dtype, tensor.device, memory._cdata, memory.nbytes()
        )


@dataclass
class Record:
    """Operations in their order, on tensors by number: first the inputs, then constants and results as they came."""

    layouts: list[Layout] = field(default_factory=list)
    """Of each tensor, as it was last seen."""
    values: dict[int, Tensor] = field(default_factory=dict)
    """Constants, and small results of operations that take nothing else."""
    num_inputs: int = 0
    constants: set[int] = field(default_factory=set)
    operations: list[Operation] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)
    obstacle: str | None = None
    """Why there is no record, if so."""

    def memory_of(self, number: int) -> int:
        """What tells the memory that a tensor lies in from other memory."""
        return self.layouts[number].memory


def mapped(values: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Arguments of an operation, with something in the place of each that is of a kind."""
    if isinstance(values, kind):
        return function(values)
    if type(values) is tuple or type(values) is list:
        return type(values)([mapped(value, kind, function) for value in values])
    if type(values) is dict:
        return {name: mapped(value, kind, function) for name, value in values.items()}
    return values


def found_in(values: Any, kind: type) -> list[Any]:
    """All of a kind among the arguments of an operation."""
    if isinstance(values, kind):
        return [values]
    inner = values.values() if type(values) is dict else values if isinstance(values, tuple | list) else ()
    return [one for value in inner for one in found_in(value, kind)]


class Recorder(EagerMode):
    """Inside `with recorder:`, operations are recorded; `recorder.finish(outputs)` gives the record.

    It is given up when operations gave more than so many bytes. Tensors that are `steady` keep their numbers, and parts
    of them may come from anywhere; whoever says so sees to it that the function does not write into them.
    """

    def __init__(self, inputs: Sequence[Tensor], most_bytes: int = 1 << 26, steady: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._steady = {tensor.untyped_storage()._cdata for tensor in steady}
        self.record = Record()
        # Tensors and their memory are known by where torch keeps account of them. As long as there is a weak reference,
        # no other comes to that place, though the numbers themselves may be gone.
        self._slots: dict[int, int] = {}
        self._tensors: list[Any] = []
        self._storages: dict[int, StorageWeakRef] = {}
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
        if self.record.obstacle is None and not _strided((args, kwargs)):
            self.give_up(f"{func} takes tensors that are sparse or nested")
        if self.record.obstacle is not None:
            return func(*args, **kwargs)
        slots = mapped((args, kwargs), Tensor, self._slot)
        found = self._carried_out(func, args, kwargs)
        self._keep(func, slots, found)
        return found

    def _carried_out(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives."""
        return func(*args, **kwargs)

    def _keep(self, func: Any, slots: Any, found: Any) -> None:
        leaves = [] if found is None else pytree.tree_leaves(found)
        if is_random(func, *slots) or "generator" in slots[1]:
            self.give_up(f"{func} draws random numbers")
        elif torch.Tag.dynamic_output_shape in func.tags or not all(isinstance(leaf, Tensor | None) for leaf in leaves):
            self.give_up(f"what is done depends on numbers that {func} gives")
        elif not _strided(leaves):
            self.give_up(f"{func} gives tensors that are sparse or nested")
        elif self._bytes > self._most_bytes:
            self.give_up("it takes too much memory")
        if self.record.obstacle is None:
            given = tuple(None if leaf is None else self._number(leaf) for leaf in leaves)
            args, kwargs = slots
            one = Operation(func, args, kwargs, given, isinstance(found, Tensor))
            self.record.operations.append(one)
            if func in MADE_BY_SHAPE or all(number in self.record.values for number in slots_of(one)):
                self._hold(leaves)

    def _hold(self, tensors: Sequence[Tensor | None]) -> None:
        """Keep the values of what may turn out to be constant."""
        for tensor in tensors:
            if tensor is not None and tensor.untyped_storage().nbytes() <= CONSTANT_BYTES:
                self.record.values[self._slots[tensor._cdata]] = tensor

    def _slot(self, tensor: Tensor) -> Slot:
        if tensor._cdata not in self._slots:
            memory = tensor.untyped_storage()._cdata
            if memory in self._storages and memory not in self._steady:
                self.give_up("a tensor came about in a way that cannot be seen")
            number = self._add(tensor)
            self.record.constants.add(number)
            self.record.values[number] = tensor
        return Slot(self._slots[tensor._cdata])

    def _number(self, tensor: Tensor) -> int:
        if tensor._cdata not in self._slots:
            return self._add(tensor)
        number = self._slots[tensor._cdata]
        self.record.layouts[number] = self._layout(tensor)
        return number

    def _add(self, tensor: Tensor) -> int:
        number = self._slots[tensor._cdata] = len(self.record.layouts)
        self._tensors.append(torch._C._WeakTensorRef(tensor))  # type: ignore[attr-defined]
        self.record.layouts.append(self._layout(tensor))
        return number

    def _layout(self, tensor: Tensor) -> Layout:
        found = Layout.of(tensor)
        if found.memory not in self._storages:
            self._storages[found.memory] = StorageWeakRef(tensor.untyped_storage())
            self._bytes += found.memory_bytes
        return found

    def give_up(self, obstacle: str) -> None:
        """Let go of all tensors; the function goes on unrecorded."""
        self.record = Record(obstacle=obstacle)
        self._slots.clear()
        self._tensors.clear()
        self._storages.clear()


def slots_of(operation: Operation) -> list[int]:
    """The tensors that an operation reads, by number."""
    return [slot.number for slot in found_in((operation.args, operation.kwargs), Slot)]


def _strided(values: Any) -> bool:
    """Whether all tensors among these lie in memory of their own by strides."""
    return all(one.layout is torch.strided and not one.is_nested for one in found_in(values, Tensor))
