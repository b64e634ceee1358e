"""Which executor to use: what was asked for, what the rule says, or the one that is measured to be fastest."""

import logging
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import ExecutionError, SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Batch, Inputs, MemberFunction, map_tensors
from bayesemble.execute import measured
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.loop import Loop
from bayesemble.execute.programs import compiled
from bayesemble.execute.rule import is_convolutional, load_of, one_by_one, repays_compiling, row_for
from bayesemble.execute.vmap import Vmap
from bayesemble.task.adapters.around_shards import AroundShards
from bayesemble.task.task import BoundTask

logger = logging.getLogger("bayesemble")

EXECUTORS: dict[str, type[Executor]] = {"loop": Loop, "vmap": Vmap}
CHOSEN = ("auto", "measure")
AS_ASKED_FOR = "as asked for"

_MOST_ROUNDS = 20
_ENOUGH_SECONDS = 2.0  # two rounds are enough once timing has taken this long
_TOO_LONG_SECONDS = 10.0  # timing ends here; even a single warm-up step then counts
_NETWORKS_PREDICTING_TOGETHER = 16
_ONE_THREAD_SECONDS = 0.02  # a step that is quicker than this may be quicker still on one thread

_NO_BATCHING_RULE = re.compile(r"performance drop because we have not yet implemented the batching rule for (\S+)\.")
_WARNINGS = threading.RLock()  # what becomes of warnings is one state for all threads

Stepper = Callable[[Executor], Callable[[], None]]
"""`stepper(executor)` gives a function that takes one training step with that executor."""


@dataclass(frozen=True)
class Choice:
    """An executor and the words that say why it was taken."""

    executor: Executor
    reason: str


def choose(
    wish: str | Executor,
    task: BoundTask,
    state: State,
    batch: Batch,
    stepper: Stepper,
    steps: int = 0,
    method: Any = None,
    in_turn: bool = False,
) -> Choice:
    """Settle on an executor: the one asked for, the rule's under "auto", the quickest under "measure".

    `steps` are those that could be compiled; `in_turn` says whether some members can take whole steps after the others.
    What is measured for a method is kept: see `execute/measured.py`.
    """
    executor = wished(wish)
    if executor is None:
        auto = wish == "auto"
        given = task, state, batch
        choice = _by_rule(*given, steps, in_turn) if auto else _quickest(*given, stepper, method)
        logger.info("executor: %s (%s)", choice.executor, choice.reason)
        return choice
    if isinstance(executor, Vmap):
        obstacle = vmap_obstacle(task, state.members, batch)
        if obstacle:
            raise ExecutionError(f'{obstacle}; use executor="loop", or "auto" to have it chosen')
    return Choice(executor, AS_ASKED_FOR)


def wished(wish: str | Executor) -> Executor | None:
    """The executor that was asked for, or None if it is to be chosen."""
    if isinstance(wish, str) and wish in CHOSEN:
        return None
    if isinstance(wish, str) and wish in EXECUTORS:
        return EXECUTORS[wish]()
    if not isinstance(wish, Executor):
        names = ", ".join(f'"{name}"' for name in (*CHOSEN, *EXECUTORS))
        raise SettingError(f"executor is {names} or an object such as be.Vmap(chunk=4), not {wish!r}")
    return wish


