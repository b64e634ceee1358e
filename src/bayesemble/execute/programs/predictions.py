"""Whole predictions from a record: from the rows to all that a prediction holds, for rows of shapes that come again.

What `RecordedOutputs` saves is the Python code of networks; here it is all else, which for one row is most of the time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from bayesemble.core.types import Inputs
from bayesemble.execute.programs.alike import same
from bayesemble.execute.programs.division import writes_outside
from bayesemble.execute.programs.program import Replay, replayed, tidy
from bayesemble.execute.programs.recorder import Record, Recorder
from bayesemble.execute.programs.situation import Looks, Situations
from bayesemble.predictive import Predictive

_MOST_PROGRAMS = 8
_MOST_OPERATIONS = 2000
_BEFORE_RECORDING = 2  # the networks run as Python code once, and are then recorded themselves
_BYTES_RECORDED = 1 << 26


@dataclass(frozen=True, eq=False)
class _Program:
    situation: Hashable
    others: list[dict[str, Any]]
    replay: Replay
    kind: type[Predictive]
    fields: dict[str, Any]
    """What a prediction has beside tensors."""
    names: list[str]
    """What the tensors are called that the replay gives first."""
    kept: list[str]
    """What those are called that it gives then, which a reduced prediction keeps."""
    fixed: list[int]
    """Those that are the same tensors each time: a prediction gets copies."""

    def __call__(self, rows: Tensor) -> Predictive:
        tensors = list(self.replay(rows))
        for place in self.fixed:
            tensors[place] = tensors[place].clone()
        found = object.__new__(self.kind)
        own = vars(found)
        own.update(self.fields)
        own.update(zip(self.names, tensors, strict=False))
        own["kept"] = dict(zip(self.kept, tensors[len(self.names) :], strict=True)) if self.kept else {}
        return found


class RecordedPredictions:
    """Predicts rows by a function, and by a record of it from the fourth time on; the same bits, in any thread.

    The function goes by the network, by leaves that stay as they are, and by the settings of `others`.
    """

    def __init__(self, leaves: Callable[[], Sequence[Tensor]], *others: Any) -> None:
        self._leaves = leaves
        self._others = [vars(one) for one in others]
        self._situations = Situations()
        self._of: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _Program | int | None]] = (
            weakref.WeakKeyDictionary()
        )
        """What is known of rows of some kind: a record, how often they came, or None if there can be no record."""

    def __call__(
        self, inputs: Inputs, reduced: bool, network: nn.Module, predict: Callable[[], Predictive]
    ) -> Predictive:
        """The prediction, `reduced` or with all that its members said."""
        kind = _kind(inputs, reduced)
        situation = None if kind is None else self._situations(network)
        if situation is None:
            return _completed(predict(), reduced)
        programs = self._of.setdefault(network, {})  # each thread has a network of its own, so nobody else is there
        found = programs.get(kind, 0)
        if isinstance(found, _Program):
            if found.situation == situation and found.others == self._others:
                return found(inputs)
            found = 0
        if found == _BEFORE_RECORDING:
            prediction, found = self._record(inputs, reduced, network, predict, situation)
        else:
            prediction, found = _completed(predict(), reduced), None if found is None else found + 1
        programs.pop(kind, None)
        programs[kind] = found
        if len(programs) > _MOST_PROGRAMS:
            del programs[next(iter(programs))]
        return prediction

    def _record(
        self, rows: Tensor, reduced: bool, network: nn.Module, predict: Callable[[], Predictive], situation: Hashable
    ) -> tuple[Predictive, _Program | None]:
        recorder = Recorder([rows], _BYTES_RECORDED, self._leaves())
        with torch.no_grad():
            with recorder, Looks() as looks:
                members = predict()
            members.look_at_weights()  # which are the same each time
            with recorder, Looks() as more_looks:
                prediction = _completed(members, reduced)
        own, kept = vars(prediction), list(prediction.kept)
        names = [name for name, value in own.items() if isinstance(value, Tensor)]
        tensors = [*(own[name] for name in names), *prediction.kept.values()]
        record = recorder.finish(tensors)
        seen = looks.seen or more_looks.seen or self._situations(network) != situation
        if record.obstacle is not None or seen or len(record.operations) > _MOST_OPERATIONS or writes_outside(record):
            return prediction, None
        record = tidy(record)
        simple = {name: value for name, value in own.items() if not isinstance(value, Tensor) and name != "kept"}
        others = [dict(one) for one in self._others]
        program = _Program(situation, others, replayed(record), type(prediction), simple, names, kept, _fixed(record))
        again = program(rows)
        found = [*(vars(again)[name] for name in names), *again.kept.values()]
        return prediction, program if same(found, tensors) else None


def _kind(inputs: Inputs, reduced: bool) -> Hashable:
    """What sets the operations apart that rows are predicted by; None if they are not to be recorded."""
    if type(inputs) is not Tensor or inputs.layout is not torch.strided:
        return None
    if inputs.requires_grad or is_functorch_wrapped_tensor(inputs):  # a record knows nothing of gradients
        return None
    return reduced, inputs.shape, inputs.stride(), inputs.dtype, inputs.device


def _completed(members: Predictive, reduced: bool) -> Predictive:
    if reduced:
        return members.reduce()
    members.work_out()
    return members


def _fixed(record: Record) -> list[int]:
    """Which outputs lie in memory that was there before."""
    held = {record.memory_of(number) for number in (*range(record.num_inputs), *record.constants)}
    return [place for place, slot in enumerate(record.outputs) if record.memory_of(slot.number) in held]
