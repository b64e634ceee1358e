"""Tables in files, read in parts of bounded size: CSV, and Parquet with the extra `parquet`.

Whatever the file, a cell is a text here, as a CSV file would hold it; `cells.py` knows what they mean.
Rows are numbered as in a spreadsheet: the column names are row 1, and a cell with line breaks is still in one row.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from itertools import compress, islice
from pathlib import Path
from typing import IO, Any, TextIO, cast

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError
from bayesemble.core.lazy import import_extra
from bayesemble.data.cells import FORMATS, LARGEST, MISSING, Floats, read

MOST_COLUMNS = 100_000
MOST_CELLS_OF_A_CHUNK = 2_000_000  # a wide table comes in fewer rows at once
LONGEST_CELL = 10_000_000
LONGEST_LINE = 200_000_000
HEAVIEST = 1e30  # sums of weights have to be finite in single precision
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
        present = np.flatnonzero(~gone).tolist()
        values, numbers = np.zeros(len(cells)), read([cells[i] for i in present], way)
        if numbers is None or (np.abs(numbers) > LARGEST).any():
            first = next(i for i in present if (one := read([cells[i]], way)) is None or abs(one[0]) > LARGEST)
            needed = f"a {FORMATS[way].kind} like {way!r}, of at most {LARGEST:g}, was needed"
            raise self.error(first, column, f"{needed}, got {shown(cells[first])}")
        values[present] = numbers
        return values

    def weights(self, column: str) -> Floats:
        """What each row counts for, by the numbers of a column; a row of weight 0 is as if it were not there."""
        if column not in self.columns:
            names = listed(list(self.columns))
            raise DataError(f"{self.source} has no column {shown(column)} with the weights of rows; it has {names}")
        cells, gone = self.cells(column)
        if gone.any():
            raise self.error(int(gone.argmax()), column, "the weight is missing; write 0 to leave a row out")
        values = self.values(column, "1.5")
        if (wrong := (values < 0) | (values > HEAVIEST)).any():
            first = int(wrong.argmax())
            raise self.error(first, column, f"a weight is a number from 0 to {HEAVIEST:g}, got {shown(cells[first])}")
        return values

    def take(self, mask: npt.NDArray[np.bool_]) -> Chunk:
        """Those rows for which the mask is true."""
        columns = {name: list(compress(cells, mask)) for name, cells in self.columns.items()}
        return replace(self, columns=columns, rows=list(compress(self.rows, mask)))

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


def read_rows(path: str | Path, rows_at_once: int = 10_000, nameless: bool = False) -> Iterator[Chunk]:
    """Yield the rows of a CSV or Parquet file in parts.

    A CSV file may be compressed with gzip. It is UTF-8, UTF-16 with its mark, or else read as Latin-1, which a note of
    the chunks says. Its delimiter is the comma, semicolon or tab that is most frequent in the first row.

    Args:
        rows_at_once: Rows of a part, at most.
        nameless: Whether one column may lack a name, as the numbers of rows do that pandas writes.
    """
    file_path = Path(path)
    if rows_at_once < 1:
        raise DataError(f"rows_at_once must be at least 1, got {rows_at_once}")
    try:
        if not file_path.is_file():
            kind = "a folder" if file_path.is_dir() else "not a file"
            raise DataError(f"{file_path} is {kind}; a CSV or Parquet file was needed")
        with file_path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{file_path} cannot be read: {error}") from error
    if not start:
        raise DataError(f"{file_path} is empty; a row with column names was needed")
    if start == b"PAR1" or is_parquet(file_path):
        return _read_parquet(file_path, rows_at_once, nameless)
    if start == b"PK\x03\x04":
        raise DataError(f"{file_path} is a spreadsheet or ZIP archive; save the table as CSV")
    return _read_csv(file_path, rows_at_once, nameless, compressed=start.startswith(b"\x1f\x8b"))


def is_parquet(path: Path) -> bool:
    """Whether the name ends in .parquet or .pq."""
    return path.suffix.lower() in (".parquet", ".pq")


def has_table_name(path: Path) -> bool:
    """Whether the name is one that tables usually have."""
    ending = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    return is_parquet(path) or ending.lower() in (".csv", ".tsv", ".txt")


def check_header(path: Path, header: Sequence[str], nameless: bool = False) -> list[str]:
    """The names of the columns without spaces around them; refused unless each has one of its own, but perhaps one."""
    names = [name.strip() for name in header]
    if not any(names):
        raise DataError(f"{path} has no column names in its first row")
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(names)} columns; at most {MOST_COLUMNS} can be used")
    without = [number for number, name in enumerate(names, 1) if not name]
    if len(without) > nameless:
        raise DataError(f"{path}, row 1: each column needs a name; those without are number {listed(without)}")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}, row 1: each column needs a name of its own; repeated are {listed(repeated)}")
    return names


# --- CSV ---


def _read_csv(path: Path, rows_at_once: int, nameless: bool, compressed: bool) -> Iterator[Chunk]:
    encoding, notes = _find_encoding(path, compressed)
    with _open(path, compressed) as binary, io.TextIOWrapper(binary, encoding, newline="") as file:
        delimiter = _find_delimiter(path, file)
        records = _records(path, csv.reader(_lines(file), delimiter=delimiter, strict=True))
        ((_, names),) = _next_part(records, 1) or [(1, [])]
        header = check_header(path, names, nameless)
        most, empty = min(rows_at_once, MOST_CELLS_OF_A_CHUNK // len(header)), True
        while part := _next_part(records, most):
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


class _LongCells:
    """Cells longer than the module `csv` allows: it has one limit for all, so it is as it was between two parts."""

    def __init__(self) -> None:
        self.turn, self.inside, self.before = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.turn:
            if self.inside == 0:
                self.before = csv.field_size_limit()
                csv.field_size_limit(max(self.before, LONGEST_CELL))
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.turn:
            self.inside -= 1
            if self.inside == 0:
                csv.field_size_limit(self.before)


_long_cells = _LongCells()


def _next_part(records: Iterator[tuple[int, list[str]]], most: int) -> list[tuple[int, list[str]]]:
    with _long_cells:
        return list(islice(records, most))


# --- Parquet ---


def find_arrow() -> tuple[Any, Any]:
    """The package pyarrow and its part for Parquet."""
    words = "Parquet files need pyarrow", "'bayesemble[parquet]', or use CSV files"
    return import_extra("pyarrow", *words), import_extra("pyarrow.parquet", *words)


def _read_parquet(path: Path, rows_at_once: int, nameless: bool) -> Iterator[Chunk]:
    arrow, parquet = find_arrow()
    row = 2
    try:
        with parquet.ParquetFile(path) as file:
            header = check_header(path, file.schema_arrow.names, nameless)
            for batch in file.iter_batches(batch_size=min(rows_at_once, MOST_CELLS_OF_A_CHUNK // len(header))):
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
    return [as_text(cell, where) for cell in column.to_pylist()]


def as_text(value: object, where: str) -> str:
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
