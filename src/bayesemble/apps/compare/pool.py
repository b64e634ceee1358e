"""Runs side by side, in processes of their own or on another engine of joblib, and a line on the screen for each.

A run is a folder that goes on where it was left. So whatever becomes of a worker, its run is all that has to be given
to another one, and a run that has left its result in its folder is never repeated.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joblib import cpu_count

from bayesemble.apps.compare.engines import Engine, ambient
from bayesemble.apps.compare.job import PROGRESS, Job, failed, perform
from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.apps.compare.results import Result

_WATCH_SECONDS = 0.2
_one_at_a_time = threading.Lock()  # a worker may have threads, and warnings and the number of threads belong to all
_OWN_PROCESS = 2  # with a single one, joblib would run the job in this very process


def perform_all(
    jobs: list[Job],
    processes: int | None,
    on_result: Callable[[Job, Result], None],
    plugins: Sequence[str] = (),
    retries: int = 1,
    engine: Engine | None = None,
) -> list[Result]:
    """Results of all jobs, in their order.

    Args:
        processes: How many go side by side, each in a process of its own; 1 runs them here, None is one for each
            processor. On another engine None and 1 leave the number to it.
        on_result: Called with each job and its result when it is there.
        plugins: What every process has to load first, as for `load_plugins`.
        retries: How often runs whose worker was lost are tried again.
        engine: Where they run; None is what `joblib.parallel_config` says, or processes here.
    """
    results: dict[int, Result] = {}
    engine = engine or ambient()
    if engine is None:
        found = _results(jobs, min(processes or cpu_count(), len(jobs)), plugins, retries)
    else:
        found = _results_from(engine, jobs, None if processes == 1 else processes, plugins, retries)
    for index, result in found:
        results[index] = result
        on_result(jobs[index], result)
    return [results[index] for index in range(len(jobs))]


def _results(jobs: list[Job], processes: int, plugins: Sequence[str], retries: int) -> Iterator[tuple[int, Result]]:
    if processes == 1:
        yield from ((index, perform(job)) for index, job in enumerate(jobs))
        return
    left = set(range(len(jobs)))
    try:
        for index, result in _side_by_side(jobs, sorted(left), processes, plugins):
            left.remove(index)
            yield index, result
    except BrokenProcessPool:  # one of them was ended from outside; which one shows when each is alone
        for index in sorted(left):
            for _ in range(retries):
                with suppress(BrokenProcessPool):
                    yield from _side_by_side(jobs, [index], _OWN_PROCESS, plugins)
                    break
            else:
                yield index, failed(jobs[index], "its process was ended from outside, most likely for want of memory")


def _results_from(
    engine: Engine, jobs: list[Job], processes: int | None, plugins: Sequence[str], retries: int
) -> Iterator[tuple[int, Result]]:
    """Results from an engine that may lose workers; what has a result in its folder is not asked for again."""
    jobs = [replace(job, root=job.root.resolve()) for job in jobs]  # a worker may stand in another folder
    plugins = [str(Path(name).resolve()) if name.endswith(".py") else name for name in plugins]
    left, reason = set(range(len(jobs))), ""
    for _ in range(1 + retries):
        for index in sorted(left):
            done = jobs[index].finished()
            if done is not None:
                left.remove(index)
                yield index, done
        if not left:
            return
        tasks = [(index, jobs[index], plugins) for index in sorted(left)]
        try:
            for index, result in engine(_work_elsewhere, tasks, processes):
                left.remove(index)
                yield index, result
            return
        except Exception as error:  # each engine has errors of its own for a worker that is lost
            reason = f"{type(error).__name__}: {error}"
    lost = f"the engine lost it: {reason.splitlines()[0]}; the same command goes on with it"
    yield from ((index, jobs[index].finished() or failed(jobs[index], lost)) for index in sorted(left))


def _side_by_side(
    jobs: list[Job], indices: Iterable[int], processes: int, plugins: Sequence[str]
) -> Iterator[tuple[int, Result]]:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        pool = Parallel(n_jobs=processes, batch_size=1, pre_dispatch=processes, return_as="generator_unordered")
        yield from pool(delayed(_work)(index, jobs[index], plugins, os.getpid()) for index in indices)


def _work_elsewhere(index: int, job: Job, plugins: Sequence[str]) -> tuple[int, Result]:
    with _one_at_a_time:
        load_plugins(plugins)
        return index, perform(job)


def _work(index: int, job: Job, plugins: Sequence[str], parent: int) -> tuple[int, Result]:
    _end_with(parent)
    load_plugins(plugins)
    return index, perform(job)


def _end_with(parent: int) -> None:
    """Exit when the parent dies, so that an orphaned worker never writes into a run that was resumed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    if not any(thread.name == "watch parent" for thread in threading.enumerate()):
        threading.Thread(target=watch, name="watch parent", daemon=True).start()


class Board:
    """Shows how far each run is and the time that is left, on standard error if that is a terminal.

    Runs, in whatever process, leave the epoch that they are at in a small file, which is looked at now and then.
    """

    def __init__(self, jobs: list[Job], shown: bool) -> None:
        self.jobs = jobs
        self.bar = _make_bar(shown)
        self.total = self.bar.add_task("all runs", total=len(jobs))
        self.lines: dict[str, Any] = {}
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        for job in jobs:  # what a killed run may have left
            (job.folder / PROGRESS).unlink(missing_ok=True)

    def count(self) -> None:
        """One more run is finished."""
        self.bar.advance(self.total)

    def look(self) -> None:
        """Bring the lines up to date."""
        for job in self.jobs:
            epoch, line = job.progress(), self.lines.get(job.run)
            if epoch is None and line is not None:
                self.bar.remove_task(self.lines.pop(job.run))
            elif epoch is not None and line is None:
                name = f"{job.label}, seed {job.source.seed + 1}"
                self.lines[job.run] = self.bar.add_task(name, total=job.source.epochs, completed=epoch)
            elif epoch is not None:
                self.bar.update(line, completed=epoch)

    def _watch(self) -> None:
        while not (self.bar.disable or self.over.wait(_WATCH_SECONDS)):
            self.look()

    def __enter__(self) -> Self:
        self.bar.start()
        self.watcher.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.over.set()
        self.watcher.join()
        self.bar.stop()


def _make_bar(shown: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
