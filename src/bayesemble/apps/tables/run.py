"""Runs on the tables of a person: fit, open, predict, evaluate; files of any size are gone through in parts.

    RUN/table.json         what was asked for, the columns, the network, and the scores on held-out rows
    RUN/rows.bin           hashes of the rows of the file
    RUN/profile.json       what its rows and its doubt are like, for `watch` and `serve`
    RUN/checkpoint-...     as of every run

Rows are held out for testing by a seeded hash of what they hold. What columns mean is learnt from the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesemble.apps.tables.description import TABLE, Description, TableRequest, begin, read_description
from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.apps.tables.known_rows import KnownRows, Splitter
from bayesemble.apps.tables.profile import make_profile
from bayesemble.apps.tables.targets import baseline_of, columns_of, evaluate_rows, in_units, likelihood_of, values_of
from bayesemble.core.errors import BayesembleError, CheckpointError, DataError, SettingError
from bayesemble.core.members import Members
from bayesemble.data.find_schema import find_schema
from bayesemble.data.remote.addresses import is_address, local_file
from bayesemble.data.schema import Encoded, Schema, as_labels
from bayesemble.data.table_files import Chunk, has_table_name, listed, read_rows, shown
from bayesemble.data.table_writing import write_rows
from bayesemble.diagnostics.diagnose import Diagnosis, diagnose
from bayesemble.estimators.recipe import stretch_of, stretched, table_network, training_on
from bayesemble.predictive import Predictive
from bayesemble.task.likelihoods import Heteroscedastic
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.outgoing.readings import Rules
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.loading import restore
from bayesemble.training.run_folders.run_lock import holding
from bayesemble.training.run_folders.standing import Standing

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class TableRun:
    """A run that was opened again, or has just been trained."""

    folder: Path
    description: Description
    ensemble: Ensemble
    notes: tuple[str, ...] = ()
    """What a person should know about it."""

    @property
    def schema(self) -> Schema:
        """What the columns mean."""
        return self.description.schema

    def predict(self, encoded: Encoded) -> Predictive:
        """Predictions in the original units of the target."""
        return in_units(self.schema, self.ensemble.predict(inputs_of(encoded)))

    def rules(self, level: float | None) -> Rules:
        """What intervals, sets and abstaining go by, in the original units of the target."""
        found = Rules.of(level, self.ensemble.calibration)
        if found.calibration is None or found.calibration.interval_corrections is None:
            return found
        scale = 1.0 if self.schema.task == "count" else self.schema.target.scale
        corrections = tuple(scale * one for one in found.calibration.interval_corrections)
        return replace(found, calibration=replace(found.calibration, interval_corrections=corrections))

    def evaluate(self, parts: Iterable[Encoded], where: str) -> Evaluation:
        """Scores of rows with targets; `where` says which rows these are."""
        return evaluate_rows(self.schema, self.description.baseline, self.predict, parts, where)


@holding("out")
def fit_table(
    request: TableRequest, out: str | Path, *, progress: bool = False, say: Say = lambda words: None
) -> TableRun:
    """Learn from the rows of a file; a run that was interrupted in the same folder goes on.

    Args:
        request: What to learn, from which file, and how.
        progress: Show a progress bar, if there is a terminal.
        say: Called with lines about the rows before training.
    """
    folder, recipe = Path(out), request.recipe
    request = request if is_address(request.file) else replace(request, file=str(Path(request.file).resolve()))
    file = local_file(request.file)
    method = recipe.make_method()  # before anything is read: a wrong setting is said at once
    weight = request.weight_column
    splitter = Splitter(request.seed, request.test, apart=weight)

    def chunks(test: bool) -> Iterator[Chunk]:
        return splitter.part(_that_count(read_rows(file), weight), test)

    schema = find_schema(chunks(test=False), request.target, request.task, weight)
    known = splitter.seen()
    rows = _joined([_encode(schema, chunk, weight) for chunk in chunks(test=False)])
    left_out: list[str] = []
    tests = list(_encode_tests(schema, chunks(test=True), left_out, weight))
    assert rows.targets is not None
    likelihood, num_outputs = likelihood_of(schema, recipe)
    network = recipe.make_network(method, rows.numbers, schema.category_sizes, num_outputs)
    if schema.task == "count":
        network["offset"] = math.log(np.average(rows.targets, weights=rows.weights))
    description = Description(request, schema, network, baseline_of(schema, rows), known.stamp())
    labels = schema.task == "classification"
    held_out = recipe.hold_out(method, rows.targets, labels, request.seed)
    begin(folder, description)
    known.write(folder)
    for line in (*schema.notes, *left_out, _overview(schema, sum(len(part.rows) for part in tests), recipe.method)):
        say(line)
    training = training_on(
        recipe,
        method,
        network,
        likelihood,
        inputs_of(rows),
        rows.targets,
        held_out,
        request.seed,
        folder,
        rows.weights,
    )
    ensemble = training.run(progress)
    description = replace(description, stretch=stretch_of(ensemble))
    run = TableRun(folder, description, ensemble, (*schema.notes, *left_out))
    run = replace(run, description=replace(description, evaluation=run.evaluate(tests, "held-out ")))
    run.description.write(folder)
    apart = [part for part in tests if len(part.rows)] or [taken(rows, held_out)]
    make_profile(schema, rows, apart, run.predict).write(folder, run.description)
    return run


def open_table(folder: str | Path) -> TableRun:
    """The run in a folder, at the state with the best loss on held-out rows."""
    run = Path(folder)
    description = read_description(run)
    if not checkpoints.exists(run):
        raise CheckpointError(f"{run} was interrupted before its first checkpoint; give the command of `fit` again")
    checkpoint = checkpoints.read(run)
    likelihood, num_outputs = likelihood_of(description.schema, description.request.recipe)
    _check_size(description.network, num_outputs, checkpoint.state.members, run / TABLE)
    try:
        model = partial(table_network, **description.network)
        ensemble = restore(checkpoint.kept, model, None, str(run))
    except BayesembleError:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{run / TABLE} does not describe the network of the run: {error}") from error
    if ensemble.task.likelihood != likelihood or ensemble.task.output_shape != (num_outputs,):
        raise CheckpointError(f"the checkpoint in {run} is of another target than {TABLE} beside it")
    if isinstance(likelihood, Heteroscedastic):
        ensemble = stretched(ensemble, description.stretch)
    ensemble = replace(ensemble, calibration=description.calibration)
    return TableRun(run, description, ensemble, _unfinished(Standing.from_json(checkpoint.run.get("progress"))))


def _check_size(network: Mapping[str, Any], num_outputs: int, members: Members, path: Path) -> None:
    """Refuse a network that is larger than the members, before anything of it is made."""
    held = sum(leaf.numel() for leaf in (*members.params.values(), *members.buffers.values()))
    asked = 2 * network["depth"] * network["width"] ** 2
    if asked > held or network.get("num_outputs") != num_outputs:
        raise CheckpointError(f"{path} does not describe the network of the run: its size is not that of the members")


def _unfinished(standing: Standing | None) -> tuple[str, ...]:
    if standing is None or standing.trained:
        return ()
    done = f"epoch {standing.epoch} of {standing.epochs}"
    return (f"training was interrupted after {done}; the command of `fit` goes on with it",)


def evaluate_table(run: TableRun, file: str | Path | None = None) -> Evaluation:
    """Scores on the rows of a file with targets, or (None) on the held-out rows of the one that was trained on."""
    notes = list(run.notes)
    parts, where = _scored(run, file, notes)
    evaluation = run.evaluate(parts, where)
    return replace(evaluation, notes=notes)


def diagnose_table(run: TableRun, file: str | Path | None = None) -> tuple[Diagnosis, Evaluation]:
    """Members and weights on the rows that `evaluate_table` takes, all in memory, and its result."""
    notes = list(run.notes)
    parts, where = _scored(run, file, notes)
    tests = list(parts)
    if not tests:
        raise DataError("there are no rows with targets to examine the members on; name a file")
    rows = _joined(tests)
    diagnosis = diagnose(run.ensemble, (inputs_of(rows), rows.targets))
    return diagnosis, replace(run.evaluate(tests, where), notes=notes)


@dataclass(frozen=True)
class Predicted:
    """What `predict_table` wrote."""

    file: str
    rows: int
    unlike: int
    """How many of the rows are unlike the training data."""
    notes: list[str]


def predict_table(
    run: TableRun,
    file: str | Path,
    out: str | Path,
    *,
    level: float | None = None,
    keep: Sequence[str] = (),
    on_rows: Callable[[int], None] = lambda count: None,
) -> Predicted:
    """Write a prediction of every row of a file, in parts of bounded size.

    Args:
        file: CSV or Parquet; the target is not needed.
        out: CSV or Parquet, by its name.
        level: Probability of the interval from `low` to `high`; None is that of the calibration, or 0.9.
        keep: Columns of the file that are copied.
        on_rows: Called with the number of rows after each part.
    """
    rules = run.rules(level)
    _check_out(Path(out), Path(file), run)
    header = ["row", *keep, *columns_of(run.schema, rules.calibration), "unlike", "why"]
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise SettingError(f"the columns {listed(repeated)} would be there twice; do not keep them")
    count, unlike, notes = 0, 0, dict.fromkeys(run.notes)

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal count, unlike
        for chunk in read_rows(file):
            if absent := [name for name in keep if name not in chunk.columns]:
                raise DataError(f"{file} has no columns {listed(absent)} to keep")
            encoded = run.schema.encode(chunk, with_targets=False)
            notes.update(dict.fromkeys([*chunk.notes, *_unused(run.schema, chunk, encoded, keep)]))
            strange = encoded.unlike.tolist()
            count, unlike = count + len(strange), unlike + sum(strange)
            values = values_of(run.schema, run.predict(encoded), rules)
            kept = [chunk.columns[name] for name in keep]
            yield from zip(chunk.rows, *kept, *values, strange, encoded.reasons, strict=True)
            on_rows(len(strange))

    write_rows(out, header, rows())
    return Predicted(str(out), count, unlike, list(notes))


def _check_out(out: Path, file: Path, run: TableRun) -> None:
    """Refuse to replace what predictions are made from, and whatever is there that is no table."""
    made_from = {"which they are made from": file, "which the run was trained on": Path(run.description.request.file)}
    for words, path in made_from.items():
        if out.resolve() == path.resolve() or (out.exists() and path.exists() and out.samefile(path)):
            raise SettingError(f"the predictions would replace {path}, {words}; choose another name")
    if out.is_file() and not has_table_name(out):
        raise SettingError(f"the predictions would replace {out}, which is no table by its name; choose another name")


# --- rows ---


def _scored(run: TableRun, file: str | Path | None, notes: list[str]) -> tuple[Iterable[Encoded], str]:
    """Rows with targets, and their weights if the run has such a column and the file too; and which rows these are."""
    weight = run.description.request.weight_column
    if file is None:
        return _encode_tests(run.schema, _held_out(run, notes), notes, weight), "held-out "
    if weight is not None and weight not in next(iter(read_rows(file, 1))).columns:
        notes.append(f"{file} has no column {shown(weight)}, by which rows count: here all count alike")
        weight = None
    return _encode_tests(run.schema, _that_count(read_rows(file), weight), notes, weight), ""


def _held_out(run: TableRun, notes: list[str]) -> Iterator[Chunk]:
    """The held-out rows of the file that the run was trained on; refused at the end if it has lost trained rows."""
    request, known = run.description.request, KnownRows.read(run.folder, run.description.rows)
    splitter = Splitter(request.seed, request.test, known.columns)
    yield from splitter.part(_that_count(read_rows(local_file(request.file)), request.weight_column), test=True)
    notes += known.compare(splitter.seen(), request.test, request.file)


def _that_count(chunks: Iterable[Chunk], weight: str | None) -> Iterator[Chunk]:
    """All rows, or those of positive weight."""
    source, count = "", 0
    for chunk in chunks:
        kept = chunk if weight is None else chunk.take(chunk.weights(weight) > 0)
        source, count = chunk.source, count + len(kept.rows)
        if len(kept.rows):
            yield kept
    if weight is not None and not count:
        raise DataError(f"{source}: no row has a weight above 0 in the column {shown(weight)}")


def _encode(schema: Schema, chunk: Chunk, weight: str | None) -> Encoded:
    return replace(schema.encode(chunk), weights=None if weight is None else chunk.weights(weight))


def _encode_tests(
    schema: Schema, chunks: Iterable[Chunk], notes: list[str], weight: str | None = None
) -> Iterator[Encoded]:
    """Rows with targets; those of a class that no training row has are left out, and that is noted."""
    target, left_out = schema.target, 0
    for chunk in chunks:
        if schema.task == "classification" and target.name in chunk.columns:
            cells, gone = chunk.cells(target.name)
            labels = cells if target.kind == "category" else as_labels(chunk.values(target.name, target.way))
            known = np.isin(labels, target.categories) | gone
            left_out += int((~known).sum())
            chunk = chunk.take(known)
        if len(chunk.rows):
            yield _encode(schema, chunk, weight)
    if left_out:
        notes.append(f"{left_out:,} rows to be scored are left out: no training row has their class")


def rows_with_targets(schema: Schema, file: str | Path, notes: list[str]) -> Encoded:
    """All rows of a file that have targets, in memory."""
    parts = list(_encode_tests(schema, read_rows(file), notes))
    if not parts:
        raise DataError(f"{file} has no rows with targets")
    return _joined(parts)


def _joined(parts: list[Encoded]) -> Encoded:
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("rows", "numbers", "categories", "targets", "weights")
        if getattr(parts[0], name) is not None
    }
    return Encoded(**arrays, odd=[cell for part in parts for cell in part.odd], ignored=[])


def taken(rows: Encoded, chosen: Any) -> Encoded:
    """Some of the rows, by a mask or by their places."""
    assert rows.targets is not None
    numbers, categories, targets = rows.numbers[chosen], rows.categories[chosen], rows.targets[chosen]
    weights = None if rows.weights is None else rows.weights[chosen]
    return Encoded(rows.rows[chosen], numbers, categories, targets, rows.odd, [], weights)


def inputs_of(rows: Encoded) -> Any:
    """Rows as the network takes them."""
    return (rows.numbers, rows.categories) if rows.categories.shape[1] else rows.numbers


def _unused(schema: Schema, chunk: Chunk, encoded: Encoded, keep: Sequence[str]) -> list[str]:
    extra = [name for name in encoded.ignored if name not in keep]
    notes = [f"columns that are not used: {listed(extra)}"] if extra else []
    if schema.target.name in chunk.columns:
        notes.append(f"the target {shown(schema.target.name)} is in the file; it is not used")
    return notes


def _overview(schema: Schema, tests: int, method: str) -> str:
    kinds = [column.kind for column in schema.columns]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return (
        f"{schema.num_rows:,} rows to learn from, {tests:,} held out; {len(kinds)} columns ({counts}); "
        f"{schema.task} of {shown(schema.target.name)} by {method}"
    )
