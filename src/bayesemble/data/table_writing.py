"""Tables written to files in parts of bounded size: CSV, and Parquet with the extra `parquet`."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, cast

from bayesemble.core.errors import DataError
from bayesemble.core.files import replacing
from bayesemble.data.cells import is_number
from bayesemble.data.table_files import as_text, check_header, find_arrow, is_parquet

_STARTS_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def write_rows(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, compressed if the name ends in .gz, or as Parquet if it ends in .parquet.

    The file appears under its name when it is complete; if anything goes wrong, what was there before stays. In CSV, an
    apostrophe stands before texts that a spreadsheet would run as formulas.
    """
    target = Path(path)
    names = check_header(target, header)
    write = _write_parquet if is_parquet(target) else _write_csv
    try:
        with replacing(target, DataError) as temporary, temporary.open("wb") as file:
            write(target, file, names, _checked(target, names, rows))
    except UnicodeError as error:
        raise DataError(f"{target} cannot be written: {error}") from error


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
        csv.writer(text, quoting=csv.QUOTE_ALL).writerow(map(_inert, names))
        writer = csv.writer(text)
        for number, row in enumerate(rows, 2):
            where = f"{path}, row {number}"
            cells = ((value, as_text(value, where)) for value in row)
            writer.writerow([_inert(cell) if isinstance(value, str) else cell for value, cell in cells])


def _inert(text: str) -> str:
    """A text that no spreadsheet runs as a formula: an apostrophe stands before it, unless it is a number."""
    return f"'{text}" if text.startswith(_STARTS_OF_FORMULAS) and not is_number(text) else text


def _write_parquet(path: Path, file: IO[bytes], names: list[str], rows: Iterator[Sequence[object]]) -> None:
    arrow, parquet = find_arrow()
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
