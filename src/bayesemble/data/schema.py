"""What the columns of a table mean, and the arrays that a network takes; the meaning is found in `find_schema.py`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bayesemble.core import settings
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import setting, validate
from bayesemble.data.cells import FORMATS, LARGEST, Floats
from bayesemble.data.table_files import Chunk, listed, shown

FARTHEST_DEVIATIONS = 1e6  # numbers beyond are cut off, or float32 would overflow
RANGE_MARGIN = 0.1  # a number outside the range of training by this share of it is still like the training data
TASKS = ("regression", "classification", "count")
_FINITE = f"[{-LARGEST}, {LARGEST}]"


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read and scaled; of the target, its classes are the categories."""

    name: str
    way: str = setting(MISSING, "how its cells are written", choices=FORMATS)
    missing: bool = False
    """Whether training rows lacked it: then what is missing is a feature, or a category "", of its own."""
    mean: float = setting(0.0, "mean of its numbers in training", within=_FINITE)
    scale: float = setting(1.0, "standard deviation of its numbers in training", within=f"(0, {LARGEST}]")
    low: float = setting(0.0, "smallest of its numbers in training", within=_FINITE)
    high: float = setting(0.0, "largest of its numbers in training", within=_FINITE)
    categories: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """One of number, boolean, date and category."""
        return FORMATS[self.way].kind

    def __post_init__(self) -> None:
        _validate(self)
        if self.low > self.high or len(set(self.categories)) < len(self.categories):
            raise DataError(
                f"a damaged schema: column {shown(self.name)} has an impossible range or list of categories"
            )


class Odd(NamedTuple):
    """A cell that is unlike those of training: an unknown category, a number far outside the range, or missing."""

    row: int
    column: str
    value: str
    why: str


@dataclass(frozen=True, eq=False)
class Encoded:
    """Rows as a network takes them: numbers `(row, feature)`, categories `(row, column)`; and the columns not used."""

    rows: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float32]
    categories: npt.NDArray[np.int64]
    targets: npt.NDArray[Any] | None
    odd: list[Odd]
    ignored: list[str]
    weights: npt.NDArray[np.float64] | None = None
    """What each row counts for; None counts all alike."""

    @property
    def unlike(self) -> npt.NDArray[np.bool_]:
        """Which rows have a cell unlike those of training."""
        return np.isin(self.rows, [cell.row for cell in self.odd])

    @property
    def reasons(self) -> list[str]:
        """Why each row is unlike the training data, or an empty text."""
        words: dict[int, list[str]] = {}
        for cell in self.odd:
            words.setdefault(cell.row, []).append(f"{shown(cell.column)}: {shown(cell.value)} {cell.why}")
        return ["; ".join(words.get(int(row), [])) for row in self.rows]


