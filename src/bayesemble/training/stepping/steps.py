"""The steps of a run: each kind of step is recorded once, and then repeated from the record.

A step in Python spends most of its time on the way to the operations, through autograd and vmap. Its record is the
operations alone, on the same tensors in the same order, so that it gives the same bits. Compiled, it gives the same
up to rounding. Now and then, at the first, the second, the fourth, the eighth repetition and so on, a step is taken
both ways, to see that this is so.

A copy of large members would take much memory. If they know nothing of one another, their steps are therefore recorded
by a few of them, and a few take the steps in Python that all are compared by.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from bayesemble.core.errors import ExecutionError, TrainingError
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock, Info, widest
from bayesemble.execute.executor import Executor
from bayesemble.execute.kept_memory import give_back
from bayesemble.execute.loop import Loop
from bayesemble.execute.programs.compiled import compiled
from bayesemble.execute.programs.extended import NotRecordedError, extended
from bayesemble.execute.programs.members import CompiledLoop
from bayesemble.execute.programs.program import Replay, replayed, tidy
from bayesemble.execute.programs.recorder import Record, Recorder
from bayesemble.execute.programs.workspace import Workspace
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.task import BoundTask
from bayesemble.training.stepping.comparing import same_step
from bayesemble.training.stepping.leaves import leaves_of, places_of, tensors_of_batch, with_leaves
from bayesemble.training.stepping.some_members import SomeMembers, can_be_parted

logger = logging.getLogger("bayesemble")

# Bytes of a state, for each fit in it, of which steps are recorded: one of a larger is mostly arithmetic, and a record
# takes a copy of it, unless a few members speak for all.
_MOST_BYTES = {"traced": 1 << 25, "compiled": 1 << 27}
_LARGE_BYTES = 1 << 22  # of a state of which no copy is made, if that can be helped, and whose steps have a workspace
_MEMBERS = 3  # or more, of whom a few can speak for all
_FEWEST_STEPS = 50  # of a run: to record a step takes as long as some dozens of them
_TIMES_GIVEN = 8  # how many times as much the operations of a step may give
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class _Program:
    """A kind of step, as operations on the leaves of a state, the tensors of a batch and numbers."""

    replay: Replay
    gives: State | None
    """A state that is laid out as those that it gives; None if that is the one that it got, changed in place."""
    told: tuple[str, ...]
    """What the info is called."""
    recorded: tuple[State, Info] | None
    """What the step came to that it was recorded from, until the same step is taken by the program."""
    by_few: bool = False
    """Whether a few members are compared, of a state of which no copy is made."""
    uses: int = 0


class Steps:
    """Takes steps of a method, one after the other."""

    def __init__(
        self,
        method: Method,
        task: BoundTask,
        executor: Executor,
        fresh: bool,
        team: Team = ALONE,
        workspace: Workspace | None = None,
    ) -> None:
        """`workspace` is memory to share with other steps."""
        self.method, self.task, self.executor, self.team = method, task, executor, team
        self._workspace = workspace or Workspace()
        self.must_be_compiled = not fresh
        """Whether steps of the run were compiled, so that the others have to be, if it says so."""
        self._programs: dict[Hashable, _Program | None] = {}
        self._layouts: dict[Hashable, int] = {}
        self._state: State | None = None
        self._last_numbers: dict[str, float] = {}
        self._as_tensors: dict[str, Tensor] = {}
        obstacle = None if executor.steps == "eager" else self._obstacle()
        self._recording = executor.steps != "eager" and obstacle is None
        if obstacle is not None and executor.steps == "compiled":
            self.executor = replace(executor, steps="eager")  # type: ignore[type-var]
            logger.warning("steps are taken in Python, not compiled: %s", obstacle)
        elif obstacle is not None:
            logger.info("steps are not recorded: %s", obstacle)
        self._running = self.executor
        if isinstance(executor, Loop) and self.executor.steps == "compiled":
            settings = {field.name: getattr(executor, field.name) for field in fields(executor)}
            self._running, self._recording = CompiledLoop(**settings, make=self._compiled), False

    def __call__(self, state: State, batch: Batch, clock: Clock) -> tuple[State, Info]:
        """Take a step. The tensors of the state may be changed in place; use only what is returned."""
        context = Context(self.task, self._running, clock, team=self.team)
        worth = self._recording and (clock.total_steps >= _FEWEST_STEPS or self.executor.steps == "compiled")
        kind = self.method.kind_of_step(context) if worth else None
        if kind is None:
            return self._eager(state, batch, clock)
        if state is not self._state:
            self._look_at(state)
        self.method.draw_ahead(state, context)
        tensors = tensors_of_batch(batch)
        key = (kind, self._layout, *[tensor.shape for tensor in tensors])
        program = self._programs[key] if key in self._programs else self._new(key, state, batch, clock)
        if program is None:
            return self._eager(state, batch, clock)
        program.uses += 1
        if program.uses & (program.uses - 1) == 0:
            return self._both_ways(key, program, state, batch, clock)
        try:
            return self._replayed(program, state, tensors, clock)
        except RuntimeError:
            self._eager(state, batch, clock)  # the step itself may say better what is wrong
            raise

    def follow(self, others: Steps) -> None:
        """Take steps as others of the same run do, once some of these were compiled, or could not be."""
        self.must_be_compiled |= others.must_be_compiled
        if self.executor.steps == "compiled" and others.executor.steps == "traced":
            self.executor = others.executor

    def _obstacle(self) -> str | None:
        """Why no step can be recorded, or None."""
        layers, alone = self.task.module.modules(), type(self.method).kind_of_step is Method.kind_of_step
        hooks = torch_module._has_any_global_hook() or any(getattr(layer, name) for layer in layers for name in _HOOKS)
        whole = not isinstance(self.executor, Loop)
        obstacles = {
            "the network draws random numbers": self.task.stochastic,
            "the network runs parts of itself again in the backward pass": self.task.recomputes,
            "members lie on disk": self.task.allocator.on_disk,
            "ranks wait for one another in each step": self.team is not ALONE
            and (self.team.exchanges or self.method.exchanges),
            "the network has hooks, which a record would not call": hooks,
            f"no two steps of {type(self.method).__name__} are alike": alone and whole,
            f"{self.method.unrecorded}, which looks at what it keeps": whole and self.method.unrecorded is not None,
        }
        return next((words for words, found in obstacles.items() if found), None)

    def _look_at(self, state: State) -> None:
        """Lay the leaves of another state out in order."""
        self._state, self._leaves = state, leaves_of(state)
        self._layout = self._layouts.setdefault(tuple(places_of(state)), len(self._layouts))

    def _eager(self, state: State, batch: Batch, clock: Clock) -> tuple[State, Info]:
        return self.method.step(state, batch, Context(self.task, self._running, clock, team=self.team))

    def _replayed(self, program: _Program, state: State, tensors: list[Tensor], clock: Clock) -> tuple[State, Info]:
        found = program.replay(*self._leaves, *tensors, *self._numbers(clock, state).values())
        info = dict(zip(program.told, found, strict=False))
        return (state if program.gives is None else with_leaves(program.gives, found[len(info) :])), info

    def _numbers(self, clock: Clock, state: State) -> dict[str, Tensor]:
        device, numbers = state.members.weights.device, self.method.numbers(clock)
        if numbers != self._last_numbers:
            self._last_numbers = numbers
            exact = widest(device)
            self._as_tensors = {n: torch.tensor(one, dtype=exact, device=device) for n, one in numbers.items()}
        return self._as_tensors

    def _new(self, key: Hashable, state: State, batch: Batch, clock: Clock) -> _Program | None:
        """Record a step; None if this cannot be done."""
        size, compiling = sum(leaf.nbytes for leaf in self._leaves), self.executor.steps == "compiled"
        large = size > _LARGE_BYTES * self.executor.fits
        by_few = large and self._may_go_by_few(state)
        most = _MOST_BYTES["compiled" if by_few else self.executor.steps] * self.executor.fits
        if size > most:
            self._unrecorded(key, "the members are too large to gain from it")
            return None
        try:
            if by_few:
                record, after, info = self._by_few(state, batch, clock)
            else:
                record, after, info = self._recorded(self.method, state.clone(), batch, clock, _TIMES_GIVEN * most)
        except RuntimeError as error:  # the step itself, which is taken in Python now, may say better what is wrong
            self._unrecorded(key, (str(error).strip() or type(error).__name__).splitlines()[0])
            return None
        if record.obstacle is not None:
            self._unrecorded(key, record.obstacle)
            return None
        straight, workspace = tidy(record), self._workspace if large else None
        replay = self._compiled(straight, workspace) if compiling else replayed(straight, workspace)
        # Where steps that differ end the run, the one that was recorded need not be taken in Python again.
        came_to = (after, info) if compiling and not by_few else None
        gives = None if len(record.outputs) == len(info) else after.map(lambda _, leaf: leaf.to("meta"))
        program = _Program(replay, gives, tuple(info), came_to, by_few)
        self._programs[key] = program
        if large:
            give_back()
        return program

    def _may_go_by_few(self, state: State) -> bool:
        """Whether a few members can speak for all, so that no copy of these need be made."""
        if self.executor.runs_few_members or self.executor.fits > 1 or state.members.num_members < _MEMBERS:
            return False
        return can_be_parted(self.method, state, self.task, self.team)

    def _by_few(self, state: State, batch: Batch, clock: Clock) -> tuple[Record, State, Info]:
        """The record of a step as that of a few members has it, and the state and info that it gives.

        Of one and two, or else of two and three: an axis of one is passed over by some operations.
        """
        try:
            return self._grown(1, state, batch, clock)
        except NotRecordedError:
            return self._grown(2, state, batch, clock)

    def _grown(self, fewest: int, state: State, batch: Batch, clock: Clock) -> tuple[Record, State, Info]:
        """The same from so many members, on whom it is seen that it stands for steps with other rows too."""
        records = list[Record]()
        for count in (fewest, fewest + 1):
            some = SomeMembers(self.method, 0, count)
            given = some.batch(batch), some.clock(clock)
            record, _, info = self._recorded(some.method, some.state(state).clone(), *given, sys.maxsize)
            if len(record.outputs) > len(info):
                raise NotRecordedError("it does not move members in place")
            if count == fewest and record.obstacle is None:
                self._try(record, info, some, state, *given)
            records.append(record)
        inputs = [*self._leaves, *tensors_of_batch(batch), *self._numbers(clock, state).values()]
        few, more = records
        return extended(few, more, state.members.num_members - fewest, inputs), state, info

    def _try(self, record: Record, told: Info, some: SomeMembers, state: State, batch: Batch, clock: Clock) -> None:
        """See whether a record gives what Python does with other rows than it was made with."""
        other = batch.rows_at((torch.arange(batch.num_rows) // 2).to(state.members.weights.device))
        one, two = some.state(state).clone(), some.state(state).clone()
        _, expected = some.method.step(one, other, Context(self.task, self._running, clock))
        given = [*leaves_of(two), *tensors_of_batch(other), *self._numbers(clock, state).values()]
        info = dict(zip(told, replayed(tidy(record))(*given), strict=False))
        if not same_step(one, expected, two, info, rounded=False):
            raise NotRecordedError("it differs from its record when rows are others")

    def _recorded(
        self, method: Method, trial: State, batch: Batch, clock: Clock, most_bytes: int
    ) -> tuple[Record, State, Info]:
        """The record of a step that this state takes, and what it came to; with outputs beside the info if it did not
        change the state in place."""
        leaves, numbers = leaves_of(trial), self._numbers(clock, trial)
        recorder = Recorder([*leaves, *tensors_of_batch(batch), *numbers.values()], most_bytes)
        # The compiler makes one pass of it all, but none of parts of leaves.
        task = replace(self.task, prior_block=sys.maxsize) if self.executor.steps == "compiled" else self.task
        with recorder:
            after, info = method.step(trial, batch, Context(task, self.executor, clock, numbers))
        here = leaves_of(after)
        in_place = len(here) == len(leaves) and all(one is other for one, other in zip(here, leaves, strict=True))
        return recorder.finish([*info.values(), *([] if in_place else here)]), after, info

    def _unrecorded(self, key: Hashable, obstacle: str) -> None:
        """Say why there is no record of a kind of step, and do not try again."""
        level = logging.WARNING if self.executor.steps == "compiled" else logging.INFO
        logger.log(level, "a kind of step is not recorded: %s", obstacle)
        self._programs[key] = None

    def _compiled(self, record: Record, workspace: Workspace | None = None) -> Replay:
        """The record as machine code; where that cannot be made, all steps are traced, unless some were compiled."""
        try:
            found = compiled(record)
            self.must_be_compiled = True
            return found
        except Exception as error:  # whatever keeps the compiler from it, the record can be run
            words = str(error).strip().splitlines()[0]
            if self.must_be_compiled:
                raise ExecutionError(
                    f"steps of this run are compiled, but one cannot be: {words}. Its numbers would differ in the last "
                    "digits; go on where it was begun, or begin it anew"
                ) from error
            logger.warning("steps are traced, not compiled: %s", words)
            self.executor = replace(self.executor, steps="traced")  # type: ignore[type-var]
            return replayed(record, workspace)

    def _both_ways(
        self, key: Hashable, program: _Program, state: State, batch: Batch, clock: Clock
    ) -> tuple[State, Info]:
        """Take a step in Python, on a copy, and from the record, and compare: of large members, a few."""
        if program.by_few:  # some operations round a number by its place among the others
            few = SomeMembers.few(self.method, program.uses.bit_length())
            context = Context(self.task, self._running, few.clock(clock))
            expected, told = few.method.step(few.state(state).clone(), few.batch(batch), context)
            give_back()
            found, info = self._replayed(program, state, tensors_of_batch(batch), clock)
            alike = same_step(expected, told, few.state(found), few.info(info), rounded=True)
        else:
            expected, told = program.recorded or self._eager(state.clone(), batch, clock)
            program.recorded = None
            found, info = self._replayed(program, state, tensors_of_batch(batch), clock)
            alike = same_step(expected, told, found, info, rounded=self.executor.steps == "compiled")
        if alike:
            return found, info
        # Steps before may have been wrong, or will be; or there is nothing else to go on with.
        if program.uses > 2 or self.executor.steps == "compiled" or program.by_few:
            raise TrainingError(
                f"step {clock.step + 1} of {type(self.method).__name__} came to other numbers than its record: the "
                "network or the method goes by something that is not in its inputs, such as a count of its calls, or "
                'cannot be compiled. Train with an executor that takes each step anew, such as be.Vmap(steps="eager")'
            )
        logger.info("a kind of step is not repeated: it differs")
        self._programs[key] = None
        return expected, told
