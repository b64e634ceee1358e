"""The seeds of a method trained as one vectorised run, where that gives the same bits as one by one.

Each run has the folder and the checkpoints that it would have alone. So `perform` finds it trained, and completes,
scores and measures it. It trains alone what could not be trained here, and tells what is wrong with a run: nothing that
goes wrong with one of them is lost on the others.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from bayesemble.apps.compare.engines import Engine, ambient
from bayesemble.apps.compare.job import ONE_THREAD, PROGRESS, Job, Share, executor_for, perform, settings_of, warm_up
from bayesemble.apps.compare.results import Result
from bayesemble.core.errors import SettingError
from bayesemble.core.memory import MEGABYTE, peak_memory, restart_peak
from bayesemble.execute.executor import thread_count
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.methods import Method
from bayesemble.task.task import Task
from bayesemble.training.prepare import Ready
from bayesemble.training.run_folders.run_lock import locked
from bayesemble.training.side_by_side import can_go_together, groups_of, prepare_like, train_together

logger = logging.getLogger("bayesemble")


def check_in_one_process(jobs: int | None, engine: Engine | None) -> None:
    """Refuse to spread runs that are to be trained together."""
    if jobs is not None and jobs > 1:
        raise SettingError(f"runs that are trained together are trained in one process, got jobs={jobs}; leave it out")
    if engine is not None or ambient() is not None:
        raise SettingError("runs that are trained together are trained in this process; leave out the engine")


def perform_together(jobs: list[Job], on_result: Callable[[Job, Result], None]) -> list[Result]:
    """Results of all jobs, in their order; those of a method are trained together where they can be.

    `on_result` is called with each job and its result when it is there.
    """
    results: dict[str, Result] = {}
    for label in dict.fromkeys(job.label for job in jobs):
        own = [job for job in jobs if job.label == label]
        _train_unfinished(own)
        for job in own:
            results[job.run] = perform(job)
            on_result(job, results[job.run])
    return [results[job.run] for job in jobs]


def _train_unfinished(jobs: list[Job]) -> None:
    """Train runs of a method up to their last checkpoint if they can go together; leave all else to `perform`."""
    jobs = [job for job in jobs if job.finished() is None]
    if len(jobs) < 2:
        return
    try:
        method = jobs[0].source.make_method()
        if can_go_together(method, executor_for(method, jobs[0].source.dropout)):
            with ExitStack() as held, thread_count(ONE_THREAD), kept_memory(), _heard():
                _train(jobs, method, held)
        else:
            logger.info("the seeds of %s are trained one by one", jobs[0].label)
    except Exception as error:  # whatever is wrong with a method is told by its runs
        logger.info("the seeds of %s are trained one by one: %s", jobs[0].label, error)
    finally:
        for job in jobs:
            with suppress(OSError):
                (job.folder / PROGRESS).unlink()


@dataclass(frozen=True)
class _Begun:
    """A run that may begin or go on."""

    job: Job
    ready: Ready
    before: Share
    """What it has shared with others until now."""
    notes: list[str]
    """What it was warned of."""


def _train(jobs: list[Job], method: Method, held: ExitStack) -> None:
    warm_up(method)
    splits = {}
    for job in jobs:
        with suppress(Exception):
            held.enter_context(locked(job.folder))
            splits[job.run] = job.source.split()
    bytes_before, tasks, begun = restart_peak(), dict[Any, Task](), list[_Begun]()
    for job in jobs:
        with suppress(Exception), _heard() as heard:
            split, before = splits[job.run], Share.read(job.folder)
            # Runs go together if they share the network too, whose code is the same for all of them.
            task = tasks.setdefault((split.x_train.shape[1], split.num_classes), job.source.task(split))
            first, data = [one.ready for one in begun[:1]], (split.x_train, split.y_train)
            ready = prepare_like(first, task, method, data, **settings_of(job, method))
            begun.append(_Begun(job, ready, before, _words(heard)))
    for numbers in groups_of([one.ready for one in begun]):
        if len(numbers) > 1:
            _train_group([begun[number] for number in numbers], bytes_before)


def _train_group(group: list[_Begun], bytes_before: float) -> None:
    """Train runs as one. Their folders say so from the start on, as they may be killed at any time."""
    words = f"the seeds {', '.join(str(one.job.source.seed) for one in group)} of {group[0].job.label}"
    shares = [replace(one.before, runs=max(one.before.runs, len(group))) for one in group]
    _write(group, shares)
    with _heard() as heard:
        try:
            together = train_together([one.ready for one in group]) is not None
        except Exception as error:  # the run that it is about meets it again
            logger.info("%s go on one by one: %s", words, error)
            together = True
    if not together:
        logger.info("%s are trained one by one, as together they would come to other bits", words)
        _write(group, [one.before for one in group])
        return
    megabytes = (peak_memory() - bytes_before) / MEGABYTE
    peaks = [max(share.peak_memory_mb, megabytes) for share in shares]
    notes = [[*share.notes, *one.notes, *_words(heard)] for share, one in zip(shares, group, strict=True)]
    told = zip(shares, peaks, notes, strict=True)
    _write(group, [replace(share, peak_memory_mb=peak, notes=some) for share, peak, some in told])


def _write(group: list[_Begun], shares: Sequence[Share]) -> None:
    for one, share in zip(group, shares, strict=True):
        share.write(one.job.folder)


@contextmanager
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    """All warnings that come inside the block, each time."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


def _words(heard: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in heard]
