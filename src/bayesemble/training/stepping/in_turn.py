"""Whole steps of some members after the others, where none knows of the others.

What a step needs beside the state, gradients above all, is then there for some members at a time.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.executor import Executor
from bayesemble.execute.programs.workspace import Workspace
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.execute.vmap import Vmap
from bayesemble.methods import Method
from bayesemble.task.task import BoundTask
from bayesemble.training.stepping.some_members import SomeMembers, can_be_parted
from bayesemble.training.stepping.steps import Steps


class StepsInTurn:
    """Takes steps of a method, a chunk of members after the other."""

    def __init__(self, method: Method, task: BoundTask, executor: Vmap, fresh: bool) -> None:
        self._chunk = size = executor.chunk or method.num_members
        bounds = [(start, min(start + size, method.num_members)) for start in range(0, method.num_members, size)]
        self._chunks = [SomeMembers(method, *each) for each in bounds]
        at_once, room = replace(executor, chunk=None), Workspace()
        self._steps = [Steps(one.method, task, at_once, fresh, workspace=room) for one in self._chunks]
        self._compiling = executor.steps == "compiled"
        self._state: State | None = None
        self._parts: list[State] = []

    @property
    def executor(self) -> Executor:
        """How steps are taken now: where they cannot be compiled, it is not as asked for."""
        return replace(self._steps[-1].executor, chunk=self._chunk)  # type: ignore[type-var]

    def __call__(self, state: State, batch: Batch, clock: Clock) -> tuple[State, Info]:
        """Take a step. The tensors of the state are changed in place; use only what is returned."""
        if state is not self._state:
            self._parts = [one.state(state) for one in self._chunks]
        told = list[Info]()
        for number, (one, steps) in enumerate(zip(self._chunks, self._steps, strict=True)):
            self._parts[number], info = steps(self._parts[number], one.batch(batch), one.clock(clock))
            told.append(info)
            if self._compiling:
                for other in self._steps:
                    other.follow(steps)
        self._state = _after(state, self._parts[-1])
        return self._state, {name: torch.cat([info[name] for info in told]) for name in told[0]}


StepTaker = Steps | StepsInTurn


def _after(state: State, part: State) -> State:
    """The state after all chunks have changed their own; what is kept for all together is what the last one has."""
    for slot, leaves in part.slots.items():
        for name, leaf in leaves.items():
            whole = state.slots[slot][name]
            if leaf.untyped_storage()._cdata != whole.untyped_storage()._cdata:  # no view, as it is common to all
                whole.copy_(leaf)
    kept = {slot: leaves for slot, leaves in state.slots.items() if slot in part.slots}
    return state if len(kept) == len(state.slots) else State(state.members, kept)


def steps_of(
    method: Method, task: BoundTask, executor: Executor, state: State, fresh: bool, team: Team = ALONE
) -> StepTaker:
    """What takes the steps of a run: chunk after chunk where the executor has some and members do not mind."""
    if type(executor) is Vmap and executor.chunk is not None and can_be_parted(method, state, task, team):
        return StepsInTurn(method, task, executor, fresh)
    return Steps(method, task, executor, fresh, team)
