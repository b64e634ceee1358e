"""Products of stacked matrices that are only read transposed, as the gradients of dense layers are.

Taken the other way round, with both factors transposed, they lie as they are read, and nothing need be turned.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bayesemble.execute.programs.recorder import Layout, Operation, Record, Slot, slots_of

aten = torch.ops.aten


def read_transposed(record: Record) -> set[int]:
    """The places of the products that are read transposed alone."""
    readers: dict[int, set[bool]] = {slot.number: {False} for slot in record.outputs}
    for one in record.operations:
        for number in slots_of(one):
            readers.setdefault(number, set()).add(one.function is aten.transpose.int)
    products = ((index, one) for index, one in enumerate(record.operations) if one.function is aten.bmm.default)
    return {index for index, one in products if readers.get(one.results[0]) == {True}}


def turned(record: Record) -> Record:
    """The record with products that it copies to turn them taken the other way round, where the bits are the same."""
    record = replace(record, layouts=list(record.layouts))
    operations = {index: [one] for index, one in enumerate(record.operations)}
    for index in read_transposed(record):
        product, found = record.operations[index], _turned_by_copy(record, record.operations[index].results[0])
        one, other = slots_of(product)
        if found is None or not _same_bits(record.layouts[one], record.layouts[other]):
            continue
        made, places = found
        views = [_transpose(record, number) for number in (other, one)]
        factors = tuple(Slot(view.results[0]) for view in views)
        operations[index] = [*views, Operation(product.function, factors, {}, (made,), True)]
        operations |= {place: [] for place in places}
    return replace(record, operations=[one for some in operations.values() for one in some])


def _turned_by_copy(record: Record, product: int) -> tuple[int, list[int]] | None:
    """The tensor that a product is copied to, transposed, and what is done for it: a view, the room and the copy."""
    memory = record.memory_of(product)
    views = [index for index, one in enumerate(record.operations) if product in slots_of(one)]
    if len(views) != 1:
        return None
    (view,) = record.operations[views[0]].results
    readers = [index for index, one in enumerate(record.operations) if view in slots_of(one)]
    copy = record.operations[readers[0]] if len(readers) == 1 else None
    if copy is None or copy.function is not aten.copy_.default or slots_of(copy)[1] != view:
        return None
    made = slots_of(copy)[0]
    used = {number for one in record.operations for number in (*slots_of(one), *one.results)}
    others = {number for number in used if record.memory_of(number) == memory} - {product, view}
    before = enumerate(record.operations[: readers[0]])
    room = [index for index, one in before if made in (*slots_of(one), *one.results)]
    wanted, given = record.layouts[view], record.layouts[made]
    empty = len(room) == 1 and record.operations[room[0]].function is aten.empty_like.default
    alike = wanted == _transposed(record.layouts[product]) and wanted.shape == given.shape
    alike = alike and wanted.dtype == given.dtype and _lies_in_order(given)
    return (made, [views[0], room[0], readers[0]]) if empty and alike and not others else None


def _lies_in_order(layout: Layout) -> bool:
    return layout.stride == torch.empty(layout.shape, device="meta").stride() and layout.offset == 0


def _transpose(record: Record, number: int) -> Operation:
    """A view of a tensor with the last two axes exchanged, which becomes one more tensor of the record."""
    record.layouts.append(_transposed(record.layouts[number]))
    return Operation(aten.transpose.int, (Slot(number), -2, -1), {}, (len(record.layouts) - 1,), True)


def _transposed(own: Layout) -> Layout:
    (*shape, rows, columns), (*stride, down, across) = own.shape, own.stride
    return own._replace(shape=torch.Size([*shape, columns, rows]), stride=(*stride, across, down))


def _same_bits(one: Layout, other: Layout) -> bool:
    """Whether a product rounds in the same way both ways round, seen on a few random matrices."""
    generator, factors = torch.Generator().manual_seed(0), []
    for layout in (one, other):
        few = (min(2, layout.shape[0]), *layout.shape[1:])
        reach = 1 + sum((size - 1) * step for size, step in zip(few, layout.stride, strict=True))
        numbers = torch.randn(reach, generator=generator, dtype=layout.dtype)
        factors.append(numbers.to(layout.device).as_strided(few, layout.stride))
    first, second = factors
    return torch.equal(torch.bmm(first, second), torch.bmm(second.mT, first.mT).mT)
