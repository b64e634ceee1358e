"""The steps of a run: each kind of step is recorded once, and then repeated from the record.

A step in Python spends most of its time on the way to the operations, through autograd and vmap. Its record is the
operations alone, on the same tensors in the same order, so that it gives the same bits. Compiled, it gives the same
up to rounding. Now and then, at the first, the second, the fourth, the eighth repetition and so on, a step is taken
both ways, to see that this is so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from bayesemble.core.errors import ExecutionError, TrainingError
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock, Info, tensors_of, widest
from bayesemble.execute.executor import Executor
from bayesemble.execute.loop import Loop
from bayesemble.execute.optimizers.fused import FIRST_MOMENT
from bayesemble.execute.programs.alike import close, same
from bayesemble.execute.programs.compiled import compiled
from bayesemble.execute.programs.members import CompiledLoop
from bayesemble.execute.programs.program import Replay, replayed, tidy
from bayesemble.execute.programs.recorder import Record, Recorder
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.task import BoundTask

logger = logging.getLogger("bayesemble")

# Bytes of a state, for each fit in it, of which steps are recorded: one of a larger is mostly arithmetic, and to check
# it takes a copy.
_MOST_BYTES = {"traced": 1 << 22, "compiled": 1 << 27}
_ROUNDING = 1e-5  # share of the largest gradient
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
    uses: int = 0


class Steps:
    """Takes steps of a method, one after the other."""

    def __init__(self, method: Method, task: BoundTask, executor: Executor, fresh: bool, team: Team = ALONE) -> None:
        self.method, self.task, self.executor, self.team = method, task, executor, team
        self._may_fall_back = fresh
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
        tensors = _tensors_of(batch)
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
        self._state, self._leaves = state, _leaves_of(state)
        self._layout = self._layouts.setdefault(tuple(_places_of(state)), len(self._layouts))

    def _eager(self, state: State, batch: Batch, clock: Clock) -> tuple[State, Info]:
        return self.method.step(state, batch, Context(self.task, self._running, clock, team=self.team))

    def _replayed(self, program: _Program, state: State, tensors: list[Tensor], clock: Clock) -> tuple[State, Info]:
        found = program.replay(*self._leaves, *tensors, *self._numbers(clock, state).values())
        info = dict(zip(program.told, found, strict=False))
        return (state if program.gives is None else _with_leaves(program.gives, found[len(info) :])), info

    def _numbers(self, clock: Clock, state: State) -> dict[str, Tensor]:
        device, numbers = state.members.weights.device, self.method.numbers(clock)
        if numbers != self._last_numbers:
            self._last_numbers = numbers
            exact = widest(device)
            self._as_tensors = {n: torch.tensor(one, dtype=exact, device=device) for n, one in numbers.items()}
        return self._as_tensors

    def _new(self, key: Hashable, state: State, batch: Batch, clock: Clock) -> _Program | None:
        """Record a step that a copy of the state takes; None if this cannot be done."""
        most = _MOST_BYTES[self.executor.steps] * self.executor.fits
        if sum(leaf.nbytes for leaf in self._leaves) > most:  # of these, not even a copy is made
            self._unrecorded(key, "the members are too large to gain from it")
            return None
        try:
            record, after, info, in_place = self._recorded(state.clone(), batch, clock, _TIMES_GIVEN * most)
        except RuntimeError:
            return None  # the step itself may say better what is wrong
        if record.obstacle is not None:
            self._unrecorded(key, record.obstacle)
            return None
        replay = (self._compiled if self.executor.steps == "compiled" else replayed)(tidy(record))
        # Where steps that differ end the run, the one that was recorded need not be taken in Python again.
        came_to = (after, info) if self.executor.steps == "compiled" else None
        gives = None if in_place else after.map(lambda _, leaf: leaf.to("meta"))
        program = _Program(replay, gives, tuple(info), came_to)
        self._programs[key] = program
        return program

    def _recorded(self, trial: State, batch: Batch, clock: Clock, most_bytes: int) -> tuple[Record, State, Info, bool]:
        """The record of a step that this state takes, what the step came to, and whether it did so in place."""
        leaves, numbers = _leaves_of(trial), self._numbers(clock, trial)
        recorder = Recorder([*leaves, *_tensors_of(batch), *numbers.values()], most_bytes)
        # The compiler makes one pass of it all, but none of parts of leaves.
        task = replace(self.task, prior_block=sys.maxsize) if self.executor.steps == "compiled" else self.task
        with recorder:
            after, info = self.method.step(trial, batch, Context(task, self.executor, clock, numbers))
        here = _leaves_of(after)
        in_place = len(here) == len(leaves) and all(one is other for one, other in zip(here, leaves, strict=True))
        record = recorder.finish([*info.values(), *([] if in_place else here)])
        return record, after, info, in_place

    def _unrecorded(self, key: Hashable, obstacle: str) -> None:
        """Say why there is no record of a kind of step, and do not try again."""
        level = logging.WARNING if self.executor.steps == "compiled" else logging.INFO
        logger.log(level, "a kind of step is not recorded: %s", obstacle)
        self._programs[key] = None

    def _compiled(self, record: Record) -> Replay:
        """The record as machine code; where that cannot be made, all steps are traced, unless some were compiled."""
        try:
            found = compiled(record)
            self._may_fall_back = False
            return found
        except Exception as error:  # whatever keeps the compiler from it, the record can be run
            words = str(error).strip().splitlines()[0]
            if not self._may_fall_back:
                raise ExecutionError(
                    f"steps of this run are compiled, but one cannot be: {words}. Its numbers would differ in the last "
                    "digits; go on where it was begun, or begin it anew"
                ) from error
            logger.warning("steps are traced, not compiled: %s", words)
            self.executor = replace(self.executor, steps="traced")  # type: ignore[type-var]
            return replayed(record)

    def _both_ways(
        self, key: Hashable, program: _Program, state: State, batch: Batch, clock: Clock
    ) -> tuple[State, Info]:
        """Take a step in Python, on a copy, and from the record, and compare."""
        expected, told = program.recorded or self._eager(state.clone(), batch, clock)
        program.recorded = None
        found, info = self._replayed(program, state, _tensors_of(batch), clock)
        if self._alike(expected, told, found, info):
            return found, info
        if program.uses > 2 or self.executor.steps == "compiled":  # steps before may have been wrong, or will be
            raise TrainingError(
                f"step {clock.step + 1} of {type(self.method).__name__} came to other numbers than its record: the "
                "network or the method goes by something that is not in its inputs, such as a count of its calls, or "
                'cannot be compiled. Train with an executor that takes each step anew, such as be.Vmap(steps="eager")'
            )
        logger.info("a kind of step is not repeated: it differs")
        self._programs[key] = None
        return expected, told

    def _alike(self, expected: State, told: Info, found: State, info: Info) -> bool:
        """Whether both ways came to the same; compiled steps may differ by what comes of rounding."""
        ones, others = [*_leaves_of(expected), *told.values()], [*_leaves_of(found), *info.values()]
        if self.executor.steps != "compiled":
            return same(ones, others)
        return close(ones, others) or close(ones, [*_leaves_of(_less_rounding(found, expected)), *info.values()])


def _less_rounding(found: State, expected: State) -> State:
    """What was found, but as expected where gradients are nothing but rounding, as that of a bias in front of batch
    norm: Adam makes whole steps of it, one way or the other."""
    theirs, ours = (state.slots.get(FIRST_MOMENT, {}) for state in (expected, found))
    largest = max((float(moment.abs().max()) for moment in theirs.values()), default=0.0)
    nothing = {name: torch.maximum(ours[name].abs(), theirs[name].abs()) <= _ROUNDING * largest for name in theirs}
    groups, wanted = found.groups(), expected.groups()
    for group, leaves in groups.items():
        of_weights = [name for name in nothing if name in leaves and leaves[name].shape == nothing[name].shape]
        settled = {name: torch.where(nothing[name], wanted[group][name], leaves[name]) for name in of_weights}
        groups[group] = leaves | settled
    return found.with_groups(groups)


def _places_of(state: State) -> list[tuple[str, str]]:
    """Group and name of each leaf, but for the weights of the members; sorted, as groups have no order of their own."""
    return sorted((group, name) for group, leaves in state.groups().items() for name in leaves)


def _leaves_of(state: State) -> list[Tensor]:
    groups = state.groups()
    return [*(groups[group][name] for group, name in _places_of(state)), state.members.weights]


def _with_leaves(like: State, found: Sequence[Tensor]) -> State:
    """A state that is laid out like another, with leaves as `_leaves_of` gives them."""
    *leaves, weights = found
    places = dict(zip(_places_of(like), leaves, strict=True))
    groups = {group: {name: places[group, name] for name in own} for group, own in like.groups().items()}
    state = like.with_groups(groups)
    return replace(state, members=replace(state.members, weights=weights))


def _tensors_of(batch: Batch) -> list[Tensor]:
    inputs = [batch.inputs] if isinstance(batch.inputs, Tensor) else tensors_of(batch.inputs)
    targets = [batch.targets] if isinstance(batch.targets, Tensor) else tensors_of(batch.targets)
    return [*inputs, *targets, *([] if batch.rows is None else [batch.rows])]
