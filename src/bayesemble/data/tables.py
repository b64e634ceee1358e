"""What the columns of a table mean, found in one pass over its rows, and the arrays that a network takes.

A column is read as numbers, booleans or dates if each of its cells can be; otherwise its texts are categories. Where
cells can be read in several ways that differ, such as 1,234 or 03/04/2024, the table is refused instead of guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bayesemble import settings
from bayesemble.data.table_files import LARGEST, WAYS, Chunk, Floats, is_number, listed, read, shown
from bayesemble.errors import DataError, SettingError

FARTHEST = 1e6  # in standard deviations: numbers beyond are cut off, or float32 would overflow
MARGIN = 0.1  # of the range in training: so far outside of it is still like the training data
MOST_CATEGORIES = 1000
LONGEST_CATEGORY = 200
MOST_COUNTED = 5_000_000  # texts over all columns, so that memory is bounded for wide tables too
MOST_NUMBERED_CLASSES = 20
MISTAKES = 0.1  # of the cells: so few texts among numbers are not taken for categories
TASKS = ("regression", "classification", "count")


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read and scaled; of the target, its classes are the categories."""

    name: str
    way: str
    missing: bool = False
    """Whether training rows lacked it: then what is missing is a feature, or a category "", of its own."""
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    categories: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """One of number, boolean, date and category."""
        return WAYS[self.way]

    def __post_init__(self) -> None:
        _check_types(self)
        possible = self.way in WAYS and self.scale > 0 and self.low <= self.high
        if not possible or len(set(self.categories)) < len(self.categories):
            raise DataError(f"a damaged schema: the column {shown(self.name)} cannot be as it is")


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
    task: str
    num_rows: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_types(self)
        names, classes = [column.name for column in (*self.columns, self.target)], self.task == "classification"
        possible = self.task in TASKS and len(set(names)) == len(names) and self.num_rows > 0
        kinds = ("number", "category") if classes else ("number",)
        possible &= self.target.kind in kinds and (len(self.target.categories) > 1) == classes
        if not possible or any((column.kind == "category") != bool(column.categories) for column in self.columns):
            raise DataError(f"a damaged schema: its task, target or columns cannot be as they are: {listed(names)}")
        if not self.columns:
            raise DataError("no column is left to predict from" + "".join(f"; {note}" for note in self.notes))

    @property
    def category_sizes(self) -> list[int]:
        """How many indices each category column has, that for unknown ones included."""
        return [len(column.categories) + 1 for column in self.columns if column.kind == "category"]

    def to_json(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return dict(settings.dump(self))

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """The schema back, with every field checked."""
        try:
            return settings.parse(value, [cls], [Column])
        except (TypeError, SettingError) as error:
            raise DataError(f"a damaged schema: {error}") from error

    def encode(self, chunk: Chunk, with_targets: bool = True) -> Encoded:
        """Turn rows into arrays; columns may come in any order."""
        needed = [column.name for column in self.columns] + [self.target.name] * with_targets
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


def _check_types(value: Column | Schema) -> None:
    """Check every field, as it may come from a damaged file."""
    for field in fields(value):
        found, needed = getattr(value, field.name), str(field.type)
        inner = {"tuple[str, ...]": str, "tuple[Column, ...]": Column}.get(needed)
        good = type(found).__name__ == needed.partition("[")[0] and (needed != "float" or abs(found) <= LARGEST)
        if not good or (inner and not all(isinstance(item, inner) for item in found)):
            raise DataError(f"a damaged schema: {field.name!r} must be {needed}, got {shown(str(found))}")


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
        margin = MARGIN * (column.high - column.low)
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
        features = [np.clip((values - column.mean) / column.scale, -FARTHEST, FARTHEST)]
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
        labels = cells if target.kind == "category" else _labels(chunk.values(target.name, target.way))
        found: npt.NDArray[Any] = np.array([numbers.get(label, -1) for label in labels], dtype=np.int64)
        bad, needed = found < 0, f"one of the classes {listed(target.categories)}"
    else:
        values = chunk.values(target.name, target.way)
        with np.errstate(over="ignore"):
            found = (values - target.mean) / target.scale
        bad, needed = np.abs(found) > FARTHEST, f"a number within {FARTHEST:g} deviations of the training data"
        if task == "count":
            bad, needed = (values < 0) | (values != np.floor(values)) | (values > 2**53), "a count 0, 1, 2, ..."
    if bad.any():
        first = int(bad.argmax())
        raise chunk.error(first, target.name, f"{needed} was needed, got {shown(cells[first])}")
    return found.astype(np.float32 if task == "regression" else np.int64)


@dataclass
class _Moments:
    """Mean and spread of numbers that come in parts (Chan, Golub and LeVeque, 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = float("inf")
    high: float = -float("inf")

    def add(self, values: Floats) -> None:
        if not len(values):
            return
        total, mean = self.count + len(values), float(values.mean())
        shift = mean - self.mean
        self.squares += float(np.square(values - mean).sum()) + shift**2 * self.count * len(values) / total
        self.mean, self.count = self.mean + shift * len(values) / total, total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))


class _Profile:
    """What the rows so far say about a column."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.ways = {way: _Moments() for way in WAYS if way != "text"}
        self.counts: Counter[str] | None = Counter()  # None when there are too many
        self.present = self.missing = self.texts = 0
        self.missing_rows: list[int] = []
        self.errors: dict[str, DataError] = {}  # the first of each kind, raised if it turns out to be one

    def add(self, chunk: Chunk) -> None:
        cells, gone = chunk.cells(self.name)
        places = np.flatnonzero(~gone).tolist()
        present = [cells[i] for i in places] if gone.any() else cells
        self.present, self.missing = self.present + len(present), self.missing + len(cells) - len(present)
        self.missing_rows = [*self.missing_rows, *(chunk.rows[i] for i in np.flatnonzero(gone)[:10])][:10]
        if self.counts is not None:
            self.counts.update(present)
            if len(self.counts) > self.most or max(map(len, present), default=0) > LONGEST_CATEGORY:
                self.counts = None
        for way in list(self.ways):
            plain = {"1,000.5": "1.5", "1.000,5": "1,5"}.get(way)
            if plain in self.ways:  # then nothing separates thousands so far, and the values are the same
                self.ways[way] = replace(self.ways[plain])
            else:
                self._try(way, chunk, present, places)
        texts = [] if "1.5" in self.ways else [i for i in places if not is_number(cells[i])]
        self.texts += len(texts)
        for i in texts[:1]:
            self.errors.setdefault("text", chunk.error(i, self.name, f"a number was needed, got {shown(cells[i])}"))

    def _try(self, way: str, chunk: Chunk, present: list[str], places: list[int]) -> None:
        values = read(present, way)
        if values is None:
            del self.ways[way]
            return
        large = np.flatnonzero(np.abs(values) > LARGEST)
        self.ways[way].add(np.delete(values, large))
        if len(large):
            message = f"numbers must be finite and at most {LARGEST:g}, got {shown(present[large[0]])}"
            self.errors.setdefault("large", chunk.error(places[large[0]], self.name, message))

    @property
    def spoilt(self) -> bool:
        """Whether these seem to be numbers with mistakes among them."""
        many = self.counts is None or len(self.counts) > MOST_NUMBERED_CLASSES or not self.texts
        return not self.ways and many and self.texts <= MISTAKES * self.present

    def useless(self) -> str:
        """Why nothing can be learnt from the column, or an empty text."""
        if not self.present:
            return "it is empty"
        alike = any(moments.low == moments.high for moments in self.ways.values())
        if not self.missing and (alike or (self.counts is not None and len(self.counts) == 1)):
            return "all its cells are the same"
        if self.ways or self.spoilt:
            return ""
        if self.counts is None:
            return f"it holds more than {self.most} different texts, or very long ones"
        return "no text occurs twice, so it only names the rows" if len(self.counts) == self.present else ""

    def way(self, chunk: Chunk) -> str:
        """How the cells are written; refused if that is not clear."""
        where = f"{chunk.source}, column {shown(self.name)}"
        if self.spoilt and not self.texts:
            raise DataError(f"{where}: some numbers have a decimal point and some a decimal comma; use one")
        if self.spoilt:
            raise DataError(f"{self.errors['text']}; only {self.texts} of {self.present} cells are no numbers")
        if not self.ways:
            return "text"
        found = next(iter(self.ways))
        if "large" in self.errors and WAYS[found] == "number":
            raise self.errors["large"]
        point, comma = {"1.5", "1,000.5"} & self.ways.keys(), {"1,5", "1.000,5"} & self.ways.keys()
        whole = {"1.5", "1,5"} <= self.ways.keys()
        if point and comma and not whole and (chunk.delimiter == ";" or found != "1.5"):
            raise DataError(f"{where}: commas or points may separate thousands or decimals; write 1234 or 1234.0")
        if {"day/month/year", "month/day/year"} <= self.ways.keys():
            raise DataError(f"{where}: day and month cannot be told apart; write dates as 2024-12-31")
        return found

    def column(self, way: str) -> Column:
        if way == "text":
            texts = [*sorted(self.counts or ()), *[""] * (self.missing > 0)]
            return Column(self.name, way, self.missing > 0, categories=tuple(texts))
        found = self.ways[way]
        scale = (found.squares / found.count) ** 0.5 if found.high > found.low else 0.0
        return Column(self.name, way, self.missing > 0, found.mean, scale or 1.0, found.low, found.high)


def find_schema(chunks: Iterable[Chunk], target: str, task: str | None = None) -> Schema:
    """Find out in one pass what the columns mean; memory does not grow with the number of rows.

    Without a task, a target of texts, or of at most 20 different whole numbers that occur twice on average, is for
    classification, and any other for regression. Counts are only taken as such when asked for.
    """
    if task is not None and task not in TASKS:
        raise SettingError(f"the task must be one of {', '.join(TASKS)}, got {task!r}")
    profiles: dict[str, _Profile] = {}
    for chunk in chunks:
        names = list(chunk.columns)
        if target not in names:
            raise DataError(f"{chunk.source} has no column {shown(target)}; its columns are {listed(names)}")
        if not profiles:
            profiles = {name: _Profile(name, min(MOST_CATEGORIES, MOST_COUNTED // len(names))) for name in names}
        if names != list(profiles):
            raise DataError(f"{chunk.source} changes its columns at row {chunk.rows[0]}")
        for profile in profiles.values():
            profile.add(chunk)
    if not profiles:
        raise DataError("the table has no rows")
    return _make_schema(profiles, target, task, chunk)


def _make_schema(profiles: dict[str, _Profile], target: str, task: str | None, chunk: Chunk) -> Schema:
    goal, found = _find_target(profiles[target], task, chunk)
    notes = [*chunk.notes, *[f"from the cells of {shown(target)}, the task is {found}"] * (task is None)]
    columns = []
    for name, profile in profiles.items():
        if name != target and (why := profile.useless()):
            notes.append(f"column {shown(name)} is not used: {why}")
        elif name != target:
            columns.append(profile.column(profile.way(chunk)))
    unusual = [column for column in (*columns, goal) if column.kind == "number" and column.way != "1.5"]
    notes += [f"column {shown(column.name)} is read as numbers written like {column.way}" for column in unusual]
    return Schema(tuple(columns), goal, found, profiles[target].present, tuple(notes))


def _find_target(profile: _Profile, task: str | None, chunk: Chunk) -> tuple[Column, str]:
    where = f"{chunk.source}, column {shown(profile.name)}"
    if profile.missing:
        rows = ", ".join(map(str, profile.missing_rows)) + (", ..." if profile.missing > 10 else "")
        raise DataError(f"{where}: the target is missing in {profile.missing} rows: {rows}; remove them")
    way = profile.way(chunk)
    labels = sorted(profile.counts or ())
    values = read(labels, way) if WAYS[way] == "number" else None
    if values is not None:
        labels = list(dict.fromkeys(_labels(np.unique(values))))
    if task is None:
        few = 0 < len(labels) <= min(MOST_NUMBERED_CLASSES, profile.present / 2)
        classes = WAYS[way] in ("category", "boolean") if values is None else few and not (values % 1).any()
        task = "classification" if classes else "regression"
    if task == "classification":
        if not 1 < len(labels) < max(profile.present, 3):
            raise DataError(f"{where}: 2 to {profile.most} classes were needed, not each of them seen only once")
        return Column(profile.name, "text" if values is None else way, categories=tuple(labels)), task
    if values is None:
        raise profile.errors["text"]
    column = profile.column(way)
    if column.low == column.high:
        raise DataError(f"{where}: all targets are the same, so there is nothing to learn")
    return (column if task == "regression" else replace(column, mean=0.0, scale=1.0)), task


def _labels(values: Floats) -> list[str]:
    return [f"{value:.15g}" for value in values + 0.0]  # 1, 1.0 and 01 are the same class, and so are 0 and -0
