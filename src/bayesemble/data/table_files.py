"""Tables in files, read and written in parts of bounded size: CSV, and Parquet with the extra `parquet`.

Whatever the file, a cell is a text here, as a CSV file would hold it. `read` knows the ways to write numbers and dates;
in which of them a column is written is found out in `tables.py`.
Rows are numbered as in a spreadsheet: the column names are row 1, and a cell with line breaks is still in one row.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO, cast

import numpy as np
import numpy.typing as npt

from bayesemble.errors import DataError, MissingExtraError

MOST_COLUMNS = 100_000
MOST_CELLS = 2_000_000  # in a chunk, so a wide table comes in fewer rows at once
LONGEST_CELL = 10_000_000
LONGEST_LINE = 200_000_000
Floats = npt.NDArray[np.float64]
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
# The mark of UTF-32 begins like that of UTF-16, so it is looked for first.
_MARKS = [(codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")]
_MARKS += [(codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")]
_UNREADABLE = (csv.Error, UnicodeError, EOFError, OSError, zlib.error)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a table: for each column, by name, one text per row; and how each row is numbered in the file."""

    source: str
    columns: dict[str, list[str]]
    rows: Sequence[int]
    delimiter: str | None = None
    notes: tuple[str, ...] = ()
    """What a person should know about how the file was read."""

    def cells(self, column: str) -> tuple[list[str], npt.NDArray[np.bool_]]:
        """The cells of a column without spaces around them, missing ones as "", and which those are."""
        cells = [cell.strip() for cell in self.columns[column]]
        gone = [cell.lower() in MISSING for cell in cells]
        return ["" if missing else cell for cell, missing in zip(cells, gone, strict=True)], np.array(gone, dtype=bool)

    def values(self, column: str, way: str) -> Floats:
        """The cells of a column as `read` gives them, 0 for missing ones; an error names the first that is not so."""
        cells, gone = self.cells(column)
        places = np.flatnonzero(~gone).tolist()
        values, found = np.zeros(len(cells)), read([cells[i] for i in places], way)
        if found is None or (np.abs(found) > LARGEST).any():
            first = next(i for i in places if (one := read([cells[i]], way)) is None or abs(one[0]) > LARGEST)
            needed = f"a {WAYS[way]} like {way!r}, of at most {LARGEST:g}, was needed"
            raise self.error(first, column, f"{needed}, got {shown(cells[first])}")
        values[places] = found
        return values

    def error(self, index: int, column: str, message: str) -> DataError:
        """An error about one cell of these rows."""
        return DataError(f"{self.source}, row {self.rows[index]}, column {shown(column)}: {message}")


