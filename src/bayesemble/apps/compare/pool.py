"""Runs side by side in processes of their own, and a line on the screen for each of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Self

from bayesemble.apps.compare.job import PROGRESS, Job, failed, perform
from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.apps.compare.results import Result

_WATCH_SECONDS = 0.2
_OWN_PROCESS = 2  # with a single one, joblib would run the job in this very process


def perform_all(
    jobs: list[Job], processes: int, on_result: Callable[[Job, Result], None], plugins: Sequence[str] = ()
) -> list[Result]:
    """Results of all jobs, in their order.

    Args:
        processes: How many go side by side, each in a process of its own; 1 runs them here.
        on_result: Called with each job and its result when it is there.
        plugins: What every process has to load first, as for `load_plugins`.
    """
    results: dict[int, Result] = {}
    for index, result in _results(jobs, min(processes, len(jobs)), plugins):
        results[index] = result
        on_result(jobs[index], result)
    return [results[index] for index in range(len(jobs))]


def _results(jobs: list[Job], processes: int, plugins: Sequence[str]) -> Iterator[tuple[int, Result]]:
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
            try:
                yield from _side_by_side(jobs, [index], _OWN_PROCESS, plugins)
            except BrokenProcessPool:
                yield index, failed(jobs[index], "its process was ended from outside, most likely for want of memory")


def _side_by_side(
    jobs: list[Job], indices: Iterable[int], processes: int, plugins: Sequence[str]
) -> Iterator[tuple[int, Result]]:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        pool = Parallel(n_jobs=processes, batch_size=1, pre_dispatch=processes, return_as="generator_unordered")
        yield from pool(delayed(_work)(index, jobs[index], plugins, os.getpid()) for index in indices)


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
