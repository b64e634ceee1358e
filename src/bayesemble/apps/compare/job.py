"""One method with one seed: trained, scored and timed.

    RUN/source.json    settings          RUN/checkpoint-NNNNNN/    members
    RUN/result.json    what came of it, once it is finished          RUN/progress    the epoch that it is at
    RUN/together.json  what it shared with runs that it was trained together with, if there were any

A run that was interrupted goes on from its last checkpoint; one that is finished is not repeated. Everything runs on
one thread, and the executor depends on the method alone, not on a clock: so the numbers are the same bits however many
runs go side by side, and wherever a run was interrupted.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bayesemble.apps.compare.budget import gradient_evaluations
from bayesemble.apps.compare.results import Result
from bayesemble.apps.compare.source import RunSource, predict_in_units, targets_of_test
from bayesemble.core.errors import BayesembleError, CheckpointError, TrainingError
from bayesemble.core.files import read_json, understood, write_json
from bayesemble.core.memory import MEGABYTE, peak_memory, restart_peak
from bayesemble.core.settings import require
from bayesemble.data import Split
from bayesemble.diagnostics.size import count_parameters
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.loop import Loop
from bayesemble.execute.vmap import Vmap
from bayesemble.methods import Method
from bayesemble.metrics import aurc, crps, summarise
from bayesemble.models import mlp
from bayesemble.predictive import RealPredictive
from bayesemble.task.likelihoods import Categorical
from bayesemble.task.task import Task
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.fit import fit
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.run_lock import locked

RESULT, PROGRESS, TOGETHER = "result.json", "progress", "together.json"
ONE_THREAD = Loop(draws_by_vmap=True, threads=1)
_CHECKPOINTS_PER_RUN = 10
_COSTS = ("train_seconds", "predict_seconds", "gradient_evaluations", "parameters", "peak_memory_mb")


@dataclass(frozen=True)
class Job:
    """One run of a comparison: one method with one seed. It holds plain values, which any process can read."""

    label: str
    """The words that asked for the method."""
    source: RunSource
    root: Path
    """Folder of the comparison."""

    @property
    def run(self) -> str:
        """Folder of the run, below that of the comparison."""
        return f"runs/{re.sub(r'[^A-Za-z0-9._=-]+', '-', self.label)}/seed-{self.source.seed}"

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.root / self.run

    def finished(self) -> Result | None:
        """What came of it, if it has been run with these settings before.

        A damaged file is not believed, with a warning: it is made again from the checkpoint.
        """
        path = self.folder / RESULT
        if not path.is_file():
            return None
        try:
            content = read_json(path)
            with understood(path):
                if content["settings"] != asdict(self.source):
                    return None
                scores, cost, notes = (content[name] for name in ("scores", "cost", "notes"))
                require(cost.keys() == set(_COSTS), "it does not say what the run cost")
                together = content.get("together", 1)
                return Result(self.label, self.source.seed, self.run, scores, cost, notes=notes, together=together)
        except CheckpointError as error:
            warnings.warn(f"{error}. The run is scored again", stacklevel=2)
            return None

    def progress(self) -> int | None:
        """The epoch that it is at, if it is running."""
        try:
            return int((self.folder / PROGRESS).read_text())
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class Share:
    """What a run has in common with runs that it was trained together with."""

    runs: int = 1
    """How many they were with it: its seconds of training are a share of theirs."""
    peak_memory_mb: float = 0.0
    """That of all of them."""
    notes: list[str] = field(default_factory=list)
    """Warnings that came meanwhile."""

    @staticmethod
    def read(folder: Path) -> Share:
        """That of the run in a folder; a run that has no checkpoint begins alone."""
        path = folder / TOGETHER
        if not (path.is_file() and checkpoints.exists(folder)):
            return Share()
        content = read_json(path)
        with understood(path, "does not say what the run shared with others"):
            return Share(content["runs"], content["peak_memory_mb"], content["notes"])

    def write(self, folder: Path) -> None:
        """Put it into the run folder; a run that shares nothing has no such file."""
        if self == Share():
            (folder / TOGETHER).unlink(missing_ok=True)
        else:
            write_json(folder / TOGETHER, asdict(self))


def perform(job: Job) -> Result:
    """Train, score and measure, or go on with it; whatever goes wrong becomes a result with its reason."""
    done = job.finished()
    if done is not None:
        return done
    try:
        with locked(job.folder), thread_count(ONE_THREAD), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            return _train_and_score(job, heard)
    except BayesembleError as error:
        return failed(job, str(error))
    except Exception as error:  # one method must never end the comparison
        return failed(job, f"{type(error).__name__}: {error}")
    finally:
        with suppress(OSError):
            (job.folder / PROGRESS).unlink()


def failed(job: Job, reason: str) -> Result:
    """A result without scores. It is not kept in the run folder: the next time, the run is tried again."""
    return Result(job.label, job.source.seed, job.run, failure=reason)


def _train_and_score(job: Job, heard: list[warnings.WarningMessage]) -> Result:
    source, method = job.source, job.source.make_method()
    split = source.split()
    warm_up(method)
    heard.clear()
    share = Share.read(job.folder)
    before = restart_peak()
    ensemble = _train(job, method, split)
    scores = score_run(ensemble, split)
    start = time.perf_counter()
    ensemble.predict(split.x_test)
    costs = (
        sum(row["seconds"] + row.get("finish_seconds", 0.0) for row in ensemble.history),
        time.perf_counter() - start,
        gradient_evaluations(ensemble.history),
        count_parameters(ensemble.task, method).total,
        max((peak_memory() - before) / MEGABYTE, share.peak_memory_mb),  # without libraries and data, which all hold
    )
    cost = dict(zip(_COSTS, costs, strict=True))
    if bad := [name for name, value in scores.items() if not math.isfinite(value)]:
        raise TrainingError(f"{', '.join(bad)} came out infinite or undefined; lower the learning rate or set clip=1.0")
    notes = list(dict.fromkeys([*share.notes, *(str(warning.message) for warning in heard)]))
    result = Result(job.label, source.seed, job.run, scores, cost, notes=notes, together=share.runs)
    kept = {name: getattr(result, name) for name in ("scores", "cost", "notes", "together")}
    write_json(job.folder / RESULT, {"settings": asdict(source)} | kept)
    return result


@cache
def warm_up(method: Method) -> None:
    """Use a method on a few made-up rows, once per process: what it sets up on first use is not part of its cost."""
    inputs, targets = torch.linspace(-1, 1, 64).reshape(32, 2), torch.arange(32) % 2
    task = Task(lambda: mlp(2, [4], 2, dropout=0.1 if method.keeps_dropout else 0.0), Categorical())
    with suppress(Exception):  # it may fail on 32 rows; the real run will report why
        fit(task, method, (inputs, targets), epochs=1, executor=ONE_THREAD, progress=False).predict(inputs)


def _train(job: Job, method: Method, split: Split) -> Ensemble:
    data = split.x_train, split.y_train
    return fit(job.source.task(split), method, data, progress=False, **settings_of(job, method))


def settings_of(job: Job, method: Method) -> dict[str, Any]:
    """How a run is trained, in words of `fit`: anew, or on from what is in its folder, which says now what it is of."""
    source = job.source
    source.write(job.folder)
    resumed = checkpoints.exists(job.folder)
    if not resumed:
        Share().write(job.folder)

    def show(_: Any, row: dict[str, Any]) -> None:
        (job.folder / PROGRESS).write_text(str(row["epoch"]))

    (job.folder / PROGRESS).write_text("0")
    return {
        "epochs": source.epochs,
        "batch_size": source.batch_size,
        "seed": source.seed,
        "executor": "auto" if resumed else executor_for(method, source.dropout),  # resuming takes that of before
        "checkpoint": job.folder,
        "checkpoint_every": max(1, source.epochs // _CHECKPOINTS_PER_RUN),
        "resume": resumed,
        "record": "epoch" if source.record else None,
        "on_epoch": show,
    }


def executor_for(method: Method, dropout: float) -> Executor:
    """How members of the small dense network run quickest: vectorised, but for a single one, and for dropout."""
    return ONE_THREAD if method.num_members == 1 or dropout else Vmap(threads=1)


def score_run(ensemble: Ensemble, split: Split) -> dict[str, float]:
    """Scores on the test rows, in the original units of the target, and on foreign rows."""
    targets = targets_of_test(split)
    own = predict_in_units(ensemble, split.x_test, split)
    ood = None if split.x_ood is None else predict_in_units(ensemble, split.x_ood, split)
    scores = summarise(own, targets, ood) | {"aurc": aurc(own, targets)}
    return scores | {"crps": crps(own, targets)} if isinstance(own, RealPredictive) else scores
