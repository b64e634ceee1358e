"""Outputs of members from a record of the operations, for inputs of shapes that come again and again.

The first time a network runs as Python code, the second time it is recorded, and from then on the record is carried
out, to the same bits. What members have in common, as a trunk of which no leaf is drawn, is worked out once for all.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bayesemble.core.members import Members
from bayesemble.core.types import Inputs, MemberFunction
from bayesemble.execute.executor import Executor
from bayesemble.execute.programs.alike import same
from bayesemble.execute.programs.division import divided
from bayesemble.execute.programs.program import Replay
from bayesemble.execute.programs.recorder import Recorder
from bayesemble.execute.programs.situation import Looks, Situations

Rows = Callable[[Members], Inputs]
"""Gives the rows as a network, which comes alone, is to be called with."""

_MOST_PROGRAMS = 16
_BYTES_RECORDED = 1 << 26  # held while a network is recorded, of which only Python can be saved
_BYTES_RECORDED_IN_COMMON = 1 << 28  # and of one that has work in common with others


@dataclass(frozen=True, eq=False)
class _Program:
    common: Replay
    own: Replay


@dataclass(frozen=True, eq=False)
class _Part:
    """Members that are run in one go, and what sets the operations apart that they are run by."""

    members: Members
    common: list[Tensor]
    own: list[Tensor]
    kind: Hashable


class RecordedOutputs:
    """Runs a function for all members as an executor does, without Python code where it can; any thread may call it.

    Where there can be no record, `prepared` rows take what members have in common out of Python code, if it is given.
    """

    def __init__(
        self,
        executor: Executor,
        function: MemberFunction,
        network: Callable[[], nn.Module],
        prepared: Callable[[Inputs], Rows] | None = None,
    ) -> None:
        self._executor, self._function, self._network = executor, function, network
        self.prepared = prepared
        self._parts: weakref.WeakKeyDictionary[Members, list[_Part]] = weakref.WeakKeyDictionary()
        self._programs: OrderedDict[Hashable, _Program | Literal["once", "never"]] = OrderedDict()
        self._lock, self._situations = threading.Lock(), Situations()

    def of(self, inputs: Inputs) -> Callable[[Members], Tensor]:
        """A function that gives the outputs `(member, row, ...)` of members for these rows."""
        return _Rows(self, inputs).outputs

    def parts(self, members: Members) -> list[_Part]:
        """The members as the executor runs them."""
        found = self._parts.get(members)
        if found is None:
            found = self._parts[members] = _parts(members, self._executor)
        return found

    def find(self, kind: Hashable) -> _Program | str | None:
        """What is known of operations of this kind."""
        with self._lock:
            found = self._programs.get(kind)
            if found is not None:
                self._programs.move_to_end(kind)
            return found

    def keep(self, kind: Hashable, found: _Program | Literal["once", "never"]) -> None:
        """Keep it, in place of what was used longest ago if there is much."""
        with self._lock:
            self._programs[kind] = found
            if len(self._programs) > _MOST_PROGRAMS:
                self._programs.popitem(last=False)

    def run(self, part: _Part, inputs: Inputs) -> Tensor:
        """Outputs of a part by Python code."""
        return self._executor.run(self._function, part.members, inputs)

    def situation(self) -> Hashable:
        """What else the operations depend on; None if they are not to be recorded."""
        return self._situations(self._network())


class _Rows:
    """Some rows, and what members had in common on them."""

    def __init__(self, recorded: RecordedOutputs, inputs: Inputs) -> None:
        self._recorded, self._inputs = recorded, inputs
        self._leaves, structure = pytree.tree_flatten(inputs)
        situation, tensors = recorded.situation(), all(isinstance(leaf, Tensor) for leaf in self._leaves)
        self._kind = None if situation is None or not tensors else (situation, structure, _kinds(self._leaves))
        self._common: dict[_Program, tuple[list[Tensor], tuple[Tensor, ...]]] = {}
        self._last: tuple[Hashable, _Program] | None = None
        """The program of the part before: mostly the next one has the same."""
        self._rows = None if recorded.prepared is None else recorded.prepared(inputs)

    @torch.no_grad()
    def outputs(self, members: Members) -> Tensor:
        """Outputs of all members, part by part."""
        found = [self._run(part) for part in self._recorded.parts(members)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _run(self, part: _Part) -> Tensor:
        if self._kind is None:
            return self._run_unrecorded(part)
        if self._last is not None and self._last[0] is part.kind:
            return self._replay(self._last[1], part)
        kind = self._kind, part.kind
        found = self._recorded.find(kind)
        if isinstance(found, _Program):
            self._last = part.kind, found
            return self._replay(found, part)
        if found is None:
            self._recorded.keep(kind, "once")
        if found == "never":
            return self._run_unrecorded(part)
        if found != "once":
            return self._recorded.run(part, self._inputs)
        outputs, program = self._record(part)
        self._recorded.keep(kind, program or "never")
        return outputs

    def _run_unrecorded(self, part: _Part) -> Tensor:
        alone = part.members.num_members == 1
        rows = self._rows(part.members) if self._rows is not None and alone else self._inputs
        return self._recorded.run(part, rows)

    def _replay(self, program: _Program, part: _Part) -> Tensor:
        before = self._common.get(program)
        if before is None or not _same(part.common, before[0]):
            before = self._common[program] = part.common, program.common(*part.common, *self._leaves)
        return program.own(*part.common, *self._leaves, *part.own, *before[1])[0]

    def _record(self, part: _Part) -> tuple[Tensor, _Program | None]:
        """Outputs by Python code, and the program that gives the same, if there is one."""
        most_bytes = _BYTES_RECORDED_IN_COMMON if part.common else _BYTES_RECORDED
        recorder, before = Recorder([*part.common, *self._leaves, *part.own], most_bytes), self._recorded.situation()
        with recorder, Looks() as looks:
            outputs = self._recorded.run(part, self._inputs)
        record = recorder.finish([outputs])
        sound = record.obstacle is None and not looks.seen and self._recorded.situation() == before
        pair = divided(record, len(part.common) + len(self._leaves)) if sound else None
        if pair is None:
            return outputs, None
        program = _Program(*pair)
        again = self._replay(program, part)
        return outputs, program if same([again], [outputs]) else None


def _parts(members: Members, executor: Executor) -> list[_Part]:
    common = [leaf for name, leaf in (members.params | members.buffers).items() if name in members.shared]
    names, found = (tuple(members.params), tuple(members.buffers), frozenset(members.shared)), []
    kinds: dict[Hashable, Hashable] = {}
    for part in executor.parts(members):
        own = [leaf for name, leaf in (part.params | part.buffers).items() if name not in members.shared]
        kind = part.num_members, names, _kinds(common), _kinds(own)
        found.append(_Part(part, common, own, kinds.setdefault(kind, kind)))  # one object for all that are equal
    return found


def _kinds(leaves: list[Tensor]) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether tensors of the same kinds are the same memory."""
    return some is others or all(a.data_ptr() == b.data_ptr() for a, b in zip(some, others, strict=True))
