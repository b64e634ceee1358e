"""Several fits as one: seeds, splits or folds of a method whose members know nothing of one another.

The members of all fits are trained in one vectorised run, each with the start, the rows and the order of rows that it
would have alone, and come to the same bits. Before that, the first steps are taken both ways: fits whose bits are not
the same, as those of networks with batch norm, are trained one by one, as are fits of other methods.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core.errors import Interrupted, SettingError, TrainingError
from bayesemble.core.members import Members, State
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import require
from bayesemble.core.types import Batch, Info, tensors_of
from bayesemble.execute.choose import Choice
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.execute.rounding import PlaceDependent
from bayesemble.execute.rule import NUMBERS_TOGETHER, load_of
from bayesemble.execute.vmap import SideBySide, Vmap
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.priors import Prior
from bayesemble.task.starts.checks import Clones
from bayesemble.task.task import Task
from bayesemble.training.batches import ArraySource, source_for
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.epochs import after_epoch, check_finite, first_losses, train, with_row
from bayesemble.training.fit import complete
from bayesemble.training.prepare import Ready, prepare
from bayesemble.training.progress import Progress
from bayesemble.training.run import Run
from bayesemble.training.stepping.steps import Steps
from bayesemble.training.stopping import StopRequest, stop_requests

_NO_SEED: Any = object()  # nothing can be drawn from it: each fit has a seed of its own
_OF_ONE_FIT = (
    "checkpoint",
    "resume",
    "change",
    "offload",
    "cache",
    "record",
    "on_epoch",
    "callbacks",
    "on_interrupt",
    "validation",
    "patience",
    "keep_best",
)


def fit_side_by_side(
    task: Task,
    method: Method,
    datasets: Sequence[Any],
    *,
    seeds: Sequence[int] | None = None,
    prior: Prior | None = None,
    **settings: Any,
) -> list[Ensemble]:
    """Train an ensemble on each data set, to the bits of `fit`: splits, folds or seeds of one experiment.

    Those with the same number of rows are trained in one vectorised run if the members of the method know nothing of
    one another and take no random steps (`be.DeepEnsemble`), and if each fit would be run by vmap; that is many times
    faster where networks are small. All others are trained one after the other.

    Args:
        task: What is inferred.
        method: How members are placed.
        datasets: For each ensemble, what `fit` takes as `data`.
        seeds: For each ensemble, the seed; 0 for all if left out.
        prior: As for `fit`, of all of them.
        settings: Others of `fit`, such as `epochs`, `batch_size` and `executor`; not those of a single run, such as a
            folder or validation data.

    The `seconds` in a history are the share of the fit.
    """
    task = task if prior is None else replace(task, prior=prior)
    for name in settings.keys() & set(_OF_ONE_FIT):
        raise SettingError(f"{name} belongs to a single fit; call be.fit for each data set")
    seeds = [0] * len(datasets) if seeds is None else list(seeds)
    require(len(seeds) == len(datasets), f"{len(datasets)} data sets need as many seeds, got {len(seeds)}")
    progress, ready = settings.pop("progress", True), list[Ready]()
    for data, seed in zip(datasets, seeds, strict=True):
        ready.append(prepare_like(ready[:1], task, method, data, seed=seed, **settings))
    with kept_memory():
        return [complete(one, run) for one, run in zip(ready, train_side_by_side(ready, progress), strict=True)]


def prepare_like(
    first: Sequence[Ready], task: Task, method: Method, data: Any, executor: str | Executor = "auto", **settings: Any
) -> Ready:
    """A run that may begin; if there is a first one that is like it, its executor need not be chosen again."""
    weights = settings.get("weights", False)
    source = source_for(task, data, settings.get("batch_size"), weights=weights)
    if first and executor != "measure" and source.num_data == first[0].source.num_data:
        chosen = first[0].run.ensemble
        return prepare(task, method, source, executor=Choice(chosen.executor, chosen.execution), **settings)
    return prepare(task, method, source, executor=executor, **settings)


def train_side_by_side(ready: Sequence[Ready], progress: bool = False) -> list[Run]:
    """Train runs that may begin or go on: together where that gives the same bits, else one by one."""
    trained: dict[int, Run] = {}
    for numbers in groups_of(ready):
        few = [ready[number] for number in numbers]
        runs = train_together(few, progress, numbers) or [train(*one, progress) for one in few]
        trained |= zip(numbers, runs, strict=True)
    return [trained[number] for number in range(len(ready))]


def groups_of(ready: Sequence[Ready]) -> list[list[int]]:
    """The numbers of runs that may be trained together; a run that has to be alone is a group of its own."""
    kinds: dict[Hashable, list[int]] = {}
    for number, one in enumerate(ready):
        kinds.setdefault(_kind(one) or number, []).append(number)
    groups: list[list[int]] = []
    for numbers in kinds.values():
        most = _most_together(ready[numbers[0]]) if len(numbers) > 1 else 1
        groups += [numbers[start : start + most] for start in range(0, len(numbers), most)]
    return groups


def can_go_together(method: Method, executor: Executor) -> bool:
    """Whether fits of a method by an executor may be trained together, as far as these two say."""
    if not (isinstance(executor, Vmap) and executor.chunk is None and method.independent and method.steps_alike):
        return False
    if executor.steps == "compiled":  # which rounds in a way of its own
        return False
    return method.num_members > 1  # the matrices of one torch multiplies by another routine than a stack of several


def train_together(
    ready: Sequence[Ready], progress: bool = False, numbers: Sequence[int] | None = None
) -> list[Run] | None:
    """Train the runs of a group as one; None, and nothing is trained, if there is one only or bits would be others.

    `numbers` are what an error calls the runs by.
    """
    together = _Together(ready, numbers or range(len(ready))) if len(ready) > 1 else None
    return together.train(progress) if together is not None and together.same_bits() else None


def _kind(one: Ready) -> Hashable | None:
    """What runs have in common that may be trained together; None for a run that has to be alone."""
    ensemble, source, plan = one.run.ensemble, one.source, one.plan
    method, task, executor, standing = ensemble.method, ensemble.task, ensemble.executor, one.run.standing
    if not can_go_together(method, executor) or standing.trained:
        return None
    if not isinstance(source, ArraySource) or source.per_member or plan.drop:
        return None
    if task.stochastic or task.allocator.on_disk or ensemble.state.members.shared:
        return None
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in tensors_of((source.inputs, source.targets, source.weights)))
    asked = plan.epochs, plan.batch_size, plan.device, standing.epoch, standing.step
    return id(task.network), task.num_data, repr(method), executor, shapes, asked


def _most_together(one: Ready) -> int:
    """How many runs are trained together: as many as vmap may handle at a time."""
    ensemble, source = one.run.ensemble, one.source
    few, rows = next(source.in_order(4)), one.plan.batch_size or source.num_data
    load = load_of(ensemble.task, ensemble.state.members, few, rows)
    return how_many_fit(NUMBERS_TOGETHER, load.members * load.numbers)


class _Together:
    """Runs of one kind, whose members lie one behind the other."""

    def __init__(self, ready: Sequence[Ready], numbers: Sequence[int]) -> None:
        self.ready, self.numbers, first = ready, numbers, ready[0]
        self.begun = first.run.standing
        self.plan, self.task = first.plan, first.run.ensemble.task
        self.num_members = first.run.ensemble.num_members
        self.method = replace(first.run.ensemble.method, num_members=len(ready) * self.num_members)
        self.executor = SideBySide(threads=first.run.ensemble.executor.threads, num_fits=len(ready))
        self.state = self.executor.arrange(_joined([one.run.ensemble.state for one in ready]))
        self._take_step = Steps(self.method, self.task, self.executor, fresh=not (self.begun.epoch or self.begun.step))
        self._seen: State | None = None
        self._states: list[State] = []
        self.sizes = [batch.num_rows for batch in first.source.in_order(self.plan.batch_size)]

    def batches(self, epoch: int) -> Iterator[Batch]:
        """What each member sees in a step: rows in the order of its own run."""
        runs = [
            next(source.epoch(epoch, None, plan.seed, run.ensemble.method.member_rows(source.num_data, plan.seed)))
            for run, source, _, plan in self.ready
        ]
        own = runs[0].inputs_per_member

        def beside(*leaves: Tensor) -> Tensor:
            return torch.stack([leaf if own else leaf.unsqueeze(0) for leaf in leaves])

        whole, stop = pytree.tree_map(beside, *((one.inputs, one.targets, one.rows) for one in runs)), 0
        for size in self.sizes:
            start, stop = stop, stop + size
            rows = pytree.tree_map(lambda leaf, rows=slice(start, stop): self._for_members(leaf[:, :, rows]), whole)
            inputs, targets, numbers = rows
            yield Batch(inputs, targets, numbers, inputs_per_member=True, targets_per_member=True)

    def _for_members(self, rows: Tensor) -> Tensor:
        return rows.expand(-1, self.num_members, *rows.shape[2:]).flatten(0, 1)

    def step(self, state: State, batch: Batch, epoch: int, step: int) -> tuple[State, Info]:
        """One step of all runs."""
        clock = replace(self.plan.clock(epoch, step), seed=_NO_SEED)
        return self._take_step(state, batch, clock)

    def same_bits(self) -> bool:
        """Whether no operation rounds by the place of a number, and the first steps are indeed the same as alone.

        One step would not show it: the first of Adam hardly depends on how it rounds.
        """
        batches = list(self.batches(0))
        places, state, told = (0, len(batches) - 1, 0), self.state.clone(), list[Info]()
        with thread_count(self.executor):
            for step, place in enumerate(places):
                state, info = self.step(state, batches[place], 0, step)
                told.append(info)
        states, infos = self.states_of(state), self.told_to(told)
        for number in {0, len(self.ready) // 2, len(self.ready) - 1}:
            with PlaceDependent() as operations:
                alone = _steps_alone(self.ready[number], places)
            if operations.found or not _equal(alone, (states[number], infos[number])):
                return False
        return True

    def train(self, progress: bool) -> list[Run]:
        """Go through the epochs of all runs; whoever asks for an end gets it after a whole step.

        Once half of the runs have stopped early, the others go on without them.
        """
        plan, runs, left = self.plan, [one.run for one in self.ready], list[int]()
        with (
            stop_requests(by_sigterm=any(one.plan.folder is not None for one in self.ready)) as request,
            thread_count(self.executor),
            Progress(plan.epochs, plan.total_steps, self.begun.epoch * plan.steps + self.begun.step, progress) as bar,
        ):
            bar.say(f"executor: {self.executor}, {len(runs)} fits side by side")
            for epoch in range(self.begun.epoch, plan.epochs):
                runs = self._train_epoch(epoch, runs, bar, request)
                left = [number for number, run in enumerate(runs) if not run.standing.trained]
                if request.signal is not None or 2 * len(left) <= len(runs):
                    break
        if request.signal is not None:
            raise Interrupted(f"stopped {runs[left[0]].standing}, with {len(runs)} fits side by side", None)
        if left:
            others = [self.ready[number]._replace(run=runs[number]) for number in left]
            rest = _Together(others, [self.numbers[number] for number in left])
            for number, run in zip(left, rest.train(progress), strict=True):
                runs[number] = run
        return runs

    def _train_epoch(self, epoch: int, runs: list[Run], bar: Progress, request: StopRequest) -> list[Run]:
        told, start = self._told_before(runs), time.perf_counter()
        clones = [] if epoch or told else [Clones(run.ensemble.state.members) for run in runs]
        for step, batch in enumerate(islice(self.batches(epoch), len(told), None), len(told)):
            self.state, info = self.step(self.state, batch, epoch, step)
            for number, own in enumerate(clones if not step else ()):
                with _named(self.numbers[number]):
                    own.refuse(self.states[number].members)
            told.append(info)
            bar.step(epoch + 1)
            if request.signal is not None:
                break
        share = (time.perf_counter() - start) / sum(not run.standing.trained for run in runs)
        self._check_finite(told, epoch + 1)
        before, runs = runs, list(runs)
        for number, infos in enumerate(self.told_to(told)):
            if not runs[number].standing.trained:
                runs[number] = self._after_steps(number, before[number], infos, share, bar, request)
                self._save(number, runs[number], at_once=request.signal is not None)
        return runs

    def _told_before(self, runs: list[Run]) -> list[Info]:
        """What the steps told that an epoch had taken before the runs were interrupted."""
        steps = zip(*(run.gathered for run in runs), strict=True)
        return [{name: torch.cat([info[name] for info in infos]) for name in infos[0]} for infos in steps]

    def _check_finite(self, told: list[Info], epoch: int) -> None:
        """One look at all runs, and only if that is bad one at each."""
        try:
            check_finite(self.state, told, epoch)
        except TrainingError:
            for number, infos in enumerate(self.told_to(told)):
                with _named(self.numbers[number]):
                    check_finite(self.states[number], infos, epoch)

    def _after_steps(
        self, number: int, run: Run, told: list[Info], seconds: float, bar: Progress, request: StopRequest
    ) -> Run:
        """One of the runs after these steps of its epoch."""
        plan, held_out, standing = self.ready[number].plan, self.ready[number].held_out, run.standing
        first = standing.first_losses if standing.epoch else first_losses(told[0])
        standing = replace(standing, step=len(told), seconds=standing.seconds + seconds, first_losses=first)
        run = Run(replace(run.ensemble, state=self.states[number]), standing, run.best, told)
        if len(told) == plan.steps:
            run = after_epoch(with_row(run), held_out, plan, bar, request)
        if run.standing.trained:  # the others may go on
            run = replace(run, ensemble=replace(run.ensemble, state=run.ensemble.state.clone()))
        return run

    def _save(self, number: int, run: Run, at_once: bool) -> None:
        plan = self.ready[number].plan
        due = at_once or run.standing.trained or plan.checkpoint_every.after_epoch(run.standing, plan.steps)
        if plan.folder is not None and due:
            run.save(plan.folder, plan.keep_checkpoints)

    def told_to(self, told: list[Info]) -> list[list[Info]]:
        """What steps told of each run."""
        parts = [{name: values.chunk(len(self.ready)) for name, values in info.items()} for info in told]
        return [
            [{name: part[number] for name, part in step.items()} for step in parts] for number in range(len(self.ready))
        ]

    @property
    def states(self) -> list[State]:
        """Views of what each run has of the state, which stay as they are while it is changed in place."""
        if self._seen is not self.state:
            self._seen, self._states = self.state, self.states_of(self.state)
        return self._states

    def states_of(self, state: State) -> list[State]:
        """Views of what each run has of a state; what has no axes belongs to all."""
        parts = {
            group: {name: leaf.chunk(len(self.ready)) if leaf.dim() else None for name, leaf in leaves.items()}
            for group, leaves in state.groups().items()
        }

        def of(number: int) -> State:
            groups = {
                group: {name: leaves[name] if own is None else own[number] for name, own in parts[group].items()}
                for group, leaves in state.groups().items()
            }
            return self.ready[number].run.ensemble.state.with_groups(groups)

        return [of(number) for number in range(len(self.ready))]


def _joined(states: Sequence[State]) -> State:
    """The members of all states one behind the other; what has no axes is the same in all."""

    def beside(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves) if leaves[0].dim() else leaves[0].clone()

    groups = pytree.tree_map(beside, *(state.groups() for state in states))
    weights = torch.cat([state.members.weights for state in states]) / len(states)
    members = Members(groups.pop("params"), groups.pop("buffers"), weights)
    return State(members, groups)


def _steps_alone(ready: Ready, places: Sequence[int]) -> tuple[State, list[Info]]:
    """The first steps of a run as it takes them alone, with the batches at these places of its first epoch."""
    (run, source, _, plan), told = ready, list[Info]()
    ensemble, rows = run.ensemble, run.ensemble.method.member_rows(source.num_data, plan.seed)
    batches, state = list(source.epoch(0, plan.batch_size, plan.seed, rows)), ensemble.state.clone()
    with thread_count(ensemble.executor):
        for step, place in enumerate(places):
            context = Context(ensemble.task, ensemble.executor, plan.clock(0, step))
            state, info = ensemble.method.step(state, batches[place], context)
            told.append(info)
    return state, told


def _equal(one: tuple[State, list[Info]], other: tuple[State, list[Info]]) -> bool:
    """Whether steps came to the same bits."""
    pairs = zip(*(tensors_of((state.groups(), info)) for state, info in (one, other)), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Say which fit it was that went wrong."""
    try:
        yield
    except TrainingError as error:
        raise TrainingError(f"of the fits side by side, number {number}: {error}") from error
