"""What the cells of a table can mean: numbers, truths, dates, or nothing, each in the ways that people write them.

In which of them a column is written is found out in `find_schema.py`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# A category called None loses nothing: what is missing is a category of its own.
MISSING = frozenset(["", "na", "n/a", "n.a.", "nan", "nat", "null", "none", "?", "-", "--", "#n/a", "<na>", "\\n"])
LARGEST = 1e100  # squares of numbers have to be finite
_END = r"(?:[eE][+-]?[0-9]+)?|[+-]?[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
_TIME = r"(?P<time>[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
_YEAR, _MONTH, _DAY = r"(?P<year>[0-9]{4})", r"(?P<month>[0-9]{1,2})", r"(?P<day>[0-9]{1,2})"
_TRUTHS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0}


class CellFormat(NamedTuple):
    """One way to write cells."""

    name: str
    """An example or the parts in their order, as messages show it."""
    kind: str
    """The kind of column that it makes: number, boolean, date or category."""
    pattern: re.Pattern[str] | None = None
    decimal: str = ""
    """The sign before the decimals of a number."""
    thousands: str = ""
    """The sign between the thousands of a number."""


def _plain_number(name: str, decimal: str) -> CellFormat:
    sign = re.escape(decimal)
    return CellFormat(name, "number", re.compile(rf"[+-]?(?:[0-9]+{sign}?[0-9]*|{sign}[0-9]+){_END}"), decimal)


def _grouped_number(name: str, decimal: str, thousands: str) -> CellFormat:
    groups = rf"[1-9][0-9]{{0,2}}(?:{re.escape(thousands)}[0-9]{{3}})+|[0-9]+"
    pattern = re.compile(rf"[+-]?(?:{groups})(?:{re.escape(decimal)}[0-9]*)?{_END}")
    return CellFormat(name, "number", pattern, decimal, thousands)


def _date(name: str, pattern: str) -> CellFormat:
    return CellFormat(name, "date", re.compile(pattern + _TIME))


_ALL = (
    _plain_number("1.5", decimal="."),
    _plain_number("1,5", decimal=","),
    _grouped_number("1,000.5", decimal=".", thousands=","),
    _grouped_number("1.000,5", decimal=",", thousands="."),
    CellFormat("yes", "boolean"),
    _date("year-month-day", rf"{_YEAR}(?P<sign>[-/]){_MONTH}(?P=sign){_DAY}"),
    _date("day.month.year", rf"{_DAY}\.{_MONTH}\.{_YEAR}"),
    _date("day/month/year", rf"{_DAY}(?P<sign>[-/]){_MONTH}(?P=sign){_YEAR}"),
    _date("month/day/year", rf"{_MONTH}(?P<sign>[-/]){_DAY}(?P=sign){_YEAR}"),
    CellFormat("text", "category"),
)
FORMATS = {one.name: one for one in _ALL}
"""All ways to write cells by name; the first that fits a column is taken."""


def read(cells: list[str], way: str) -> Floats | None:
    """Cells as numbers, days since 1970, or 0 and 1; None if one of them is not written that way."""
    format = FORMATS[way]
    if format.kind == "number":
        return _numbers(cells, format)
    values = []
    for cell in cells:
        value = _TRUTHS.get(cell.lower()) if format.pattern is None else _days(format.pattern.fullmatch(cell))
        if value is None:
            return None
        values.append(value)
    return np.array(values, dtype=np.float64)


def _numbers(cells: list[str], format: CellFormat) -> Floats | None:
    assert format.pattern is not None
    if not all(map(format.pattern.fullmatch, cells)):
        return None
    if format.thousands:
        cells = [cell.replace(format.thousands, "") for cell in cells]
    if format.decimal != ".":
        cells = [cell.replace(format.decimal, ".") for cell in cells]
    return np.array([float(cell) for cell in cells])


def _days(match: re.Match[str] | None) -> float | None:
    """Days since 1970, the time of day as a fraction; a time with its zone is taken to UTC."""
    if match is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{match['year']}-{match['month']:0>2}-{match['day']:0>2}{match['time'] or ''}")
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)


def is_number(cell: str) -> bool:
    """Whether a cell is a number, in whatever way it is written."""
    return any(one.pattern.fullmatch(cell) for one in _ALL if one.kind == "number" and one.pattern)