@dataclass(frozen=True)
class Schema:
    """The columns that are used, and the target; found by `find_schema`, kept as JSON."""

    columns: tuple[Column, ...]
    target: Column
    task: str = setting(MISSING, "what the target is", choices=TASKS)
    num_rows: int = setting(MISSING, "rows in training", least=1)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)
        names, classes = [column.name for column in (*self.columns, self.target)], self.task == "classification"
        kinds = ("number", "category") if classes else ("number",)
        possible = self.target.kind in kinds and (len(self.target.categories) > 1) == classes
        possible &= len(set(names)) == len(names)
        if not possible or any((column.kind == "category") != bool(column.categories) for column in self.columns):
            raise DataError(f"a damaged schema: its task, target and columns do not fit together: {listed(names)}")
        if not self.columns:
            raise DataError("no column is left to predict from" + "".join(f"; {note}" for note in self.notes))

    @property
    def category_sizes(self) -> list[int]:
        """How many categories each such column has; they are numbered from 1, and 0 is for unknown ones."""
        return [len(column.categories) for column in self.columns if column.kind == "category"]

    @property
    def num_numbers(self) -> int:
        """How many features are numbers: five of a date, else one, and one where cells may be missing."""
        numeric = [column for column in self.columns if column.kind != "category"]
        return sum((5 if column.kind == "date" else 1) + column.missing for column in numeric)

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return dict(settings.dump(self))

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """The schema back, with every field checked."""
        try:
            return settings.parse(value, cls, [Column])
        except (TypeError, SettingError) as error:
            raise DataError(f"a damaged schema: {error}") from error

    def encode(self, chunk: Chunk, with_targets: bool = True) -> Encoded:
        """Turn rows into arrays; columns may come in any order."""
        needed = [column.name for column in self.columns]
        if with_targets:
            needed.append(self.target.name)
        if absent := [name for name in needed if name not in chunk.columns]:
            raise DataError(f"{chunk.source} lacks {listed(absent)}; its columns are {listed(list(chunk.columns))}")
        numbers: list[Any] = [np.zeros((len(chunk.rows), 0))]
        codes: list[Any] = [np.zeros((len(chunk.rows), 0), np.int64)]
        odd: list[Odd] = []
        for column in self.columns:
            (codes if column.kind == "category" else numbers).append(_encode(column, chunk, odd))
        return Encoded(
            rows=np.array(chunk.rows, dtype=np.int64),
            numbers=np.concatenate(numbers, axis=1, dtype=np.float32),
            categories=np.concatenate(codes, axis=1),
            targets=_encode_targets(self.target, self.task, chunk) if with_targets else None,
            odd=odd,
            ignored=sorted(chunk.columns.keys() - {*needed, self.target.name}),
        )

    def decode_targets(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predicted numbers on their original scale, or the texts of predicted classes."""
        array, classes = np.asarray(values), len(self.target.categories)
        if not classes:
            return self.target.mean + self.target.scale * array.astype(np.float64)
        if array.dtype.kind not in "iu" or not ((array >= 0) & (array < classes)).all():
            raise DataError(f"classes must be whole numbers from 0 to {classes - 1}")
        return np.array(self.target.categories, dtype=object)[array]


def _validate(value: Column | Schema) -> None:
    """Check every field, as it may come from a damaged file."""
    try:
        validate(value)
    except SettingError as error:
        raise DataError(f"a damaged schema: {error}") from error


def _encode(column: Column, chunk: Chunk, odd: list[Odd]) -> npt.NDArray[Any]:
    """The features `(row, feature)` or indices `(row, 1)` of a column; cells unlike those of training are added."""
    cells, gone = chunk.cells(column.name)
    if column.kind == "category":
        numbers = {text: number for number, text in enumerate(column.categories, 1)}
        codes = np.array([numbers.get(cell, 0) for cell in cells], dtype=np.int64)
        strange = {"is not in the training data": codes == 0}
        features = codes[:, None]
    else:
        values = np.where(gone, column.mean, chunk.values(column.name, column.way))
        margin = RANGE_MARGIN * (column.high - column.low)
        outside = (values < column.low - margin) | (values > column.high + margin)
        strange = {"is outside the range of the training data": outside & ~gone}
        if not column.missing:
            strange["is missing, as it never was in the training data"] = gone
        features = np.stack(_scaled(column, values, gone), axis=1)
    for why, where in strange.items():
        odd += [Odd(chunk.rows[int(i)], column.name, chunk.columns[column.name][i], why) for i in np.flatnonzero(where)]
    return features


def _scaled(column: Column, values: Floats, gone: npt.NDArray[np.bool_]) -> list[Floats]:
    """Standardised values, sine and cosine of month and weekday for dates, and whether the cell is missing."""
    with np.errstate(over="ignore"):
        features = [np.clip((values - column.mean) / column.scale, -FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS)]
    if column.kind == "date":
        days = np.floor(np.where(gone, 0, values)).astype("datetime64[D]")
        month, weekday = days.astype("datetime64[M]").astype(int) % 12, (days.astype(int) + 3) % 7
        for angle in (2 * np.pi / 12 * month, 2 * np.pi / 7 * weekday):
            features += [np.where(gone, 0.0, np.sin(angle)), np.where(gone, 0.0, np.cos(angle))]
    return [*features, gone.astype(np.float64)] if column.missing else features


def _encode_targets(target: Column, task: str, chunk: Chunk) -> npt.NDArray[Any]:
    """Classes and counts as whole numbers, other targets standardised."""
    cells, gone = chunk.cells(target.name)
    if gone.any():
        raise chunk.error(int(gone.argmax()), target.name, "the target is missing; remove such rows")
    if task == "classification":
        numbers = {label: number for number, label in enumerate(target.categories)}
        labels = cells if target.kind == "category" else as_labels(chunk.values(target.name, target.way))
        found: npt.NDArray[Any] = np.array([numbers.get(label, -1) for label in labels], dtype=np.int64)
        bad, needed = found < 0, f"one of the classes {listed(target.categories)}"
    else:
        values = chunk.values(target.name, target.way)
        with np.errstate(over="ignore"):
            found = (values - target.mean) / target.scale
        bad, needed = (
            np.abs(found) > FARTHEST_DEVIATIONS,
            f"a number within {FARTHEST_DEVIATIONS:g} deviations of the training data",
        )
        if task == "count":
            bad, needed = (values < 0) | (values != np.floor(values)) | (values > 2**53), "a count 0, 1, 2, ..."
    if bad.any():
        first = int(bad.argmax())
        raise chunk.error(first, target.name, f"{needed} was needed, got {shown(cells[first])}")
    return found.astype(np.float32 if task == "regression" else np.int64)


def as_labels(values: Floats) -> list[str]:
    """Numbers as the names of classes."""
    return [f"{value:.15g}" for value in values + 0.0]  # 1, 1.0 and 01 are the same class, and so are 0 and -0
