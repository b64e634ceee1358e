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

from bayesemble.errors import DataError
from bayesemble.predictive import Predictive

PREFIX = "p_"
Part = tuple[Predictive, Any]
NumpyArray = np.ndarray[Any, Any]


def read_predictions(path: str | Path, *, target: str = "target", rows: int = 100_000) -> Iterator[Part]:
    """Yield predictions and targets, at most so many rows at a time; name what is wrong with line and column."""
    place = Path(path)
    if not place.is_file():
        raise DataError(f"{place} is not a file; a CSV or NPZ file with predictions was needed")
    return _read_npz(place, rows) if place.suffix.lower() == ".npz" else _read_csv(place, target, rows)


@dataclass(frozen=True)
class _Table:
    """How a CSV file is laid out."""

    path: Path
    header: list[str]
    target: str
    columns: list[str]

    @property
    def labels(self) -> list[str] | None:
        """What the classes are called, or None for real targets."""
        return [name.removeprefix(PREFIX) for name in self.columns] if self.columns[0].startswith(PREFIX) else None


def _read_csv(path: Path, target: str, rows: int) -> Iterator[Part]:
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


def _find_columns(path: Path, header: list[str], target: str) -> _Table:
    if not header:
        raise DataError(f"{path} is empty; a line with column names was needed")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{path} has several columns called {repeated[0]!r}")
    if target not in header:
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
        targets = _floats(table.path, table.target, cells[table.target], first_line)
        return Predictive.from_normal(values["mean"], values["std"]), targets
    probs = np.stack(list(values.values()), axis=1)
    return Predictive.from_probs(probs), _label_numbers(table, cells[table.target], first_line)


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


def _label_numbers(table: _Table, cells: list[str], first_line: int) -> NumpyArray:
    assert table.labels is not None
    numbers = {label: number for number, label in enumerate(table.labels)}
    for line, cell in enumerate(cells, first_line):
        if cell.strip() not in numbers:
            known = ", ".join(table.labels[:10])
            raise DataError(
                f"{table.path}, line {line}: target {cell!r} has no column {PREFIX}{cell}; there are {known}"
            )
    return np.array([numbers[cell.strip()] for cell in cells])


def _read_npz(path: Path, rows: int) -> Iterator[Part]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{path} cannot be read as an NPZ file of plain arrays: {error}") from error
    if "targets" not in arrays or not ("probs" in arrays or {"mean", "std"} <= set(arrays)):
        raise DataError(f"{path} needs targets and probs, or targets, mean and std; it holds {', '.join(arrays)}")
    targets, names = arrays["targets"], ["probs"] if "probs" in arrays else ["mean", "std"]
    axis = arrays[names[0]].ndim - (2 if names == ["probs"] else 1)
    for name in names:
        if arrays[name].ndim < 1 or arrays[name].shape[axis : axis + 1] != targets.shape[:1]:
            raise DataError(f"{path}: {name} {arrays[name].shape} and targets {targets.shape} differ in their rows")
    if not len(targets):
        raise DataError(f"{path} has no rows")
    make = Predictive.from_probs if names == ["probs"] else Predictive.from_normal
    for start in range(0, len(targets), rows):
        part = [arrays[name].take(range(start, min(start + rows, len(targets))), axis=axis) for name in names]
        yield make(*part), targets[start : start + rows]
