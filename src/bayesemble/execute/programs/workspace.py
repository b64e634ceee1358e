"""One piece of memory for all large results on the way through a program, which stays from one run to the next.

When each of them is born and read last is known from the record. So their places are settled beforehand: what is never
there at the same time shares a place, and an operation that goes number by number writes over what it reads last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.execute.programs.recorder import Layout, Operation, Record, slots_of

aten = torch.ops.aten
_LARGE = 1 << 14  # bytes: to find room for less takes no time
_ALIGNMENT = 64  # bytes, as of tensors of their own
MADE_EMPTY = {aten.empty_like.default, aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default}

_NUMBER_BY_NUMBER: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.exp.default: torch.exp,
    aten.sqrt.default: torch.sqrt,
    aten.relu.default: lambda one, out: torch.clamp_min(one, 0, out=out),
    aten.threshold_backward.default: lambda slope, one, least, out: aten.threshold_backward.grad_input(
        slope, one, least, grad_input=out
    ),
}
INTO: dict[Any, Callable[..., Any]] = {
    **_NUMBER_BY_NUMBER,
    aten.bmm.default: torch.bmm,
    aten.mm.default: torch.mm,
    aten.baddbmm.default: torch.baddbmm,
    aten.addmm.default: torch.addmm,
    aten.clone.default: lambda one, out, **_: out.copy_(one),
}
"""Operations that can put what they give into a place, to the same bits, and the functions that do so."""


class Workspace:
    """Memory that several programs use, one at a time."""

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def places(self, record: Record) -> dict[int, Tensor]:
        """Tensors for the large results of a record, by their numbers."""
        blocks = _blocks(record)
        total = _settled(blocks)
        if total > self._room.numel():
            self._room = torch.empty(total, dtype=torch.uint8)
        return {
            number: self._room[block.offset : block.offset + block.num_bytes]
            .view(layout.dtype)
            .as_strided(layout.shape, layout.stride, block.offset // layout.dtype.itemsize)
            for block in blocks
            for number, layout in block.results.items()
        }


@dataclass
class _Block:
    """A place that results have one after the other, each written over the one before."""

    results: dict[int, Layout]
    num_bytes: int
    first: int
    """The operation that the first of them comes from."""
    last: int
    """The one that reads the last of them last."""
    offset: int = 0

    def meets(self, other: _Block) -> bool:
        return self.first <= other.last and other.first <= self.last


def _blocks(record: Record) -> list[_Block]:
    """The results that can be put into a place, and how long each is needed."""
    last = _last_uses(record)
    held = {record.memory_of(number) for number in (*range(record.num_inputs), *record.constants)}
    held |= {record.memory_of(slot.number) for slot in record.outputs}
    held |= {record.memory_of(n) for one in record.operations if _changes_form(one) for n in slots_of(one)}
    known, found = set(held), dict[int, _Block]()
    for index, one in enumerate(record.operations):
        memories = [record.memory_of(number) for number in one.results]
        new = one.single and len(memories) == 1 and memories[0] not in known
        known.update(memories)
        if not new or (one.function not in INTO and one.function not in MADE_EMPTY):
            continue
        (number,), (memory,) = one.results, memories
        layout = record.layouts[number]
        if layout.memory_bytes < _LARGE or layout.device.type != "cpu" or not _fills(layout):
            continue
        before = _written_over(one, index, layout, record, found, last)
        if before is None:
            found[memory] = _Block({number: layout}, layout.memory_bytes, index, last[memory])
        else:
            before.results[number], before.last = layout, last[memory]
            found[memory] = before
    return list({id(block): block for block in found.values()}.values())


def _written_over(
    operation: Operation, index: int, layout: Layout, record: Record, found: dict[int, _Block], last: dict[int, int]
) -> _Block | None:
    """The block of a tensor that the operation is the last to read, number by number in the order of the result."""
    if operation.function not in _NUMBER_BY_NUMBER:
        return None
    for number in slots_of(operation):
        memory, own = record.memory_of(number), record.layouts[number]
        alike = own.shape == layout.shape and own.stride == layout.stride and own.dtype == layout.dtype
        read_once = sum(record.memory_of(other) == memory for other in slots_of(operation)) == 1
        if memory in found and alike and _fills(own) and read_once and last[memory] == found[memory].last == index:
            return found[memory]
    return None


def _last_uses(record: Record) -> dict[int, int]:
    """The last operation that has to do with each memory."""
    last: dict[int, int] = {}
    for index, one in enumerate(record.operations):
        last |= {record.memory_of(number): index for number in (*slots_of(one), *one.results)}
    return last


def _fills(layout: Layout) -> bool:
    """Whether a tensor is all that lies in its memory, without gaps."""
    numbers = layout.shape.numel()
    steps = sorted((step, size) for step, size in zip(layout.stride, layout.shape, strict=True) if size > 1)
    whole = 1
    for step, size in steps:
        if step != whole:
            return False
        whole *= size
    return layout.offset == 0 and numbers * layout.dtype.itemsize == layout.memory_bytes


def _changes_form(operation: Operation) -> bool:
    return torch.Tag.inplace_view in operation.function.tags


def _settled(blocks: list[_Block]) -> int:
    """Give each block its place, the largest first, at the lowest that is free; bytes that are needed in all."""
    placed: list[_Block] = []
    for block in sorted(blocks, key=lambda one: one.num_bytes, reverse=True):
        block.offset = 0
        for other in sorted((one for one in placed if one.meets(block)), key=lambda one: one.offset):
            if block.offset + block.num_bytes <= other.offset:
                break
            block.offset = max(block.offset, -(-(other.offset + other.num_bytes) // _ALIGNMENT) * _ALIGNMENT)
        placed.append(block)
    return max((block.offset + block.num_bytes for block in placed), default=0)
