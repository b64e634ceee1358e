"""Runs side by side in processes of their own, and a line on the screen for each of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Self

from bayesemble.apps.compare.job import PROGRESS, Job, failed, perform
from bayesemble.apps.compare.results import Result

_WATCH_SECONDS = 0.2


def perform_all(jobs: list[Job], processes: int, say: Callable[[Job, Result], None]) -> list[Result]:
    """Results of all jobs, in their order; `say` hears of each when it is there."""
    found: dict[int, Result] = {}
    for place, result in _results(jobs, min(processes, len(jobs))):
        found[place] = result
        say(jobs[place], result)
    return [found[place] for place in range(len(jobs))]


def _results(jobs: list[Job], processes: int) -> Iterator[tuple[int, Result]]:
    if processes == 1:
        yield from ((place, perform(job)) for place, job in enumerate(jobs))
        return
    left = set(range(len(jobs)))
    try:
        for place, result in _side_by_side(jobs, sorted(left), processes):
            left.remove(place)
            yield place, result
    except BrokenProcessPool:  # one of them was ended from outside; which one shows when each is alone
        for place in sorted(left):
            try:
                yield from _side_by_side(jobs, [place], 2)
            except BrokenProcessPool:
                yield place, failed(jobs[place], "its process was ended from outside, most likely for want of memory")


def _side_by_side(jobs: list[Job], places: Iterable[int], processes: int) -> Iterator[tuple[int, Result]]:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        pool = Parallel(n_jobs=processes, batch_size=1, pre_dispatch=processes, return_as="generator_unordered")
        yield from pool(delayed(_work)(place, jobs[place], os.getpid()) for place in places)


def _work(place: int, job: Job, parent: int) -> tuple[int, Result]:
    _end_with(parent)
    return place, perform(job)


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, which may be killed; else both would write, then and now."""

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
        self.bar: Any = _make_bar() if shown else None
        self.lines: dict[str, Any] = {}
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        for job in jobs:  # what a killed run may have left
            (job.folder / PROGRESS).unlink(missing_ok=True)

    def count(self) -> None:
        """One more run is finished."""
        if self.bar is not None:
            self.bar.advance(self.total)

    def look(self) -> None:
        """Bring the lines up to date."""
        for job in self.jobs:
            epoch, line = job.progress(), self.lines.get(job.run)
            if epoch is None and line is not None:
                self.bar.remove_task(self.lines.pop(job.run))
            elif epoch is not None and line is None:
                words = f"{job.label}, seed {job.source.seed + 1}"
                self.lines[job.run] = self.bar.add_task(words, total=job.epochs, completed=epoch)
            elif epoch is not None:
                self.bar.update(line, completed=epoch)

    def _watch(self) -> None:
        while not self.over.wait(_WATCH_SECONDS):
            self.look()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
            self.total = self.bar.add_task("all runs", total=len(self.jobs))
            self.watcher.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar is not None:
            self.over.set()
            self.watcher.join()
            self.bar.stop()


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
