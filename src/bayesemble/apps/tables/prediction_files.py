"""Predictions made elsewhere, read from a file in parts of bounded size.

A CSV file has a column `target` and either probability columns `p_LABEL`, one per class, or columns `mean` and `std`.
An NPZ file has an array `targets` and either `probs`, `(row, class)` or `(member, row, class)`, or `mean` and `std`.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bayesemble.core.errors import DataError
from bayesemble.predictive import Predictive

PREFIX = "p_"
Part = tuple[Predictive, Any]
NumpyArray = np.ndarray[Any, Any]


def read_predictions(path: str | Path, *, target: str | None = "target", rows: int = 100_000) -> Iterator[Part]:
    """Yield predictions and targets, at most so many rows at a time; name what is wrong with line and column.

    With `target=None`, as for foreign data, no targets are looked for and None comes in their place.
    """
    place = Path(path)
    if not place.is_file():
        raise DataError(f"{place} is not a file; a CSV or NPZ file with predictions was needed")
    if place.suffix.lower() == ".npz":
        return _read_npz(place, target is not None, rows)
    return _read_csv(place, target, rows)


@dataclass(frozen=True)
class _Table:
    """How a CSV file is laid out."""

    path: Path
    header: list[str]
    target: str | None
    columns: list[str]

    @property
    def labels(self) -> list[str] | None:
        """What the classes are called, or None for real targets."""
        return [name.removeprefix(PREFIX) for name in self.columns] if self.columns[0].startswith(PREFIX) else None


def _read_csv(path: Path, target: str | None, rows: int) -> Iterator[Part]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader, line = csv.reader(file), 1
        try:
            table = _find_columns(path, [name.strip() for name in next(reader, [])], target)
            while chunk := list(islice(reader, rows)):
                yield _csv_part(table, chunk, first_line=line + 1)
                line += len(chunk)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as a table after line {line}: {error}") from error
    if line == 1:
        raise DataError(f"{path} has column names but no rows")


def _find_columns(path: Path, header: list[str], target: str | None) -> _Table:
    if not header:
        raise DataError(f"{path} is empty; a line with column names was needed")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{path} has several columns called {repeated[0]!r}")
    if target is not None and target not in header:
        raise DataError(f"{path} has no column {target!r}; its columns are {', '.join(header)}")
    columns = [name for name in header if name.startswith(PREFIX)]
    if len(columns) < 2:
        columns = ["mean", "std"]
    if not set(columns) <= set(header):
        raise DataError(f"{path} needs two or more columns {PREFIX}LABEL, or mean and std; it has {', '.join(header)}")
    return _Table(path, header, target, columns)


def _csv_part(table: _Table, chunk: list[list[str]], first_line: int) -> Part:
    for line, row in enumerate(chunk, first_line):
        if len(row) != len(table.header):
            raise DataError(f"{table.path}, line {line}: {len(table.header)} cells were needed, got {len(row)}")
    cells = {name: [row[index] for row in chunk] for index, name in enumerate(table.header)}
    values = {name: _floats(table.path, name, cells[name], first_line) for name in table.columns}
    if table.labels is None:
        predictive: Predictive = Predictive.from_normal(values["mean"], values["std"])
    else:
        predictive = Predictive.from_probs(np.stack(list(values.values()), axis=1))
    return predictive, _csv_targets(table, cells, first_line)


def _csv_targets(table: _Table, cells: dict[str, list[str]], first_line: int) -> NumpyArray | None:
    if table.target is None:
        return None
    own = cells[table.target]
    if table.labels is None:
        return _floats(table.path, table.target, own, first_line)
    return _label_numbers(table, table.labels, own, first_line)


def _floats(path: Path, name: str, cells: list[str], first_line: int) -> NumpyArray:
    values = np.empty(len(cells))
    for offset, cell in enumerate(cells):
        try:
            values[offset] = float(cell)
        except ValueError:
            raise DataError(f"{path}, line {first_line + offset}: {name!r} must be a number, got {cell!r}") from None
    if not np.isfinite(values).all():
        line = first_line + int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"{path}, line {line}: {name!r} must be finite, got {values[line - first_line]}")
    return values


def _label_numbers(table: _Table, labels: list[str], cells: list[str], first_line: int) -> NumpyArray:
    numbers = {label: number for number, label in enumerate(labels)}
    for line, cell in enumerate(cells, first_line):
        if cell.strip() not in numbers:
            known = ", ".join(labels[:10])
            raise DataError(
                f"{table.path}, line {line}: target {cell!r} has no column {PREFIX}{cell}; there are {known}"
            )
    return np.array([numbers[cell.strip()] for cell in cells])


def _read_npz(path: Path, with_targets: bool, rows: int) -> Iterator[Part]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{path} cannot be read as an NPZ file of plain arrays: {error}") from error
    names = ["probs"] if "probs" in arrays else ["mean", "std"]
    if not {*names, *(["targets"] if with_targets else [])} <= set(arrays):
        raise DataError(f"{path} needs targets and probs, or targets, mean and std; it holds {', '.join(arrays)}")
    # Rows are the axis before the classes, or the last one.
    axis = max(arrays[names[0]].ndim - (2 if names == ["probs"] else 1), 0)
    used = {name: arrays[name] for name in names} | ({"targets": arrays["targets"]} if with_targets else {})
    counts = {name: array.shape[0 if name == "targets" else axis] for name, array in used.items() if array.ndim}
    if len(counts) < len(used) or len(set(counts.values())) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in used.items())
        raise DataError(f"{path}: the arrays differ in their rows: {shapes}")
    count = counts[names[0]]
    if not count:
        raise DataError(f"{path} has no rows")
    make = Predictive.from_probs if names == ["probs"] else Predictive.from_normal
    for start in range(0, count, rows):
        chosen = range(start, min(start + rows, count))
        targets = arrays["targets"][start : start + rows] if with_targets else None
        yield make(*(arrays[name].take(chosen, axis=axis) for name in names)), targets
