"""Methods side by side on one data set: every method, every seed, one table.

Each run is kept in a folder of its own below `out`, so that the same command goes on where it was interrupted, and more
methods or seeds can be added later.

    OUT/results.json    OUT/runs/METHOD/seed-0/    OUT/plan.json (epochs of each method, where they were timed)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bayesemble.apps.compare.budget import Pace, epochs_for_steps, measure_pace, read_plan
from bayesemble.apps.compare.engines import Engine
from bayesemble.apps.compare.job import ONE_THREAD, Job, executor_for, failed
from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.apps.compare.pool import Board, perform_all
from bayesemble.apps.compare.request import Request, parse_methods
from bayesemble.apps.compare.results import FILE, Comparison, Result
from bayesemble.apps.compare.source import contents_of
from bayesemble.apps.compare.together import check_in_one_process, perform_together
from bayesemble.core.files import write_json
from bayesemble.core.settings import require
from bayesemble.data import Split
from bayesemble.data.sources import data_name, resolve_data, usual_epochs
from bayesemble.execute.executor import thread_count
from bayesemble.methods import DeepEnsemble, Method
from bayesemble.training.run_folders.run_lock import holding

PLAN = "plan.json"
_UNFINISHED = "it is not finished; the same command goes on with it"


@holding("out")
def compare(
    request: Request,
    out: str | Path = "comparison",
    *,
    jobs: int | None = 1,
    plugins: Sequence[str] = (),
    retries: int = 1,
    engine: Engine | None = None,
    together: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> Comparison:
    """Train every method with every seed and score it on held-out and on foreign data.

    A method that fails is a result with its reason; it is tried again the next time. `results.json` is written at the
    start and after each run, so that what is finished can be reported at any time.

    Args:
        request: What to compare.
        out: Folder for `results.json` and the runs.
        jobs: Runs side by side, each in a process of its own on one thread; 1 runs them here one after the other, None
            takes as many as there are processors. Inside `joblib.parallel_config("dask")`, or another engine of joblib,
            the runs go there, as many at a time as it has workers unless a number above 1 is said. All its workers
            need this library, and `out` and the data under the same paths.
        plugins: Python files or modules that register methods; each process loads them.
        engine: Where runs go, of `bayesemble.apps.compare.engines.engine`; None is what joblib says, as above.
        retries: How often a run whose worker was lost is tried again; it goes on from its last checkpoint.
        together: Train the seeds of a method as one vectorised run where that gives the same bits, as with
            `be.fit_side_by_side`: scores and folders are those of runs one by one, but seconds are shares of the joint
            run and memory is that of all, as `Result.together` says. All is done in this process, so jobs is 1 or None.
            With budget="seconds", the epochs are those that a method has time for alone.
        progress: Show progress bars, if there is a terminal.
        say: Called with a line after each run.
    """
    require(jobs is None or jobs >= 1, f"at least one run at a time is needed, got jobs={jobs}")
    require(retries >= 0, f"retries is a number from 0, got {retries}")
    if together:
        check_in_one_process(jobs, engine)
    load_plugins(plugins)
    methods, root = parse_methods(request.methods, request.members), Path(out)
    request = replace(
        request, data=resolve_data(request.data), ood=None if request.ood is None else resolve_data(request.ood)
    )
    split = request.split()
    if request.epochs is None:
        request = replace(request, epochs=usual_epochs(request.data, len(split.x_train)))
    epochs = _epochs(methods, request, split, root)
    planned = [
        Job(label, request.source(method, seed, epochs[label]), root)
        for seed in range(request.seeds)
        for label, method in methods.items()
    ]
    if (root / FILE).is_file():
        Comparison.read(root)  # a file of somebody else is not replaced
    for job in planned:
        job.source.check(job.folder)
    known = {job.run: job.finished() or failed(job, _UNFINISHED) for job in planned}
    comparison = Comparison(asdict(request), _described(request, split), list(known.values()))
    comparison.write(root)
    with Board(planned, progress) as board:

        def tell(job: Job, result: Result) -> None:
            board.count()
            known[job.run] = result
            replace(comparison, results=list(known.values())).write(root)  # a killed comparison can be reported
            outcome = f"failed: {result.failure}" if result.failure else f"{result.cost['train_seconds']:.1f} s"
            say(f"{job.label}, seed {job.source.seed + 1} of {request.seeds}: {outcome}")

        if together:
            results = perform_together(planned, tell)
        else:
            results = perform_all(planned, jobs, tell, plugins, retries, engine)
    return replace(comparison, results=results)


def _described(request: Request, split: Split) -> dict[str, Any]:
    return {
        "name": data_name(request.data),
        "contents": contents_of(request.data, request.ood),
        "kind": split.kind,
        "num_train": len(split.x_train),
        "num_test": len(split.x_test),
        "num_features": split.x_train.shape[1],
        "num_classes": split.num_classes,
        "ood": split.x_ood is not None,
        "image_shape": None if split.image_shape is None else list(split.image_shape),
    }


# --- epochs ---


def _epochs(methods: dict[str, Method], request: Request, split: Split, root: Path) -> dict[str, int]:
    """Epochs of each method by its label."""
    assert request.epochs is not None
    if request.budget is None:
        return dict.fromkeys(methods, request.epochs)
    if request.budget == "steps":
        return {label: epochs_for_steps(method, request.epochs, request.members) for label, method in methods.items()}
    return _timed_epochs(methods, request, request.epochs, split, root)


def _timed_epochs(
    methods: dict[str, Method], request: Request, epochs: int, split: Split, root: Path
) -> dict[str, int]:
    """Epochs that take as long as the deep ensemble; timed once, then kept, as another time would give others."""
    same = {name: getattr(request, name) for name in ("data", "rows", "members", "epochs", "batch_size")}
    same["contents"] = contents_of(request.data, request.ood)
    plan = read_plan(root / PLAN, same)

    def pace(method: Method) -> Pace:
        source, data = request.source(method, 0, epochs), (split.x_train, split.y_train)
        with thread_count(ONE_THREAD):
            executor = executor_for(method, source.dropout)
            return measure_pace(source.task(split), method, data, source.batch_size, executor=executor)

    if plan["seconds"] is None:
        plan["seconds"] = pace(DeepEnsemble(num_members=request.members)).seconds(epochs)
    for label, method in methods.items():
        if label not in plan["epochs"]:
            try:
                plan["epochs"][label] = pace(method).epochs(plan["seconds"])
            except Exception:  # it fails in its run as well, which tells the reason
                plan["epochs"][label] = epochs
    write_json(root / PLAN, plan)
    return dict(plan["epochs"])
