"""What the columns of a table mean, found in one pass over its rows.

A column is read as numbers, booleans or dates if each of its cells can be; otherwise its texts are categories. Where
cells can be read in several ways that differ, such as 1,234 or 03/04/2024, the table is refused instead of guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bayesemble.core.errors import DataError, SettingError
from bayesemble.data.cells import FORMATS, LARGEST, Floats, is_number, read
from bayesemble.data.schema import TASKS, Column, Schema, as_labels
from bayesemble.data.table_files import Chunk, listed, shown

MOST_CATEGORIES = 1000
LONGEST_CATEGORY = 200
MOST_COUNTED_TEXTS = 5_000_000  # over all columns, so that memory is bounded for wide tables too
MOST_NUMBERED_CLASSES = 20
SHARE_OF_MISTAKES = 0.1  # up to it, texts among numbers are not taken for categories


@dataclass
class _Moments:
    """Mean and spread of numbers that come in parts (Chan, Golub and LeVeque, 1979)."""

    count: float = 0
    """How many there are, or the sum of their weights."""
    mean: float = 0.0
    squares: float = 0.0
    low: float = float("inf")
    high: float = -float("inf")

    def add(self, values: Floats, weights: Floats) -> None:
        if not len(values):
            return
        added, mean = float(weights.sum()), float(np.average(values, weights=weights))
        total, shift = self.count + added, mean - self.mean
        self.squares += float((weights * np.square(values - mean)).sum()) + shift**2 * self.count * added / total
        self.mean, self.count = self.mean + shift * added / total, total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))


class _Profile:
    """What the rows so far say about a column."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.ways = {way: _Moments() for way in FORMATS if way != "text"}
        self.counts: Counter[str] | None = Counter()  # None when there are too many
        self.present = self.missing = self.texts = 0
        self.missing_rows: list[int] = []
        self.errors: dict[str, DataError] = {}  # the first of each kind, raised if it turns out to be one

    def add(self, chunk: Chunk, weights: Floats) -> None:
        cells, gone = chunk.cells(self.name)
        indices = np.flatnonzero(~gone).tolist()
        present = [cells[i] for i in indices] if gone.any() else cells
        self.present, self.missing = self.present + len(present), self.missing + len(cells) - len(present)
        self.missing_rows = [*self.missing_rows, *(chunk.rows[i] for i in np.flatnonzero(gone)[:10])][:10]
        if self.counts is not None:
            self.counts.update(present)
            if len(self.counts) > self.most or max(map(len, present), default=0) > LONGEST_CATEGORY:
                self.counts = None
        for way in list(self.ways):
            plain = self._without_thousands(way)
            if plain is not None:  # then nothing separates thousands so far, and the values are the same
                self.ways[way] = replace(plain)
            else:
                self._try(way, chunk, present, indices, weights[~gone])
        texts = [] if "1.5" in self.ways else [i for i in indices if not is_number(cells[i])]
        self.texts += len(texts)
        for i in texts[:1]:
            self.errors.setdefault("text", chunk.error(i, self.name, f"a number was needed, got {shown(cells[i])}"))

    def _without_thousands(self, way: str) -> _Moments | None:
        """What was found with the same decimal sign and no thousands, if the cells can be read that way."""
        if not FORMATS[way].thousands:
            return None
        decimal = FORMATS[way].decimal
        plain = (name for name in self.ways if FORMATS[name].decimal == decimal and not FORMATS[name].thousands)
        return next((self.ways[name] for name in plain), None)

    def _try(self, way: str, chunk: Chunk, present: list[str], indices: list[int], weights: Floats) -> None:
        values = read(present, way)
        if values is None:
            del self.ways[way]
            return
        large = np.flatnonzero(np.abs(values) > LARGEST)
        self.ways[way].add(np.delete(values, large), np.delete(weights, large))
        if len(large):
            message = f"numbers must be finite and at most {LARGEST:g}, got {shown(present[large[0]])}"
            self.errors.setdefault("large", chunk.error(indices[large[0]], self.name, message))

    @property
    def spoilt(self) -> bool:
        """Whether these seem to be numbers with mistakes among them."""
        many = self.counts is None or len(self.counts) > MOST_NUMBERED_CLASSES or not self.texts
        return not self.ways and many and self.texts <= SHARE_OF_MISTAKES * self.present

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
        way = next(iter(self.ways))
        if "large" in self.errors and FORMATS[way].kind == "number":
            raise self.errors["large"]
        point, comma = (any(FORMATS[name].decimal == sign for name in self.ways) for sign in ".,")
        whole = {"1.5", "1,5"} <= self.ways.keys()
        if point and comma and not whole and (chunk.delimiter == ";" or way != "1.5"):
            raise DataError(f"{where}: commas or points may separate thousands or decimals; write 1234 or 1234.0")
        if {"day/month/year", "month/day/year"} <= self.ways.keys():
            raise DataError(f"{where}: day and month cannot be told apart; write dates as 2024-12-31")
        return way

    def column(self, way: str) -> Column:
        if way == "text":
            texts = sorted(self.counts or ())
            if self.missing:
                texts.append("")
            return Column(self.name, way, self.missing > 0, categories=tuple(texts))
        moments = self.ways[way]
        scale = (moments.squares / moments.count) ** 0.5 if moments.high > moments.low else 0.0
        return Column(self.name, way, self.missing > 0, moments.mean, scale or 1.0, moments.low, moments.high)


