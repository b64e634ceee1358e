"""A record in two: what all members have in common, which is worked out once, and what each of them needs beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayesemble.execute.programs.program import Replay, replayed, tidy, with_slots, written_by
from bayesemble.execute.programs.recorder import Operation, Record, Slot, slots_of


def divided(record: Record, num_common: int) -> tuple[Replay, Replay] | None:
    """Functions `common(*common inputs) -> kept` and `own(*all inputs, *kept) -> outputs`.

    The first `num_common` inputs are those that all members have in common. What only these go into is in the first
    function. There is no such pair for a function that writes into its inputs or into constants.
    """
    if writes_outside(record):
        return None
    own = _own_operations(record, num_common)
    first = [operation for index, operation in enumerate(record.operations) if index not in own]
    second = [operation for index, operation in enumerate(record.operations) if index in own]
    outputs = [slot.number for slot in record.outputs]
    made = {number for operation in first for number in operation.results}
    wanted = {number for operation in second for number in slots_of(operation)} | set(outputs)
    kept, inputs = sorted(made & wanted), range(record.num_inputs)
    common = _part(record, first, inputs[:num_common], kept)
    return replayed(tidy(common)), replayed(tidy(_part(record, second, [*inputs, *kept], outputs)))


def writes_outside(record: Record) -> bool:
    """Whether a function writes into its inputs or into constants."""
    written = {record.memory_of(number) for operation in record.operations for number in written_by(operation)}
    return any(record.memory_of(number) in written for number in (*range(record.num_inputs), *record.constants))


def _own_operations(record: Record, num_common: int) -> set[int]:
    """Which operations, by their place, differ from member to member."""
    own, slots = set[int](), set(range(num_common, record.num_inputs))
    while True:
        before = len(own), len(slots)
        for index, operation in enumerate(record.operations):
            if index in own or not slots.isdisjoint((*slots_of(operation), *operation.results)):
                own.add(index)
                slots.update(operation.results)
        slots |= _slots_in(record, _unsteady(record, own))
        if (len(own), len(slots)) == before:
            return own


def _unsteady(record: Record, own: set[int]) -> set[int]:
    """Memory that members write into, or read before the last time that it is written: what is common does not stay."""
    writes, uses = dict[int, list[int]](), dict[int, list[int]]()
    for index, operation in enumerate(record.operations):
        for number in written_by(operation):
            writes.setdefault(record.memory_of(number), []).append(index)
        for number in slots_of(operation):
            uses.setdefault(record.memory_of(number), []).append(index)
    return {
        memory
        for memory, places in writes.items()
        if any(place in own for place in places) or any(place in own and place < places[-1] for place in uses[memory])
    }


def _slots_in(record: Record, memories: set[int]) -> set[int]:
    return {number for number in range(len(record.layouts)) if record.memory_of(number) in memories}


def _part(record: Record, operations: Sequence[Operation], inputs: Iterable[int], outputs: Iterable[int]) -> Record:
    """A record of some operations with inputs and outputs of its own, which takes other numbers."""
    order = list(dict.fromkeys([*inputs, *range(len(record.layouts))]))
    numbers = {old: new for new, old in enumerate(order)}
    moved = []
    for operation in operations:
        args, kwargs = with_slots((operation.args, operation.kwargs), lambda slot: Slot(numbers[slot.number]))
        given = tuple(None if number is None else numbers[number] for number in operation.given)
        moved.append(Operation(operation.function, args, kwargs, given, operation.single))
    return Record(
        [record.layouts[old] for old in order],
        {numbers[old]: tensor for old, tensor in record.values.items()},
        len(list(inputs)),
        {numbers[number] for number in record.constants},
        moved,
        [Slot(numbers[number]) for number in outputs],
    )
