"""One method with one seed: trained, scored and timed.

    RUN/source.json    settings          RUN/checkpoint-NNNNNN/    members
    RUN/result.json    what came of it, once it is finished          RUN/progress    the epoch that it is at

A run that was interrupted goes on from its last checkpoint; one that is finished is not repeated. Everything runs on
one thread, and the executor depends on the method alone, not on a clock: so the numbers are the same bits however many
runs go side by side, and wherever a run was interrupted.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bayesemble.apps.compare.budget import gradient_evaluations
from bayesemble.apps.compare.results import Result
from bayesemble.apps.compare.source import Source, in_units, targets_of_test
from bayesemble.core.errors import BayesembleError, TrainingError
from bayesemble.core.files import write_json
from bayesemble.core.memory import MEGABYTE, peak_memory, restart_peak
from bayesemble.data import Split
from bayesemble.diagnostics.size import count_parameters
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.loop import Loop
from bayesemble.execute.vmap import Vmap
from bayesemble.methods import Method
from bayesemble.methods.base import Finisher
from bayesemble.metrics import aurc, crps, summarise
from bayesemble.predictive import Predictive, RealPredictive
from bayesemble.training import checkpoint as checkpoints
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.fit import fit

RESULT, PROGRESS = "result.json", "progress"
ONE_THREAD = Loop(threads=1)
_FEW_ROWS = 32
_warm: set[str] = set()  # methods that this process has used before
_CHECKPOINTS = 10  # in a run: so much of it is lost at most when it is killed


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    method: Method
    source: Source
    root: Path
    """Folder of the comparison."""
    run: str
    """Folder of the run, below it."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.root / self.run

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        assert self.source.epochs is not None
        return self.source.epochs

    def finished(self) -> Result | None:
        """What came of it, if it has been run with these settings before."""
        try:
            found = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
            if found["settings"] != asdict(self.source):
                return None
            scores, cost, notes = dict(found["scores"]), dict(found["cost"]), list(found["notes"])
            return Result(self.label, self.source.seed, self.run, scores, cost, notes=notes)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def progress(self) -> int | None:
        """The epoch that it is at, if it is running."""
        try:
            return int((self.folder / PROGRESS).read_text())
        except (OSError, ValueError):
            return None


def perform(job: Job) -> Result:
    """Train, score and measure, or go on with it; whatever goes wrong becomes a result with its reason."""
    done = job.finished()
    if done is not None:
        return done
    try:
        with thread_count(ONE_THREAD), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            return _perform(job, heard)
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


def _perform(job: Job, heard: list[warnings.WarningMessage]) -> Result:
    split = job.source.split()
    _warm_up(job, split)
    heard.clear()
    before = restart_peak()
    ensemble, finishing = _train(job, split)
    scores = score(ensemble, split)
    start = time.perf_counter()
    ensemble.predict(split.x_test)
    cost = {
        "train_seconds": sum(row["seconds"] for row in ensemble.history) + finishing,
        "predict_seconds": time.perf_counter() - start,
        "gradient_evaluations": gradient_evaluations(
            job.method, ensemble.history, len(split.x_train), job.source.batch_size, job.source.seed
        ),
        "parameters": count_parameters(ensemble.task, job.method).total,
        "peak_memory_mb": max(peak_memory() - before, 0.0)
        / MEGABYTE,  # beyond libraries and data, which all methods hold
    }
    if bad := [name for name, value in scores.items() if not math.isfinite(value)]:
        raise TrainingError(f"{', '.join(bad)} came out infinite or undefined; lower the learning rate or set clip=1.0")
    notes = list(dict.fromkeys(str(warning.message) for warning in heard))
    kept = {"settings": asdict(job.source), "scores": scores, "cost": cost, "notes": notes}
    write_json(job.folder / RESULT, kept)
    return Result(job.label, job.source.seed, job.run, scores, cost, notes=notes)


def _warm_up(job: Job, split: Split) -> None:
    """Use the method once on a few rows, so that what is imported or set up on first use does not count as its time."""
    name = type(job.method).__name__
    if name in _warm:
        return
    _warm.add(name)
    few = (split.x_train[:_FEW_ROWS], split.y_train[:_FEW_ROWS])
    with suppress(Exception):  # with so few rows; in earnest, the reason is told
        fit(job.source.task(split), job.method, few, epochs=1, executor="loop", progress=False).predict(few[0])


def _train(job: Job, split: Split) -> tuple[Ensemble, float]:
    """The ensemble, and the seconds that the method took once training was over."""
    job.source.write(job.folder)
    resumed, last = checkpoints.exists(job.folder), time.perf_counter()

    def show(_: Any, row: dict[str, Any]) -> None:
        nonlocal last
        (job.folder / PROGRESS).write_text(str(row["epoch"]))
        last = time.perf_counter()

    (job.folder / PROGRESS).write_text("0")
    ensemble = fit(
        job.source.task(split),
        job.method,
        (split.x_train, split.y_train),
        epochs=job.epochs,
        batch_size=job.source.batch_size,
        seed=job.source.seed,
        executor="auto" if resumed else executor_for(job.method, job.source),  # resuming takes that of the checkpoint
        checkpoint=job.folder,
        checkpoint_every=max(1, job.epochs // _CHECKPOINTS),
        resume=resumed,
        record="epoch" if job.source.record else None,
        progress=False,
        on_epoch=show,
    )
    return ensemble, time.perf_counter() - last if isinstance(job.method, Finisher) else 0.0


def executor_for(method: Method, source: Source) -> Executor:
    """How members of the small dense network run quickest: vectorised, but for a single one, and for dropout."""
    return ONE_THREAD if method.num_members == 1 or source.dropout else Vmap(threads=1)


def score(ensemble: Ensemble, split: Split) -> dict[str, float]:
    """Scores on the test rows, in the original units of the target, and on foreign rows."""

    def predict(inputs: Any) -> Predictive:
        return in_units(ensemble.predict(inputs), split)

    targets = targets_of_test(split)
    own, ood = predict(split.x_test), None if split.x_ood is None else predict(split.x_ood)
    scores = summarise(own, targets, ood) | {"aurc": aurc(own, targets)}
    return scores | {"crps": crps(own, targets)} if isinstance(own, RealPredictive) else scores
