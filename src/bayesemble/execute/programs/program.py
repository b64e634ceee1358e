"""A record as a Python function: one line for each operation, after those that do nothing are left out.

What is left out changes no bits: views of a tensor as it is, factors of one, and whatever only constants go into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesemble.execute.programs.recorder import (
    CONSTANT_BYTES,
    MADE_BY_SHAPE,
    Operation,
    Record,
    Slot,
    found_in,
    mapped,
    slots_of,
)
from bayesemble.execute.programs.turning import turned
from bayesemble.execute.programs.workspace import INTO, MADE_EMPTY, Workspace

aten = torch.ops.aten

# Python reaches these by a shorter way than the general one, with the same arguments.
_SHORT = {
    getattr(getattr(aten, name), overload): function
    for function, names in (
        (torch.add, "add.Tensor"),
        (torch.sub, "sub.Tensor"),
        (torch.mul, "mul.Tensor"),
        (torch.mul, "mul.Scalar"),
        (torch.div, "div.Tensor"),
        (torch.div, "div.Scalar"),
        (torch.neg, "neg.default"),
        (torch.bmm, "bmm.default"),
        (torch.mm, "mm.default"),
        (torch.addmm, "addmm.default"),
        (torch.baddbmm, "baddbmm.default"),
        (torch._log_softmax, "_log_softmax.default"),
        (torch.logsumexp, "logsumexp.default"),
        (torch.cat, "cat.default"),
        (torch.relu, "relu.default"),
        (torch.tanh, "tanh.default"),
        (torch.sigmoid, "sigmoid.default"),
        (torch.exp, "exp.default"),
        (torch.log, "log.default"),
        (torch.sqrt, "sqrt.default"),
        (torch.sum, "sum.dim_IntList"),
        (torch.mean, "mean.dim"),
        (torch.transpose, "transpose.int"),
        (torch.unsqueeze, "unsqueeze.default"),
        (torch.squeeze, "squeeze.dim"),
        (torch.select, "select.int"),
        (torch.permute, "permute.default"),
        (torch.Tensor.view, "view.default"),
        (torch.Tensor.expand, "expand.default"),
        (torch.Tensor.mul_, "mul_.Tensor"),
        (torch.Tensor.mul_, "mul_.Scalar"),
        (torch.Tensor.div_, "div_.Tensor"),
        (torch.Tensor.add_, "add_.Tensor"),
        (torch.Tensor.copy_, "copy_.default"),
    )
    for name, overload in [names.split(".")]
}
_ONE = {aten.mul.Scalar: 1, aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.div.Scalar: 1, aten.pow.Tensor_Scalar: 1}

Replay = Callable[..., tuple[Tensor, ...]]


def tidy(record: Record) -> Record:
    """The same record without operations that do nothing."""
    memory = _Memory(record)
    constants, stands_for, kept = set(record.constants), dict[int, int](), list[Operation]()

    def now(slot: Slot) -> Slot:
        return Slot(stands_for.get(slot.number, slot.number))

    for index, operation in enumerate(record.operations):
        args, kwargs = with_slots((operation.args, operation.kwargs), now)
        moved = Operation(operation.function, args, kwargs, operation.given, operation.single)
        if _does_nothing(index, operation, memory):
            stands_for[operation.results[0]] = slots_of(moved)[0]
        elif _is_constant(moved, constants, record, memory):
            constants.update(operation.results)
        else:
            kept.append(moved)
    outputs = [now(slot) for slot in record.outputs]
    return Record(record.layouts, record.values, record.num_inputs, constants, _needed(kept, outputs), outputs)


def replayed(record: Record, workspace: Workspace | None = None) -> Replay:
    """A function `(inputs) -> outputs` that carries the operations out, one after the other.

    Large results on the way come to lie in the workspace, if there is one, which no other thread may use then.
    """
    record = record if workspace is None else turned(record)
    places = {} if workspace is None else workspace.places(record)
    names: dict[str, Any] = {f"w{number}": place for number, place in places.items()}
    lines = [f"def replay({', '.join(f't{i}' for i in range(record.num_inputs))}):"]
    last = _last_uses(record)
    for index, operation in enumerate(record.operations):
        place = [f"w{number}" for number in operation.results if number in places]
        if place and operation.function in MADE_EMPTY:
            lines.append(f"    t{operation.results[0]} = {place[0]}")
            continue
        place = place if operation.function in INTO else []
        names[f"f{index}"] = INTO[operation.function] if place else _short(operation.function)
        parts = [_text(value, record, names) for value in operation.args]
        parts += [f"{key}={_text(value, record, names)}" for key, value in operation.kwargs.items()]
        parts += [f"out={name}" for name in place]
        targets = ", ".join("_" if number is None else f"t{number}" for number in operation.given)
        targets += "" if operation.single else ","
        gone = [f"t{number}" for number in last.get(index, ())]
        lines.append(f"    {targets if operation.given else '_'} = f{index}({', '.join(parts)})")
        lines += [f"    {' = '.join(gone)} = None"] if gone else []
    lines.append(f"    return ({''.join(_text(slot, record, names) + ', ' for slot in record.outputs)})")
    exec("\n".join(lines), names)
    replay: Replay = names["replay"]
    return replay


def _short(function: Any) -> Any:
    return _SHORT.get(function, function._op)


def with_slots(values: Any, function: Callable[[Slot], Any]) -> Any:
    """Arguments of an operation, with something in the place of each slot."""
    return mapped(values, Slot, function)


class _Memory:
    """When the memory behind the tensors of a record is read and written, by the number of the operation."""

    def __init__(self, record: Record) -> None:
        self.layouts, self.of = record.layouts, record.memory_of
        self.lent: set[int] = set()
        """Memory that stands for a copy of it."""
        self.reads: dict[int, int] = {}
        self.writes: dict[int, list[int]] = {}
        for index, operation in enumerate(record.operations):
            for number in (*slots_of(operation), *operation.results):
                self.reads[self.of(number)] = index
            for number in written_by(operation):
                self.writes.setdefault(self.of(number), []).append(index)
        self.held = {self.of(number) for number in (*range(record.num_inputs), *record.constants)}
        self.held |= {self.of(slot.number) for slot in record.outputs}
        for slot in record.outputs:
            self.reads[self.of(slot.number)] = len(record.operations)

    def written_between(self, memory: int, first: int, last: int) -> bool:
        """Whether something is written there after the first operation and up to the last."""
        return any(first < index <= last for index in self.writes.get(memory, ()))


def written_by(operation: Operation) -> list[int]:
    """Tensors that an operation writes into."""
    found: list[int] = []
    for place, argument in enumerate(operation.function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = operation.args[place] if place < len(operation.args) else operation.kwargs.get(argument.name)
            found += [slot.number for slot in found_in(value, Slot)]
    return found


def _does_nothing(index: int, operation: Operation, memory: _Memory) -> bool:
    """Whether the first tensor can stand for the result: it is the same memory, or a copy of which nobody can tell."""
    slots = slots_of(operation)
    if operation.function._schema.is_mutable or not operation.single or not slots:
        return False
    source, own = memory.layouts[slots[0]], memory.layouts[operation.results[0]]
    if source.shape != own.shape or source.stride != own.stride or source.dtype != own.dtype:
        return False
    there, here = source.memory, own.memory
    if there == here:
        return source.offset == own.offset
    factor = _ONE.get(operation.function)
    if factor is None or operation.args[1:] != (factor,) or operation.kwargs or there in memory.lent:
        return False
    if memory.writes.get(here):
        unnoticed = memory.reads[there] <= index and there not in memory.held
    else:
        unnoticed = not memory.written_between(there, index, memory.reads[here])
    memory.lent |= {there} if unnoticed else set()
    return unnoticed


def _is_constant(operation: Operation, constants: set[int], record: Record, memory: _Memory) -> bool:
    """Whether the result is the same every time, and known."""
    sources, own = slots_of(operation), operation.results
    if operation.function._schema.is_mutable or not own or any(memory.writes.get(memory.of(n)) for n in own):
        return False
    small = all(record.layouts[number].memory_bytes <= CONSTANT_BYTES for number in own)
    same = operation.function in MADE_BY_SHAPE or all(number in constants for number in sources)
    return small and same and all(number in record.values for number in own)


def _needed(operations: list[Operation], outputs: Sequence[Slot]) -> list[Operation]:
    """Leave out what nobody reads."""
    read, kept = {slot.number for slot in outputs}, list[Operation]()
    for operation in reversed(operations):
        if operation.function._schema.is_mutable or any(number in read for number in operation.results):
            read.update(slots_of(operation))
            kept.append(operation)
    return kept[::-1]


def _last_uses(record: Record) -> dict[int, list[int]]:
    """Tensors that can go after each operation."""
    held = {slot.number for slot in record.outputs} | record.constants
    last: dict[int, int] = {}
    for index, operation in enumerate(record.operations):
        last |= dict.fromkeys((*operation.results, *slots_of(operation)), index)
    gone: dict[int, list[int]] = {}
    for number, index in last.items():
        if number not in held:
            gone.setdefault(index, []).append(number)
    return gone


def _text(value: Any, record: Record, names: dict[str, Any]) -> str:
    """An argument as Python text; what has no text of its own becomes a name."""
    if isinstance(value, Slot):
        name = f"t{value.number}"
        if value.number in record.constants:
            names[name] = record.values[value.number]
        return name
    if isinstance(value, list | tuple):
        inner = "".join(_text(one, record, names) + ", " for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    name = f"c{len(names)}"
    names[name] = value
    return name
