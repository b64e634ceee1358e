"""What the cells of a table can mean: numbers, truths, dates, or nothing, each in the ways that people write them.

In which of them a column is written is found out in `find_schema.py`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# A category called None loses nothing: what is missing is a category of its own.
MISSING = frozenset(["", "na", "n/a", "n.a.", "nan", "nat", "null", "none", "?", "-", "--", "#n/a", "<na>", "\\n"])
LARGEST = 1e100  # squares of numbers have to be finite
_END = r"(?:[eE][+-]?[0-9]+)?|[+-]?[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
_NUMBERS = {
    "1.5": re.compile(rf"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+){_END}"),
    "1,5": re.compile(rf"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+){_END}"),
    "1,000.5": re.compile(rf"[+-]?(?:[1-9][0-9]{{0,2}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]*)?{_END}"),
    "1.000,5": re.compile(rf"[+-]?(?:[1-9][0-9]{{0,2}}(?:\.[0-9]{{3}})+|[0-9]+)(?:,[0-9]*)?{_END}"),
}
_TIME = r"(?P<time>[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
_YEAR, _MONTH, _DAY = r"(?P<year>[0-9]{4})", r"(?P<month>[0-9]{1,2})", r"(?P<day>[0-9]{1,2})"
_DATES = {
    "year-month-day": re.compile(rf"{_YEAR}(?P<sign>[-/]){_MONTH}(?P=sign){_DAY}{_TIME}"),
    "day.month.year": re.compile(rf"{_DAY}\.{_MONTH}\.{_YEAR}{_TIME}"),
    "day/month/year": re.compile(rf"{_DAY}(?P<sign>[-/]){_MONTH}(?P=sign){_YEAR}{_TIME}"),
    "month/day/year": re.compile(rf"{_MONTH}(?P<sign>[-/]){_DAY}(?P=sign){_YEAR}{_TIME}"),
}
_WORDS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0}
WAYS = {**dict.fromkeys(_NUMBERS, "number"), "yes": "boolean", **dict.fromkeys(_DATES, "date"), "text": "category"}
"""Each way to write cells, and the kind of column that it makes; the first that fits is taken."""


def read(cells: list[str], way: str) -> Floats | None:
    """Cells as numbers, days since 1970, or 0 and 1; None if one of them cannot be read that way."""
    if way in _NUMBERS:
        if not all(map(_NUMBERS[way].fullmatch, cells)):
            return None
        if way == "1,000.5":
            cells = [cell.replace(",", "") for cell in cells]
        elif way != "1.5":
            cells = [cell.replace(".", "").replace(",", ".") for cell in cells]
        return np.array([float(cell) for cell in cells])
    values = []
    for cell in cells:
        value = _days(_DATES[way].fullmatch(cell)) if way in _DATES else _WORDS.get(cell.lower())
        if value is None:
            return None
        values.append(value)
    return np.array(values, dtype=np.float64)


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
    return any(pattern.fullmatch(cell) for pattern in _NUMBERS.values())
