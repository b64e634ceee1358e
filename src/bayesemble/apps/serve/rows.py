"""Rows as clients send them, checked cell by cell before anything is computed.

A row is an object with a value for each column: a number, a text, a truth, or null where it is missing. A value becomes
the text that a CSV file would hold in that column, and then goes the way of every row of a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesemble.core.errors import DataError
from bayesemble.data.cells import FORMATS, LARGEST, MISSING, read
from bayesemble.data.schema import Column, Schema
from bayesemble.data.table_files import Chunk, listed, shown

_LONGEST_TEXT = 10_000
_KINDS = {bool: "a truth", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}


class RowError(DataError):
    """A request that cannot be answered: which field, and which row of it (from 0)."""

    def __init__(self, message: str, field: str | None = None, row: int | None = None) -> None:
        place = [f"row {row}"] if row is not None else []
        place += [f"field {shown(field)}"] if field is not None else []
        super().__init__(": ".join([*([", ".join(place)] if place else []), message]))
        self.field, self.row = field, row


def chunk_of_rows(rows: Any, schema: Schema, max_rows: int) -> Chunk:
    """Rows as objects, in the form that files are read in; a cell that cannot be understood is refused by name.

    Fields that the run does not know are not used, as columns of a file.
    """
    if not isinstance(rows, list) or not rows:
        raise RowError(f"a list of at least one row was needed, got {_came(rows)}", "rows")
    if len(rows) > max_rows:
        raise RowError(f"at most {max_rows:,} rows are taken at once, got {len(rows):,}; send them in parts", "rows")
    columns: dict[str, list[str]] = {column.name: [] for column in schema.columns}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RowError(f"an object with a value for each column was needed, got {_came(row)}", row=number)
        for column in schema.columns:
            if column.name not in row:
                raise RowError("is lacking; where the value is missing, say null", column.name, number)
            columns[column.name].append(cell_text(row[column.name], column, number))
    return Chunk("the request", columns, range(len(rows)))


def chunk_of_columns(values: Mapping[str, Sequence[Any]], schema: Schema, max_rows: int) -> Chunk:
    """The same of columns, all as long as the first."""
    if absent := [column.name for column in schema.columns if column.name not in values]:
        raise RowError(f"inputs are lacking: {listed(absent)}", absent[0])
    length = len(values[schema.columns[0].name])
    if not 0 < length <= max_rows:
        raise RowError(f"from 1 to {max_rows:,} rows are taken at once, got {length:,}", schema.columns[0].name)
    for column in schema.columns:
        if len(values[column.name]) != length:
            raise RowError(f"{length:,} rows were needed, got {len(values[column.name]):,}", column.name)
    texts = {
        column.name: [cell_text(value, column, number) for number, value in enumerate(values[column.name])]
        for column in schema.columns
    }
    return Chunk("the request", texts, range(length))


def cell_text(value: Any, column: Column, row: int) -> str:
    """A value as a CSV file would hold it in this column, or why it cannot be one."""
    if value is None:
        return ""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        raise RowError(f"a finite number was needed, got {value}; where it is missing, say null", column.name, row)
    if column.kind == "number" and kind in (float, int):
        if not -LARGEST <= value <= LARGEST:
            raise RowError(f"a number of at most {LARGEST:g} was needed", column.name, row)
        text = repr(float(value))
        return text if FORMATS[column.way].decimal == "." else text.replace(".", FORMATS[column.way].decimal)
    if kind is str:
        return _checked_text(value, column, row)
    if column.kind == "category" and kind in (int, float, bool):
        return str(value).lower() if kind is bool else str(value)
    if column.kind == "boolean" and kind is bool:
        return "true" if value else "false"
    raise RowError(f"a {column.kind} like {column.way!r} was needed, got {_came(value)}", column.name, row)


def _checked_text(value: str, column: Column, row: int) -> str:
    if len(value) > _LONGEST_TEXT or "\0" in value or (not value.isascii() and _is_broken(value)):
        raise RowError(f"a text of at most {_LONGEST_TEXT:,} proper characters was needed", column.name, row)
    cell = value.strip()
    if column.kind != "category" and cell.lower() not in MISSING:
        numbers = read([cell], column.way)
        if numbers is None or not abs(float(numbers[0])) <= LARGEST:
            limit = f", of at most {LARGEST:g}," if column.kind == "number" else ""
            raise RowError(
                f"a {column.kind} like {column.way!r}{limit} was needed, got {shown(cell)}", column.name, row
            )
    return value


def _is_broken(text: str) -> bool:
    """Whether it holds half of a pair of surrogates, which JSON can write and no file can hold."""
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _came(value: Any) -> str:
    if value == []:
        return "an empty list"
    return "null" if value is None else _KINDS.get(type(value), "something else")