def shown(text: str) -> str:
    """A text as messages show it: in quotes, and not too long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def listed(items: Sequence[object], most: int = 10) -> str:
    """The first few of many items, for messages."""
    words = [shown(item) if isinstance(item, str) else str(item) for item in items[:most]]
    return ", ".join(words) + (f" and {len(items) - most} more" if len(items) > most else "")


def read_rows(path: str | Path, rows_at_once: int = 10_000) -> Iterator[Chunk]:
    """Yield the rows of a CSV or Parquet file in parts.

    A CSV file may be compressed with gzip. It is UTF-8, UTF-16 with its mark, or else read as Latin-1, which a note of
    the chunks says. Its delimiter is the comma, semicolon or tab that is most frequent in the first row.
    """
    place = Path(path)
    if rows_at_once < 1:
        raise DataError(f"rows_at_once must be at least 1, got {rows_at_once}")
    try:
        if not place.is_file():
            kind = "a folder" if place.is_dir() else "not a file"
            raise DataError(f"{place} is {kind}; a CSV or Parquet file was needed")
        with place.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error}") from error
    if not start:
        raise DataError(f"{place} is empty; a row with column names was needed")
    if start == b"PAR1" or _is_parquet(place):
        return _read_parquet(place, rows_at_once)
    if start == b"PK\x03\x04":
        raise DataError(f"{place} is a spreadsheet or ZIP archive; save the table as CSV")
    return _read_csv(place, rows_at_once, compressed=start.startswith(b"\x1f\x8b"))


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _check_header(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not any(names):
        raise DataError(f"{path} has no column names in its first row")
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(names)} columns; at most {MOST_COLUMNS} can be used")
    if nameless := [number for number, name in enumerate(names, 1) if not name]:
        raise DataError(f"{path}, row 1: each column needs a name; those without are number {listed(nameless)}")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}, row 1: each column needs a name of its own; repeated are {listed(repeated)}")
    return names


# --- cells ---

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


# --- CSV ---


def _read_csv(path: Path, rows_at_once: int, compressed: bool) -> Iterator[Chunk]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    encoding, notes = _find_encoding(path, compressed)
    with _open(path, compressed) as binary, io.TextIOWrapper(binary, encoding, newline="") as file:
        delimiter = _find_delimiter(path, file)
        records = _records(path, csv.reader(_lines(file), delimiter=delimiter, strict=True))
        header = _check_header(path, next(records, (1, []))[1])
        most, empty = min(rows_at_once, MOST_CELLS // len(header)), True
        while part := list(islice(records, most)):
            columns = zip(*(cells for _, cells in part), strict=True)
            named = {name: list(column) for name, column in zip(header, columns, strict=True)}
            yield Chunk(str(path), named, [row for row, _ in part], delimiter, notes)
            empty = False
    if empty:
        raise DataError(f"{path} has column names but no rows")


def _open(path: Path, compressed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if compressed else path.open("rb")


def _find_encoding(path: Path, compressed: bool) -> tuple[str, tuple[str, ...]]:
    """Decode the whole file once: a letter that is not UTF-8 may come after a million rows."""
    try:
        with _open(path, compressed) as file:
            start = file.read(4)
            for mark, encoding in _MARKS:
                if start.startswith(mark):
                    return encoding, ()
            decoder, block = codecs.getincrementaldecoder("utf-8")(), start
            while block:
                decoder.decode(block)
                block = file.read(1 << 20)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "latin-1", (f"{path} is not UTF-8; it is read as Latin-1, so check letters with accents",)
    except _UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return "utf-8", ()


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE):
        if "\0" in line:
            raise UnicodeError("it holds a NUL character; save the table as plain text in UTF-8")
        if len(line) == LONGEST_LINE:
            raise UnicodeError(f"its line has {LONGEST_LINE} characters or more")
        yield line


def _find_delimiter(path: Path, file: TextIO) -> str:
    """The sign that occurs most often outside quotes in row 1; a single column has none, and the comma will do."""
    try:
        start = file.read(1 << 20)
        file.seek(0)
    except _UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    # Line breaks inside quotes are gone before the first row is cut off.
    outside = "".join(start.split('"')[::2]).replace("\r", "\n").partition("\n")[0]
    counts = {sign: outside.count(sign) for sign in _DELIMITERS}
    best = max(counts, key=lambda sign: counts[sign])
    equal = [name for sign, name in _DELIMITERS.items() if counts[sign] == counts[best] > 0]
    if len(equal) > 1:
        raise DataError(
            f"{path}, row 1: {' or '.join(equal)} may separate the names; put names that hold one in quotes"
        )
    return best


def _records(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """The rows with their numbers, all as long as the first; empty lines are left out, but counted."""
    row, width = 0, 0
    while True:
        row += 1
        try:
            record = next(reader, None)
        except _UNREADABLE as error:
            hint = "; check its quotes, and that each is closed" if isinstance(error, csv.Error) else ""
            raise DataError(f"{path}, row {row} cannot be read: {error}{hint}") from error
        if record is None:
            return
        width = width or len(record)
        if len(record) == width:
            yield row, record
        elif len(record) > 1 or "".join(record).strip():
            advice = "put cells that hold the delimiter in quotes"
            raise DataError(f"{path}, row {row}: {width} cells were needed, got {len(record)}; {advice}")


# --- Parquet ---


def _arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(
            "Parquet files need pyarrow, which is not here: pip install 'bayesemble[parquet]', or use CSV files"
        ) from error


def _read_parquet(path: Path, rows_at_once: int) -> Iterator[Chunk]:
    arrow, parquet = _arrow()
    row = 2
    try:
        with parquet.ParquetFile(path) as file:
            header = _check_header(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=min(rows_at_once, MOST_CELLS // len(header))):
                columns = {name: _texts(path, arrow, name, batch.column(i)) for i, name in enumerate(header)}
                yield Chunk(str(path), columns, range(row, row + batch.num_rows))
                row += batch.num_rows
    except DataError:
        raise
    except (arrow.lib.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise DataError(f"{path} cannot be read as Parquet after row {row - 1}: {error}") from error
    if row == 2:
        raise DataError(f"{path} has column names but no rows")


def _texts(path: Path, arrow: Any, name: str, column: Any) -> list[str]:
    if arrow.types.is_timestamp(column.type):  # Python's times have no nanoseconds
        column = column.cast(arrow.timestamp("us", column.type.tz), safe=False)
    where = f"{path}, column {shown(name)}"
    return [_text(cell, where) for cell in column.to_pylist()]


def _text(value: object, where: str) -> str:
    """A value as a CSV file holds it."""
    if isinstance(value, str):
        if "\0" in value:
            raise DataError(f"{where}: a cell holds a NUL character; remove it")
        return value
    if value is None or isinstance(value, bool | np.bool_):
        return "" if value is None else str(bool(value)).lower()
    if isinstance(value, int | float | np.integer | np.floating | Decimal):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise DataError(f"{where}: cells must be numbers, texts or dates, got {type(value).__name__}")


# --- writing ---


def write_rows(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, compressed if the name ends in .gz, or as Parquet if it ends in .parquet.

    The file appears under its name when it is complete; if anything goes wrong, what was there before stays.
    """
    place = Path(path)
    names = _check_header(place, header)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            (_write_parquet if _is_parquet(place) else _write_csv)(place, file, names, _checked(place, names, rows))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except (OSError, UnicodeError) as error:
        raise DataError(f"{place} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _checked(path: Path, names: list[str], rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise DataError(f"{path}, row {number}: {len(names)} cells were needed, got {len(row)}")
        yield row


def _write_csv(path: Path, file: IO[bytes], names: list[str], rows: Iterator[Sequence[object]]) -> None:
    with ExitStack() as stack:
        if path.suffix.lower() == ".gz":
            file = stack.enter_context(cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
        text = io.TextIOWrapper(file, "utf-8", newline="")
        stack.callback(text.detach)
        # All names in quotes: signs in them are never taken for the delimiter.
        csv.writer(text, quoting=csv.QUOTE_ALL).writerow(names)
        writer = csv.writer(text)
        for number, row in enumerate(rows, 2):
            where = f"{path}, row {number}"
            writer.writerow([_text(value, where) for value in row])


def _write_parquet(path: Path, file: IO[bytes], names: list[str], rows: Iterator[Sequence[object]]) -> None:
    arrow, parquet = _arrow()
    schema, writer = None, None
    try:
        with ExitStack() as stack:
            while (part := list(islice(rows, 10_000))) or writer is None:
                columns = [list(column) for column in zip(*part, strict=True)] or [[]] * len(names)
                table = arrow.table(dict(zip(names, columns, strict=True)), schema=schema)
                if writer is None:
                    schema = table.schema
                    writer = stack.enter_context(parquet.ParquetWriter(file, schema))
                writer.write_table(table)
    except (arrow.lib.ArrowException, OverflowError) as error:
        raise DataError(f"{path}: the cells of a Parquet column must be of one type: {error}") from error
