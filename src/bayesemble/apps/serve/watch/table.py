"""A file of rows compared with the profile of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.apps.serve.watch.monitor import Monitor
from bayesemble.apps.serve.watch.words import verdict
from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.apps.tables.profile import doubts_of, read_profile, surprises_of, targets_of
from bayesemble.apps.tables.run import TableRun
from bayesemble.core.errors import DataError
from bayesemble.data.schema import Encoded, Schema, as_labels
from bayesemble.data.table_files import Chunk, read_rows


@dataclass(frozen=True)
class Watching:
    """What a comparison found."""

    rows: int
    labels: int
    """How many of the rows have a label."""
    alarms: list[str]
    first_alarm: int | None
    """After how many rows or labels the first alarm came."""
    unlike: int
    unlike_by_column: dict[str, int] = field(default_factory=dict)
    """How many rows are unlike the training data in each column that has such."""
    words: str = ""
    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = ()


def watch_table(run: TableRun, file: str | Path) -> Watching:
    """Compare the rows of a file, in their order, with what the run was made from; labels may be there or not."""
    profile, why = read_profile(run.folder, run.description)
    if profile is None:
        raise DataError(why)
    monitor, schema = Monitor(run.schema, profile), run.schema
    labelled: list[Encoded] = []
    notes = dict.fromkeys(run.notes)
    for chunk in read_rows(file):
        notes.update(dict.fromkeys(chunk.notes))
        encoded = schema.encode(chunk, with_targets=False)
        monitor.update(encoded, doubts_of(run.predict(encoded)))
        known, foreign = labels_of(schema, chunk)
        surprises = np.full(len(chunk.rows), np.inf)
        if known.any():
            rows = schema.encode(chunk.take(known))
            surprises[known] = surprises_of(run.predict(rows), targets_of(schema, rows))
            labelled.append(rows)
        monitor.update_labels(surprises[known | foreign])
    monitor.finish()
    tests = len(monitor.rows.watched) + (len(monitor.labels.watched) if monitor.labels.rows else 0)
    if not profile.held_out:
        notes["no row was held out when the run was trained: its columns are watched, but not its doubt"] = None
    return Watching(
        monitor.rows.rows,
        monitor.labels.rows,
        [words for _, words in monitor.alarms],
        min((one.rows for one, _ in monitor.alarms), default=None),
        monitor.unlike,
        monitor.unlike_by_column,
        verdict(monitor.rows.rows, monitor.labels.rows, tests, len(monitor.alarms)),
        run.evaluate(labelled, "") if labelled else None,
        tuple(notes),
    )


def labels_of(schema: Schema, chunk: Chunk) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows have a label that the run knows, and which have a class that it does not know."""
    target, none = schema.target, np.zeros(len(chunk.rows), dtype=bool)
    if target.name not in chunk.columns:
        return none, none
    cells, gone = chunk.cells(target.name)
    if schema.task != "classification":
        return ~gone, none
    labels: Any = cells if target.kind == "category" else as_labels(chunk.values(target.name, target.way))
    known = np.isin(labels, target.categories)
    return known & ~gone, ~known & ~gone