def vmap_obstacle(task: BoundTask, members: Members, batch: Batch, *, slow: bool = True) -> str | None:
    """Say why vmap cannot run this network, naming the layer, or None: tried on a few rows against the loop.

    Unless it may be slow, an operation that torch has no vectorised form of, and would run member by member with a
    warning, is a reason too. Numbers are compared in the network's own type, whatever training computes in.
    """
    if task.mixed:  # which network to run is a member's data, and under vmap code cannot depend on that
        return "vmap cannot run members of different architectures together"
    if isinstance(task.module, AroundShards):
        return "vmap cannot run a network that is sharded over processes"
    if task.recomputes:
        return "vmap cannot run activation checkpointing (torch.utils.checkpoint)"
    few = members.part(0, min(2, members.num_members))
    rows = _few_rows(batch, few.num_members)
    seeds = list(range(few.num_members)) if task.stochastic else None

    fine = replace(task, precision=None)

    def run(executor: Executor, task: BoundTask) -> tuple[list[Tensor], list[Tensor]]:
        copy = State(few).clone().members
        outputs = executor.outputs(
            lambda params, buffers, inputs, _: task.forward(params, buffers, inputs),
            copy,
            rows.inputs,
            rows.inputs_per_member,
        )
        value, gradients = executor.gradients(task.mean_log_likelihood, copy, rows, seeds)
        return [outputs, value], list(gradients.values())

    expected = run(Loop(), fine)
    layers: list[str] = []
    try:
        with _warnings_kept() as heard, _traced(task.module, layers):
            found = run(Vmap(), fine)
            if task.precision is not None:
                run(Vmap(), task)
    except Exception as error:  # whatever goes wrong under vmap but not in the loop is a reason not to use vmap
        where = f"layer {layers[-1]}" if layers else "the backward pass"
        return f"vmap cannot run {where}: {str(error).strip().splitlines()[0]}"
    if heard and not slow:
        return f"vmap would run {heard[0]} member by member"
    values = all(_close(one, other) for one, other in zip(expected[0], found[0], strict=True))
    # Some gradients are zero but for the rounding of the others, as that of a bias in front of batch norm.
    largest = max(_size(gradient) for gradient in expected[1])
    if values and all(_close(one, other, largest) for one, other in zip(expected[1], found[1], strict=True)):
        return None
    cause = ", most likely from random numbers drawn inside a fused operation, as attention with dropout does"
    return "vmap gives other numbers than the loop for this network" + (cause if task.stochastic else "")


def for_draws(executor: Executor, function: MemberFunction, members: Members, inputs: Inputs) -> Executor:
    """How to run networks that are drawn for a prediction: as asked for, and side by side only if vmap can.

    Leaves that all draws share then meet the inputs once for all of them.
    """
    if not isinstance(executor, Loop) or not executor.draws_by_vmap or members.num_members < 2:
        return executor
    few, vectorised = members.part(0, 2), Vmap(chunk=_NETWORKS_PREDICTING_TOGETHER, threads=executor.threads)
    rows = map_tensors(lambda leaf: leaf[:4], inputs)

    def run(one: Executor) -> Tensor:
        return one.outputs(function, few, rows, False, list(range(few.num_members)))

    expected = run(executor)
    try:
        with _warnings_kept() as heard:
            found = run(vectorised)
    except Exception:  # whatever the reason: the loop can run it
        return executor
    return executor if heard or not _close(expected, found) else vectorised


def _by_rule(task: BoundTask, state: State, batch: Batch, steps: int, in_turn: bool) -> Choice:
    members = state.members
    with thread_count(Loop(threads=1)):  # a few rows
        load = load_of(task, members, _few_rows(batch, 1), batch.num_rows, in_turn)
        row = row_for(load)
        executor = row.executor(load)
        obstacle = vmap_obstacle(task, members, batch, slow=False) if isinstance(executor, Vmap) else None
    if obstacle is not None:
        return Choice(replace(one_by_one(load), draws_by_vmap=False), f"one by one: {obstacle}")
    words = f"{row.words}, {load.numbers:,} numbers a member and step"
    if isinstance(executor, Vmap) and repays_compiling(load, steps) and compiled.obstacle() is None:
        return Choice(replace(executor, steps="compiled"), f"{words}, {steps:,} steps repay compiling")
    return Choice(executor, words)


