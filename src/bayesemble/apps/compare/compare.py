"""Methods side by side on one data set: every method, every seed, one table.

Each run is kept in a folder of its own below `out`, so that the same command goes on where it was interrupted, and more
methods or seeds can be added later.

    OUT/results.json    OUT/runs/METHOD/seed-0/    OUT/plan.json (epochs of each method, where they were timed)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesemble.apps.compare.budget import BUDGETS, epochs_for_steps, measure_pace, read_plan
from bayesemble.apps.compare.job import ONE_THREAD, Job, executor_for
from bayesemble.apps.compare.pool import Board, perform_all
from bayesemble.apps.compare.results import Comparison, Result
from bayesemble.apps.compare.source import Source
from bayesemble.core import settings
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.files import write_json
from bayesemble.core.settings import parse_value, require
from bayesemble.data import Split
from bayesemble.data.sources import data_name, resolve_data, usual_epochs
from bayesemble.execute.executor import thread_count
from bayesemble.methods import METHODS, DeepEnsemble, Method, make_method
from bayesemble.methods.base import full_batch, keeps_dropout

PLAN = "plan.json"
_DROPOUT = 0.1  # rate of the dropout layers that a method asks for
DEFAULT_METHODS = "map,deep_ensemble,repulsive,svgd,ecmp,mc_dropout,swag,subspace,csgmcmc,laplace"


@dataclass(frozen=True)
class Entry:
    """A method with the words that asked for it."""

    label: str
    method: Method


def compare(
    data: str = "digits",
    methods: str = DEFAULT_METHODS,
    *,
    members: int = 5,
    epochs: int | None = None,
    seeds: int = 3,
    batch_size: int = 64,
    budget: str | None = None,
    rows: int | None = None,
    ood: str | None = None,
    jobs: int | None = 1,
    out: str | Path = "comparison",
    record: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> Comparison:
    """Train every method with every seed and score it on held-out and on foreign data.

    A method that fails is a result with its reason; it is tried again the next time.

    Args:
        data: An embedded data set, a file or a folder: see `bayesemble.data.sources`.
        methods: Names separated by commas, with settings after a colon: `map,deep_ensemble:bootstrap=true`.
        members: Number of members of each ensemble.
        epochs: Passes over the data; None takes as many as suit the data set.
        seeds: How many times to repeat, each with its own split and start.
        batch_size: Rows per step; methods that need the whole data, such as hmc, take all.
        budget: "steps" or "seconds" gives every method as many gradients, or as much time, as a deep ensemble of so
            many members takes; None gives every member the same epochs.
        rows: Train on so many rows only.
        ood: Foreign data, like `data`; None takes that of an embedded set, if it has any.
        jobs: Runs side by side, each in a process of its own on one thread; 1 runs them here one after the other, None
            takes as many as there are processors.
        out: Folder for `results.json` and the runs.
        record: Keep the members after every epoch, for `bayesemble landscape`.
        progress: Show progress bars, if there is a terminal.
        say: Called with a line after each run.
    """
    _check(members, epochs, seeds, batch_size, budget, jobs)
    entries, root = parse_methods(methods, members), Path(out)
    data, ood = resolve_data(data), None if ood is None else resolve_data(ood)
    split = Source(data, 0, rows=rows, ood=ood).split()
    epochs = usual_epochs(data, len(split.x_train)) if epochs is None else epochs
    command = {"data": data, "ood": ood, "methods": methods, "members": members, "epochs": epochs, "seeds": seeds}
    command |= {"batch_size": batch_size, "budget": budget, "rows": rows, "record": record}
    each = _epochs(entries, command, split, root)
    planned = [_job(entry, seed, each[entry.label], command, root) for seed in range(seeds) for entry in entries]
    for job in planned:
        job.source.check(job.folder)
    results = _perform(planned, jobs, progress, say, seeds)
    comparison = Comparison(command, _described(data, split), results)
    comparison.write(root)
    return comparison


def _check(members: int, epochs: int | None, seeds: int, batch_size: int, budget: str | None, jobs: int | None) -> None:
    require(seeds >= 1, f"at least one seed is needed, got {seeds}")
    require(members >= 1, f"an ensemble has at least one member, got num_members={members}")
    require(epochs is None or epochs >= 1, f"epochs must be a whole number from 1, got {epochs}")
    require(batch_size >= 1, f"batch_size must be a whole number from 1, got {batch_size}")
    require(budget in (None, *BUDGETS), f"budget is one of {', '.join(BUDGETS)}, or left out, not {budget!r}")
    require(jobs is None or jobs >= 1, f"at least one run at a time is needed, got jobs={jobs}")


def _perform(
    planned: list[Job], jobs: int | None, progress: bool, say: Callable[[str], None], seeds: int
) -> list[Result]:
    from joblib import cpu_count

    with Board(planned, progress) as board:

        def hear(job: Job, result: Result) -> None:
            board.count()
            told = f"failed: {result.failure}" if result.failure else f"{result.cost['train_seconds']:.1f} s"
            say(f"{job.label}, seed {job.source.seed + 1} of {seeds}: {told}")

        return perform_all(planned, jobs or cpu_count(), hear)


def _job(entry: Entry, seed: int, epochs: int, command: dict[str, Any], root: Path) -> Job:
    run = f"runs/{re.sub(r'[^A-Za-z0-9._=-]+', '-', entry.label)}/seed-{seed}"
    return Job(entry.label, entry.method, _source(entry.method, seed, epochs, command), root, run)


def _source(method: Method, seed: int, epochs: int, command: dict[str, Any]) -> Source:
    return Source(
        data=command["data"],
        seed=seed,
        dropout=_DROPOUT if keeps_dropout(method) else 0.0,
        rows=command["rows"],
        ood=command["ood"],
        method=settings.dump(method),
        epochs=epochs,
        batch_size=None if full_batch(method) else command["batch_size"],
        record=command["record"],
    )


def _described(data: str, split: Split) -> dict[str, Any]:
    return {
        "name": data_name(data),
        "kind": split.kind,
        "num_train": len(split.x_train),
        "num_test": len(split.x_test),
        "num_features": split.x_train.shape[1],
        "num_classes": split.num_classes,
        "ood": split.x_ood is not None,
        "image_shape": None if split.image_shape is None else list(split.image_shape),
    }


# --- epochs ---


def _epochs(entries: list[Entry], command: dict[str, Any], split: Split, root: Path) -> dict[str, int]:
    """Epochs of each method by its label."""
    if command["budget"] == "seconds":
        return _timed_epochs(entries, command, split, root)
    epochs, members, same = command["epochs"], command["members"], command["budget"] is None
    return {one.label: epochs if same else epochs_for_steps(one.method, epochs, members) for one in entries}


def _timed_epochs(entries: list[Entry], command: dict[str, Any], split: Split, root: Path) -> dict[str, int]:
    """Epochs that take as long as the deep ensemble; timed once, then kept, as another time would give others."""
    same = {name: command[name] for name in ("data", "rows", "members", "epochs", "batch_size")}
    plan = read_plan(root / PLAN, same)

    def pace(method: Method) -> Any:
        source, data = _source(method, 0, command["epochs"], command), (split.x_train, split.y_train)
        with thread_count(ONE_THREAD):
            how = executor_for(method, source)
            return measure_pace(source.task(split), method, data, source.batch_size, executor=how)

    if plan["seconds"] is None:
        plan["seconds"] = pace(DeepEnsemble(num_members=command["members"])).seconds(command["epochs"])
    for entry in entries:
        if entry.label not in plan["epochs"]:
            try:
                plan["epochs"][entry.label] = pace(entry.method).epochs(plan["seconds"])
            except Exception:  # it fails in its run as well, which tells the reason
                plan["epochs"][entry.label] = command["epochs"]
    root.mkdir(parents=True, exist_ok=True)
    write_json(root / PLAN, plan)
    return dict(plan["epochs"])


# --- settings ---


def read_command(path: str | Path) -> dict[str, Any]:
    """The settings of an earlier comparison, from its `results.json` or its folder, as `compare` takes them."""
    command = Comparison.read(path).command
    kinds: dict[str, tuple[type, ...]] = dict.fromkeys(("data", "methods"), (str,))
    kinds |= dict.fromkeys(("members", "epochs", "seeds", "batch_size"), (int,))
    kinds |= {"record": (bool,), "rows": (int, type(None))}
    kinds |= dict.fromkeys(("ood", "budget"), (str, type(None)))
    for name, value in command.items():
        if name not in kinds or type(value) not in kinds[name]:
            raise CheckpointError(f"{path} does not say how to repeat its comparison: {name} cannot be {value!r}")
    return dict(command)


def parse_methods(text: str, members: int) -> list[Entry]:
    """Read `name,name:key=value,key=value,name`; a part with `=` and no colon belongs to the name before it."""
    words: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part:
            if not words:
                raise SettingError(f"the setting {part!r} stands before any method; write name:{part}")
            words[-1] += ("," if ":" in words[-1] else ":") + part
        else:
            words.append(part)
    if not words:
        raise SettingError(f"no method was named; choose from {', '.join(METHODS)}")
    if len(set(words)) < len(words):
        raise SettingError(f"each method can be compared once, got {text!r}")
    return [_entry(word, members) for word in words]


def _entry(word: str, members: int) -> Entry:
    name, _, tail = word.partition(":")
    settings = {}
    for pair in filter(None, tail.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(f"a setting is written key=value, got {pair!r} in {word!r}")
        settings[key.strip()] = parse_value(value.strip())
    fixed = getattr(METHODS.get(name), "keywords", {})
    if "num_members" not in fixed:
        settings.setdefault("num_members", members)
    return Entry(word, make_method(name, **settings))
