"""Predictions made elsewhere, read from a file in parts of bounded size.

A table (CSV or Parquet) has a column `target` and either probability columns `p_LABEL`, one per class, or columns
`mean` and `std`. An NPZ file has an array `targets` and either `probs`, `(row, class)` or `(member, row, class)`, or
`mean` and `std`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import DataError
from bayesemble.data.array_files import read_npz
from bayesemble.data.table_files import Chunk, listed, read_rows, shown
from bayesemble.predictive import Predictive

PREFIX = "p_"
Part = tuple[Predictive, Any]


def read_predictions(path: str | Path, *, target: str | None = "target", rows: int = 100_000) -> Iterator[Part]:
    """Yield predictions and targets in parts of at most `rows` rows; what is wrong is named with its row and column.

    With `target=None`, as for foreign data, no targets are looked for and None comes in their place.
    """
    if Path(path).suffix.lower() == ".npz":
        return _read_npz(Path(path), target is not None, rows)
    return (_table_part(chunk, target) for chunk in read_rows(path, rows, nameless=True))


# --- tables ---


def _table_part(chunk: Chunk, target: str | None) -> Part:
    names = list(chunk.columns)
    if target is not None and target not in names:
        raise DataError(f"{chunk.source} has no column {target!r}; its columns are {listed(names)}")
    columns = [name for name in names if name.startswith(PREFIX)]
    if len(columns) > 1:
        labels = [name.removeprefix(PREFIX) for name in columns]
        probs = np.stack([_numbers(chunk, name) for name in columns], axis=1)
        return Predictive.from_probs(probs), None if target is None else _label_numbers(chunk, target, labels)
    if not {"mean", "std"} <= set(names):
        needed = f"two or more columns {PREFIX}LABEL, or mean and std"
        raise DataError(f"{chunk.source} needs {needed}; its columns are {listed(names)}")
    predictive = Predictive.from_normal(_numbers(chunk, "mean"), _numbers(chunk, "std"))
    return predictive, None if target is None else _numbers(chunk, target)


def _numbers(chunk: Chunk, column: str) -> NumpyArray:
    _, gone = chunk.cells(column)
    if gone.any():
        first = int(gone.argmax())
        raise chunk.error(first, column, f"a number was needed, got {shown(chunk.columns[column][first])}")
    return chunk.values(column, "1.5")


def _label_numbers(chunk: Chunk, target: str, labels: list[str]) -> NumpyArray:
    numbers = {label: number for number, label in enumerate(labels)}
    cells = [cell.strip() for cell in chunk.columns[target]]
    for index, cell in enumerate(cells):
        if cell not in numbers:
            raise chunk.error(index, target, f"{shown(cell)} has no column {PREFIX}{cell}; there are {listed(labels)}")
    return np.array([numbers[cell] for cell in cells])


# --- NPZ ---


def _read_npz(path: Path, with_targets: bool, rows: int) -> Iterator[Part]:
    wanted = ["targets"] if with_targets else []

    def choose(names: list[str]) -> list[str]:
        chosen = [*(["probs"] if "probs" in names else ["mean", "std"]), *wanted]
        if not set(chosen) <= set(names):
            raise DataError(f"{path} needs targets and probs, or targets, mean and std; it holds {', '.join(names)}")
        return chosen

    arrays = read_npz(path, choose)
    axes = {name: _row_axis(name, array) for name, array in arrays.items()}
    counts = {array.shape[axes[name]] if array.ndim else 0 for name, array in arrays.items()}
    if len(counts) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"{path}: the arrays differ in their rows: {shapes}")
    (count,) = counts
    if not count:
        raise DataError(f"{path} has no rows")
    make = Predictive.from_probs if "probs" in arrays else Predictive.from_normal
    for start in range(0, count, rows):
        chosen = range(start, min(start + rows, count))
        part = {name: array.take(chosen, axis=axes[name]) for name, array in arrays.items()}
        targets = part.pop("targets", None)
        yield make(*part.values()), targets


def _row_axis(name: str, array: NumpyArray) -> int:
    """Rows are the first axis of targets, that before the classes of probabilities, and else the last one."""
    return 0 if name == "targets" else max(array.ndim - (2 if name == "probs" else 1), 0)
