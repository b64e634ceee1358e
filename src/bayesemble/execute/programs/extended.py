"""The record of many members, from those of a few, and of one more than these.

Where members know nothing of one another, their steps are made of the same operations however many they are: only the
sizes that hold the member axis grow with it, by as much with each member. So no copy of large members is needed to
record them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesemble.execute.programs.recorder import (
    MADE_BY_SHAPE,
    Layout,
    Operation,
    Record,
    Slot,
    mapped,
    slots_of,
)

aten = torch.ops.aten
_BY_STEPS = {aten.as_strided.default, aten.empty_strided.default, aten.new_empty_strided.default}


class NotRecordedError(RuntimeError):
    """Why there is no record."""


def extended(few: Record, more: Record, times: int, inputs: Sequence[Tensor]) -> Record:
    """What is more in one record than in the other, so many times more: the record that takes these inputs."""
    for record in (few, more):
        if record.obstacle is not None:
            raise NotRecordedError(record.obstacle)
    record = _Grown(few, more, times).record()
    for tensor, layout in zip(inputs, record.layouts, strict=False):
        if (tensor.shape, tensor.stride()) != (layout.shape, layout.stride):
            shape = tuple(tensor.shape)
            raise NotRecordedError(f"a tensor of shape {shape} does not lie in memory as those of a few members tell")
    return record


class _Grown:
    def __init__(self, few: Record, more: Record, times: int) -> None:
        self.few, self.more, self.times = few, more, times
        if _form(few) != _form(more):
            raise NotRecordedError("with one member more, steps are of other operations")

    def record(self) -> Record:
        few = self.few
        layouts = [self._layout(*pair) for pair in zip(few.layouts, self.more.layouts, strict=True)]
        operations = [self._operation(*pair) for pair in zip(few.operations, self.more.operations, strict=True)]
        values = {number: value for number, value in few.values.items() if self._same_value(number)}
        for one in operations:
            if one.results and set(one.results) <= few.values.keys() and not set(one.results) <= values.keys():
                values |= _made_anew(one, layouts, values)
        if not few.constants <= values.keys():
            raise NotRecordedError("it takes numbers from elsewhere that go by the number of members")
        return Record(layouts, values, few.num_inputs, set(few.constants), operations, list(few.outputs))

    def _same_value(self, number: int) -> bool:
        one, other = self.few.values[number], self.more.values.get(number)
        return other is not None and one.dtype == other.dtype and torch.equal(one, other)

    def _layout(self, one: Layout, other: Layout) -> Layout:
        shape = torch.Size(self._value(tuple(one.shape), tuple(other.shape)))
        # Along an axis of one the step means nothing: what one member more has is that of many.
        steps = zip(one.shape, one.stride, other.stride, strict=True)
        stride = tuple(there if length == 1 else self._value(here, there) for length, here, there in steps)
        offset, size = self._value((one.offset, one.memory_bytes), (other.offset, other.memory_bytes))
        return Layout(shape, stride, offset, one.dtype, one.device, one.memory, size)

    def _operation(self, one: Operation, other: Operation) -> Operation:
        if one.function in _BY_STEPS:
            raise NotRecordedError(f"{one.function} goes by how tensors lie, which one member does not tell")
        args, kwargs = self._value((one.args, one.kwargs), (other.args, other.kwargs))
        return Operation(one.function, args, kwargs, one.given, one.single)

    def _value(self, one: Any, other: Any) -> Any:
        """What an argument is for so many members."""
        if isinstance(one, Slot) or type(one) is not type(other):
            grows = one == other
        elif isinstance(one, tuple | list) and len(one) == len(other):
            return type(one)([self._value(*pair) for pair in zip(one, other, strict=True)])
        elif isinstance(one, dict) and one.keys() == other.keys():
            return {name: self._value(value, other[name]) for name, value in one.items()}
        elif type(one) is int:
            return one + self.times * (other - one)
        else:
            grows = one == other
        if not grows:
            raise NotRecordedError(f"with one member more, it takes {other!r} in place of {one!r}")
        return one


def _made_anew(operation: Operation, layouts: list[Layout], values: dict[int, Tensor]) -> dict[int, Tensor]:
    """What an operation gives that takes nothing but constants, or shapes."""

    def given(slot: Slot) -> Tensor:
        layout = layouts[slot.number]
        shape = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=layout.device)
        return shape if operation.function in MADE_BY_SHAPE else values[slot.number]

    known = operation.function in MADE_BY_SHAPE or all(number in values for number in slots_of(operation))
    if not known or operation.function._schema.is_mutable or not operation.single:
        return {}
    args, kwargs = mapped((operation.args, operation.kwargs), Slot, given)
    return {operation.results[0]: operation.function(*args, **kwargs)}


def _form(record: Record) -> Any:
    """What does not go by the number of members: operations, their results, and which tensors share memory."""
    memories: dict[int, int] = {}
    shared = [memories.setdefault(layout.memory, len(memories)) for layout in record.layouts]
    kinds = [(layout.dtype, layout.device, layout.shape.numel() > 0) for layout in record.layouts]
    operations = [(one.function, one.given, one.single) for one in record.operations]
    return record.num_inputs, record.constants, record.outputs, shared, kinds, operations