def _quickest(task: BoundTask, state: State, batch: Batch, stepper: Stepper, method: Any) -> Choice:
    """The quickest executor: as it was found before on this machine, or measured now."""
    if method is None:
        return _fastest(task, state, batch, stepper)
    digest = measured.digest_of(task, state, batch, method)
    known = measured.recall(digest)
    if known is not None:
        executor, reason = known
        if not isinstance(executor, Vmap) or vmap_obstacle(task, state.members, batch) is None:
            return Choice(executor, f"{reason}, in an earlier run")
    choice = _fastest(task, state, batch, stepper)
    measured.remember(digest, choice.executor, choice.reason)
    return choice


def _fastest(task: BoundTask, state: State, batch: Batch, stepper: Stepper) -> Choice:
    alone = state.members.num_members == 1
    obstacle = None if alone else vmap_obstacle(task, state.members, batch)
    in_turn = Loop(draws_by_vmap=not is_convolutional(task))
    candidates: list[Executor] = [in_turn]
    if any(isinstance(layer, nn.Conv2d) for layer in task.module.modules()):
        candidates.append(replace(in_turn, channels_last=True))
    if not alone and obstacle is None:
        candidates.append(Vmap())
    seconds = _time(candidates, stepper)
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] < _ONE_THREAD_SECONDS and torch.get_num_threads() > 1:
        seconds |= _time([best, replace(best, threads=1)], stepper)  # type: ignore[type-var]
        best = min(seconds, key=seconds.__getitem__)
    timings = ", ".join(f"{executor} {1000 * took:.3g} ms" for executor, took in seconds.items())
    return Choice(best, f"measured: {timings} a step" + (f"; {obstacle}" if obstacle else ""))


def _time(executors: list[Executor], stepper: Stepper) -> dict[Executor, float]:
    """Seconds of each one's quickest step. Rounds alternate, so that a busy moment of the machine hits all."""
    steps = {executor: stepper(executor) for executor in executors}
    best = dict.fromkeys(executors, float("inf"))
    begin = time.perf_counter()
    for round_number in range(_MOST_ROUNDS + 1):
        for executor, step in steps.items():
            with thread_count(executor):
                start = time.perf_counter()
                step()
                took = time.perf_counter() - start
            # The first step warms up; it only counts if there is no other.
            best[executor] = took if round_number <= 1 else min(best[executor], took)
        spent = time.perf_counter() - begin
        if spent > _TOO_LONG_SECONDS or (spent > _ENOUGH_SECONDS and round_number >= 2):
            break
    return best


def _few_rows(batch: Batch, num_members: int, num_rows: int = 4) -> Batch:
    def few(per_member: bool) -> Callable[[Any], Any]:
        return lambda leaf: leaf[:num_members, :num_rows] if per_member else leaf[:num_rows]

    return replace(
        batch,
        inputs=map_tensors(few(batch.inputs_per_member), batch.inputs),
        targets=few(batch.targets_per_member)(batch.targets),
        rows=None,
    )


def _close(one: Tensor, other: Tensor, largest: float = 0.0) -> bool:
    """Equal to 1e-4 of their own size, or to 1e-5 of the largest of what they belong to."""
    slack = 1e-4 * _size(one) + max(1e-5 * largest, 1e-6)
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=slack, equal_nan=True)


def _size(one: Tensor) -> float:
    """The largest of the finite numbers."""
    largest = float(one.abs().max()) if one.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = one[one.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """Keep warnings to ourselves; afterwards, the list has the operations that torch cannot vectorise."""
    heard: list[str] = []
    with _WARNINGS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield heard
        heard += [found[1] for found in (_NO_BATCHING_RULE.search(str(one.message)) for one in caught) if found]


@contextmanager
def _traced(module: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the layers that are running, so that the innermost one is known when an error comes."""
    hooks = []
    for name, layer in module.named_modules():
        words = f"{name!r} ({type(layer).__name__})" if name else f"({type(layer).__name__})"
        hooks.append(layer.register_forward_pre_hook(lambda *_, words=words: stack.append(words)))
        hooks.append(layer.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield
    finally:
        for hook in hooks:
            with suppress(KeyError):
                hook.remove()
