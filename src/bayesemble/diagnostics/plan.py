"""What training will take, before it is begun: parameters, memory, the executor, and seconds from a few real steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.html import facts_table
from bayesemble.core.members import Members, State
from bayesemble.core.memory import available_memory
from bayesemble.core.types import Batch, map_tensors, tensors_of
from bayesemble.diagnostics.size import ParameterCount, count_parameters
from bayesemble.execute.choose import vmap_obstacle
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.execute.loop import Loop
from bayesemble.execute.rule import load_of, row_for
from bayesemble.execute.vmap import Vmap
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.batches import ArraySource, BatchSource
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.prepare import prepare
from bayesemble.training.run import Plan
from bayesemble.training.stepping.in_turn import StepTaker, steps_of
from bayesemble.training.stepping.some_members import can_be_parted

_PROBE_SECONDS = 0.3
_OTHER_ROUNDS, _OTHER_SECONDS = 2, 0.05  # for each other way
_LONG_STEP = 0.5
_FEWEST_STEPS, _MOST_STEPS = 3, 50
_FEW_ROWS = 16
_WORTH_TELLING = 1.2  # how many times faster another way must be
_LARGER = 4  # times the batch
_LONG_SECONDS = 60.0  # of a whole run; a step is compiled in less


@dataclass(frozen=True)
class Forecast:
    """What training will take; `str(forecast)` says it in words."""

    members: int
    parameters: ParameterCount
    state_bytes: int
    """Members, moments and whatever else lies beside the members."""
    gradient_bytes: int
    activation_bytes: int
    """What a backward pass keeps of the members that are run at a time, and its largest temporary tensors."""
    executor: Executor
    reason: str
    """Why this executor is taken."""
    epochs: int
    steps: int
    """Steps per epoch."""
    step_seconds: float | None
    """The usual time of a step and its batch; None if memory was too small to try one."""
    faster: tuple[str, ...]
    """What would make it faster, or possible at all."""

    @property
    def memory(self) -> int:
        """Bytes at the peak of a step, about.

        On top come data, copies that `keep_best` makes, and what the record of a step takes while it is made: at most
        64 MB, and a copy of members that are small.
        """
        return self.state_bytes + self.gradient_bytes + self.activation_bytes

    @property
    def epoch_seconds(self) -> float | None:
        """Expected seconds of an epoch, without validation, checkpoints and what the method does after training."""
        return None if self.step_seconds is None else self.steps * self.step_seconds

    @property
    def seconds(self) -> float | None:
        """Expected seconds of all epochs."""
        return None if self.epoch_seconds is None else self.epochs * self.epoch_seconds

    def facts(self) -> dict[str, str]:
        """Names and values, as a person reads them."""
        count, epoch, total = self.parameters, self.epoch_seconds, self.seconds
        parts = {"members and moments": self.state_bytes, "gradients": self.gradient_bytes}
        parts["activations"] = self.activation_bytes
        memory = ", ".join(f"{name} {_size(number)}" for name, number in parts.items())
        facts = {
            "parameters": f"{count.network:,} of a network, {count.total:,} of {self.members:,} "
            f"{'member' if self.members == 1 else 'members'}",
            "memory": f"about {_size(self.memory)}: {memory}",
            "executor": f"{self.executor} ({self.reason})",
            "steps": f"{self.steps:,} an epoch",
        }
        if epoch is not None and total is not None:
            each = f"about {_duration(epoch)} an epoch"
            facts["time"] = each if self.epochs == 1 else f"{each}, {_duration(total)} for {self.epochs:,} epochs"
        return facts

    def __str__(self) -> str:
        lines = [f"{name + ':':12}{value}" for name, value in self.facts().items()]
        return "\n".join([*lines, *(f"{'faster:':12}{sentence}" for sentence in self.faster)])

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        return facts_table("Forecast", self.facts() | ({"faster": "; ".join(self.faster)} if self.faster else {}))


def plan(
    task: Task,
    method: Method,
    data: Any,
    *,
    epochs: int = 1,
    batch_size: int | None = None,
    executor: str | Executor = "auto",
) -> Forecast:
    """Say what `fit` will take on the CPU, from a few real steps; nothing that is given changes.

    Members begin as in `fit` and take steps for a moment; what could be faster (the rule's executor, another number of
    threads, larger batches) is tried as well, in about a second altogether unless a step takes longer. What `fit` would
    refuse is refused in the same words.

    Args:
        task: What is inferred.
        method: How members are placed.
        data: As for `fit`.
        epochs: Passes over the data.
        batch_size: Rows per step; None takes all at once, or what the `DataLoader` gives.
        executor: As for `fit`.
    """
    ready = prepare(task, method, data, epochs=epochs, batch_size=batch_size, executor=executor)
    ensemble, source, asked = ready.run.ensemble, ready.source, ready.plan
    batch = next(_batches(ensemble, source, asked))
    needed = _memory(ensemble, batch)
    probe = None
    if sum(needed) > available_memory():
        faster = [_too_large(needed)]
    else:
        with kept_memory():
            probe = _probe(ensemble, _steps(ensemble), source, asked, _PROBE_SECONDS)
            room = _LARGER * needed[2] < available_memory()
            faster = _about_data(source, probe) + _other_ways(ensemble, source, asked, batch, probe, room)
    return Forecast(
        method.num_members,
        count_parameters(ensemble.task, method),
        *needed,
        ensemble.executor,
        ensemble.execution,
        asked.epochs,
        asked.steps,
        None if probe is None else probe.seconds,
        tuple(faster),
    )


def _batches(ensemble: Ensemble, source: BatchSource, asked: Plan) -> Iterator[Batch]:
    """The batches of training, epoch after epoch without an end."""
    rows = ensemble.method.member_rows(source.num_data, asked.seed)
    for epoch in count():
        yield from source.epoch(epoch, asked.batch_size, asked.seed, rows)


@dataclass(frozen=True)
class _Probe:
    seconds: float
    """Of a step and its batch: the median, or the quickest of a few."""
    quickest: float
    loading: float
    """The share of the batch."""


def _steps(ensemble: Ensemble) -> StepTaker:
    """Steps as a run takes them, but that nothing is compiled, which takes longer than a forecast may."""
    steps = "traced" if ensemble.executor.steps == "compiled" else ensemble.executor.steps
    executor = replace(ensemble.executor, steps=steps)  # type: ignore[type-var]
    return steps_of(ensemble.method, ensemble.task, executor, ensemble.state, fresh=True)


def _probe(ensemble: Ensemble, take_step: StepTaker, source: BatchSource, asked: Plan, budget: float) -> _Probe:
    """Take real steps after one that warms up; a long one is the only one."""
    state, batches = ensemble.executor.arrange(ensemble.state), _batches(ensemble, source, asked)
    loading, steps = [], list[float]()
    with thread_count(ensemble.executor):
        warm = time.perf_counter()
        context = Context(ensemble.task, ensemble.executor, asked.clock(0, 0))
        state, _ = ensemble.method.step(state, next(batches), context)
        begin = time.perf_counter()
        if begin - warm > _LONG_STEP:
            return _Probe(begin - warm, begin - warm, 0.0)
        for number in range(_MOST_STEPS):
            started = time.perf_counter()
            batch = next(batches)
            loading.append(time.perf_counter() - started)
            clock = asked.clock(0, number % asked.total_steps)
            state, _ = take_step(state, batch, clock)
            steps.append(time.perf_counter() - started)
            if time.perf_counter() - begin > budget and number + 1 >= _FEWEST_STEPS:
                break
    took = median(steps) if len(steps) > 2 * _FEWEST_STEPS else min(steps)
    return _Probe(took, min(steps), median(loading) / took)


def _memory(ensemble: Ensemble, batch: Batch) -> tuple[int, int, int]:
    """Bytes of the state, of the gradients of members that move in a step, and of activations at their peak."""
    task, method, executor, members = ensemble.task, ensemble.method, ensemble.executor, ensemble.state.members
    state = sum(leaf.nbytes for group in ensemble.state.groups().values() for leaf in group.values())
    at_a_time = (executor.chunk or members.num_members) if isinstance(executor, Vmap) else 1
    in_turn = isinstance(executor, Vmap) and can_be_parted(method, ensemble.state, task)
    moving = at_a_time if in_turn else min(method.num_members, method.gradients_per_step)
    gradients = moving * (task.num_parameters + method.extent(task).extra) * task.dtype.itemsize
    saved = [at_a_time * size for size in _saved_bytes(task, members, batch)]
    largest_leaf = max(leaf.nbytes for leaf in members.params.values())
    temporary = max(largest_leaf, 2 * max(saved, default=0))
    rows = sum(leaf.nbytes for leaf in tensors_of((batch.inputs, batch.targets)))
    return state, gradients, round(sum(saved) + temporary + rows)


def _saved_bytes(task: BoundTask, members: Members, batch: Batch) -> list[float]:
    """Bytes of each tensor that the backward pass of one member needs for a batch, from a run on a few of its rows."""
    one = State(members.part(0, 1)).clone().members
    few = _few_rows(batch)
    given = [*one.params.values(), *one.buffers.values(), *tensors_of((few.inputs, few.targets))]
    known = {leaf.untyped_storage().data_ptr() for leaf in given}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), thread_count(Loop(threads=1)):
        Loop().gradients(task.mean_log_likelihood, one, few, [0] if task.stochastic else None)
    scale = batch.num_rows / few.num_rows
    return [scale * size for place, size in saved.items() if place not in known]


def _few_rows(batch: Batch) -> Batch:
    """A few rows, as the first member sees them."""
    return Batch(map_tensors(lambda leaf: leaf[:_FEW_ROWS], batch.inputs_of(0)), batch.targets_of(0)[:_FEW_ROWS])


def _too_large(needed: tuple[int, int, int]) -> str:
    return (
        f"about {_size(sum(needed))} are needed and {_size(int(available_memory()))} can be had, so no step was tried: "
        "take fewer members at a time by executor=be.Vmap(chunk=...) or be.Loop(), smaller batches, or offload=FOLDER"
    )


def _about_data(source: BatchSource, probe: _Probe) -> list[str]:
    if probe.loading < 1 - 1 / _WORTH_TELLING or isinstance(source, ArraySource):
        return []
    return [
        f"{probe.loading:.0%} of the time goes into loading rows: give arrays or a TensorDataset, whose rows are taken "
        "by index, or a DataLoader with num_workers"
    ]


def _other_ways(
    ensemble: Ensemble, source: BatchSource, asked: Plan, batch: Batch, probe: _Probe, room: bool
) -> list[str]:
    """Try what could be faster, for a moment each, and tell of what is; larger batches if there is room for them."""
    executors, obstacle = _other_executors(ensemble, batch)
    sentences = [] if obstacle is None else [f"{obstacle}; a network without that could run all members at once"]
    sentences += _about_compiling(ensemble.executor, asked.total_steps * probe.seconds)
    if probe.seconds > _PROBE_SECONDS:  # each try would take seconds
        return sentences

    def gain(other: Ensemble, batch_size: int | None) -> str | None:
        """Seconds of an epoch instead of those now, if they are fewer: the best of rounds that alternate."""
        ways = ((other, _steps(other), batch_size), (ensemble, _steps(ensemble), asked.batch_size)) * _OTHER_ROUNDS
        took = [
            source.steps(size) * _probe(way, steps, source, replace(asked, batch_size=size), _OTHER_SECONDS).quickest
            for way, steps, size in ways
        ]
        quick, slow = min(took[::2]), min(took[1::2])
        return f"{_duration(quick)} an epoch instead of {_duration(slow)}" if quick * _WORTH_TELLING < slow else None

    for executor in executors:
        words = gain(replace(ensemble, executor=executor), asked.batch_size)
        sentences += [f"executor={_written(executor)} took {words}"] if words else []
    larger = _LARGER * batch.num_rows
    if room and isinstance(source, ArraySource) and larger <= source.num_data:
        words = gain(ensemble, larger)
        sentences += [f"batch_size={larger} took {words}; its fewer steps may need a higher rate"] if words else []
    return sentences


def _about_compiling(executor: Executor, seconds: float) -> list[str]:
    if executor.steps == "compiled":
        return ["steps will be compiled, which takes seconds unless it was done before; those that were tried were not"]
    if executor.steps == "eager" or seconds < _LONG_SECONDS:
        return []
    compiled = replace(executor, steps="compiled")  # type: ignore[type-var]
    return [f"executor={_written(compiled)} compiles the steps, which so many of them may repay"]


def _other_executors(ensemble: Ensemble, batch: Batch) -> tuple[list[Executor], str | None]:
    """The rule's executor if another was taken, or why vmap cannot run; and another number of threads."""
    task, members, taken = ensemble.task, ensemble.state.members, ensemble.executor
    in_turn = can_be_parted(ensemble.method, ensemble.state, task)
    load = load_of(task, members, _few_rows(batch), batch.num_rows, in_turn)
    by_rule, obstacle, found = row_for(load).executor(load), None, list[Executor]()
    if by_rule != replace(taken, steps=by_rule.steps):  # type: ignore[type-var]
        obstacle = vmap_obstacle(task, members, batch, slow=False) if isinstance(by_rule, Vmap) else None
        found = [by_rule] if obstacle is None else []
    if torch.get_num_threads() > 1:
        found.append(replace(taken, threads=None if taken.threads == 1 else 1))  # type: ignore[type-var]
    return list(dict.fromkeys(found)), obstacle


def _written(executor: Executor) -> str:
    """The executor as a person would write it."""
    given = [(field.name, getattr(executor, field.name), field.default) for field in fields(executor)]  # type: ignore
    return f"be.{type(executor).__name__}({', '.join(f'{n}={value!r}' for n, value, usual in given if value != usual)})"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
