"""What a comparison found: the results of all methods and seeds on one data set, as kept in `results.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import read_json, understood, write_json
from bayesemble.core.settings import setting, validate

FILE = "results.json"


@dataclass(frozen=True)
class Result:
    """What one method reached with one seed, or why it did not."""

    label: str
    """The words that asked for the method."""
    seed: int
    run: str
    """Folder of the run, below that of the comparison."""
    scores: dict[str, float] = field(default_factory=dict)
    """By name: nll, accuracy, ece ..., on held-out rows."""
    cost: dict[str, float] = field(default_factory=dict)
    """train_seconds, predict_seconds, gradient_evaluations, parameters, peak_memory_mb (beyond libraries and data)."""
    failure: str | None = None
    """Why there are no scores, in a sentence."""
    notes: list[str] = field(default_factory=list)
    """What a person should know about the run: warnings of the method."""
    together: int = setting(1, "runs trained as one, this among them", least=1)
    """If there are several, its seconds of training are a share of theirs, and its memory is that of all."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Comparison:
    """All results on one data set."""

    command: dict[str, Any]
    """The settings that repeat it: data, ood, methods, members, epochs, seeds ..."""
    data: dict[str, Any]
    """What the data set is: name, contents of its files (`contents_of`), kind, numbers of rows, columns and classes,
    whether there is foreign data."""
    results: list[Result]

    def __post_init__(self) -> None:
        validate(self)
        for label in self.labels:
            names = [(result.scores | result.cost).keys() for result in self.of(label)]
            if any(one != names[0] for one in names):
                raise CheckpointError(
                    f"the results of {label!r} have different scores or costs: a result.json is not as it was written; "
                    "remove it, and the same command makes it again"
                )

    @property
    def labels(self) -> list[str]:
        """The methods, in the order asked for."""
        return list(dict.fromkeys(result.label for result in self.results))

    def of(self, label: str) -> list[Result]:
        """The results of one method that did not fail, in order of seeds."""
        return [result for result in self.results if result.label == label and result.failure is None]

    def together(self, label: str) -> int:
        """How many runs of a method were trained as one, at most; 1 if each was trained alone."""
        return max((result.together for result in self.of(label)), default=1)

    def values(self, label: str, name: str) -> dict[int, float]:
        """A score or cost of one method by seed, for those that did not fail; empty if it has none."""
        known = {result.seed: result.scores | result.cost for result in self.of(label)}
        return {seed: values[name] for seed, values in known.items() if name in values}

    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard error over seeds: one row per method. One seed has no standard error.

        A method that failed with every seed has its reason under "failure" instead. Under "together" is the number of
        runs that were trained as one, if there were any.
        """
        rows: list[dict[str, Any]] = []
        for label in self.labels:
            finished = self.of(label)
            if not finished:
                reason = next(result.failure for result in self.results if result.label == label)
                rows.append({"method": label, "failure": reason})
                continue
            columns = {name: list(self.values(label, name).values()) for name in finished[0].scores | finished[0].cost}
            means = {name: {"mean": fmean(v), "error": standard_error(v)} for name, v in columns.items()}
            shared = {"together": self.together(label)} if self.together(label) > 1 else {}
            rows.append({"method": label, **means, **shared})
        return rows

    def write(self, folder: Path) -> None:
        """Write everything as JSON, under its name in one go."""
        write_json(folder / FILE, asdict(self) | {"summary": self.summary()})

    @staticmethod
    def read(folder: str | Path) -> Comparison:
        """Read what `write` wrote, from the folder or from the file itself."""
        path = Path(folder) if Path(folder).suffix == ".json" else Path(folder) / FILE
        content = read_json(path, "the folder of a comparison")
        with understood(path, "does not hold a comparison"):
            results = [Result(**row) for row in content["results"]]
            for result in results:
                if Path(result.run).is_absolute() or ".." in Path(result.run).parts:
                    raise ValueError(f"its run {result.run!r} leaves the folder")
            return Comparison(content["command"], content["data"], results)


def gather(folders: Sequence[str | Path]) -> Comparison:
    """Results of several folders together: comparisons, or single runs inside of one. Runs are named by whole paths.

    Where there are several comparisons, the folder's name stands before that of a method.
    """
    roots = [(_root_of(Path(folder)), Path(folder).resolve()) for folder in folders]
    read = {root: Comparison.read(root) for root, _ in roots}
    first = next(iter(read.values()))
    for root, other in read.items():
        if other.data.get("name") != first.data.get("name"):
            names = f"{first.data.get('name')} and {other.data.get('name')} ({root})"
            raise CheckpointError(f"results on different data cannot stand side by side: {names}")
        if _contents(other) != _contents(first):
            raise CheckpointError(
                f"results on different data cannot stand side by side: {first.data.get('name')} held other rows when "
                f"{root} was made"
            )
    results: dict[str, Result] = {}
    for root, folder in roots:
        for result in read[root].results:
            path = root / result.run
            if folder in (root, path):
                label = f"{root.name}/{result.label}" if len(read) > 1 else result.label
                results[str(path)] = replace(result, label=label, run=str(path))
    return Comparison(first.command, first.data, list(results.values()))


def _contents(comparison: Comparison) -> Any:
    return (comparison.data.get("contents") or {}).get("data")


def _root_of(folder: Path) -> Path:
    """The folder of the comparison that a folder is, or is a run of."""
    for parent in (folder.resolve(), *folder.resolve().parents):
        if (parent / FILE).is_file():
            return parent
    raise CheckpointError(f"{folder} is neither the folder of a comparison nor a run of one: there is no {FILE}")


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean of values; None if there is only one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