def find_schema(chunks: Iterable[Chunk], target: str, task: str | None = None, weight: str | None = None) -> Schema:
    """Find out in one pass what the columns mean; memory does not grow with the number of rows.

    A column may hold the weights of rows, all positive: it is none to predict from, and means go by it.

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
            profiles = {name: _Profile(name, min(MOST_CATEGORIES, MOST_COUNTED_TEXTS // len(names))) for name in names}
        if names != list(profiles):
            raise DataError(f"{chunk.source} changes its columns at row {chunk.rows[0]}")
        weights = np.ones(len(chunk.rows)) if weight is None else chunk.weights(weight)
        for profile in profiles.values():
            profile.add(chunk, weights)
    if not profiles:
        raise DataError("the table has no rows")
    others = {name: profile for name, profile in profiles.items() if name != weight}
    schema = _make_schema(others, target, task, chunk)
    return schema if weight is None else replace(schema, notes=(*schema.notes, f"rows count by {shown(weight)}"))


def _make_schema(profiles: dict[str, _Profile], target: str, task: str | None, chunk: Chunk) -> Schema:
    goal, chosen = _find_target(profiles[target], task, chunk)
    notes = list(chunk.notes)
    if task is None:
        notes.append(f"from the cells of {shown(target)}, the task is {chosen}")
    columns = []
    for name, profile in profiles.items():
        if name != target and (why := profile.useless()):
            notes.append(f"column {shown(name)} is not used: {why}")
        elif name != target:
            columns.append(profile.column(profile.way(chunk)))
    unusual = [column for column in (*columns, goal) if column.kind == "number" and column.way != "1.5"]
    notes += [f"column {shown(column.name)} is read as numbers written like {column.way}" for column in unusual]
    return Schema(tuple(columns), goal, chosen, profiles[target].present, tuple(notes))


def _find_target(profile: _Profile, task: str | None, chunk: Chunk) -> tuple[Column, str]:
    where = f"{chunk.source}, column {shown(profile.name)}"
    if profile.missing:
        rows = ", ".join(map(str, profile.missing_rows)) + (", ..." if profile.missing > 10 else "")
        raise DataError(f"{where}: the target is missing in {profile.missing} rows: {rows}; remove them")
    way = profile.way(chunk)
    labels = sorted(profile.counts or ())
    values = read(labels, way) if FORMATS[way].kind == "number" else None
    if values is not None:
        labels = list(dict.fromkeys(as_labels(np.unique(values))))
    if task is None:
        few = 0 < len(labels) <= min(MOST_NUMBERED_CLASSES, profile.present / 2)
        classes = FORMATS[way].kind in ("category", "boolean") if values is None else few and not (values % 1).any()
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
