import csv
import datetime
import gzip
import importlib
import importlib.util
import sys
import time

import numpy as np
import pytest

from bayesemble.core.errors import DataError, MissingExtraError
from bayesemble.data import table_files
from bayesemble.data.cells import read
from bayesemble.data.table_files import read_rows
from bayesemble.data.table_writing import write_rows

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow, of the extra parquet, is not installed"
)


def made(folder, content, name="table.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def columns(path, rows_at_once=10_000):
    """The whole table, and how its rows are numbered."""
    whole, rows = {}, []
    for chunk in read_rows(path, rows_at_once):
        rows += chunk.rows
        for name, cells in chunk.columns.items():
            whole.setdefault(name, []).extend(cells)
    return whole, rows


def refused(path, *words):
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message, message


# --- encodings and delimiters ---


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
def test_letters_come_out_alike_from_every_encoding(tmp_path, encoding):
    path = made(tmp_path, "stadt,größe\nKöln,1\nÅrhus,2\n".encode(encoding))
    assert columns(path)[0] == {"stadt": ["Köln", "Århus"], "größe": ["1", "2"]}
    (chunk,) = read_rows(path)
    assert ("Latin-1" in "".join(chunk.notes)) == (encoding == "latin-1")


def test_a_letter_that_is_not_utf8_is_found_however_late_it_comes(tmp_path):
    path = made(tmp_path, b"a,b\n" + b"\xc3\xa9,1\n" * 400_000 + b"\xe9,2\n")
    first = next(iter(read_rows(path)))
    assert "Latin-1" in first.notes[0]
    assert first.columns["a"][0] == "Ã©"  # one encoding for the whole file


def test_half_a_letter_at_the_very_end_is_not_utf8_either(tmp_path):
    (chunk,) = read_rows(made(tmp_path, b"a,b\n1,x\xc3"))
    assert "Latin-1" in chunk.notes[0]
    assert chunk.columns["b"] == ["xÃ"]


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_the_delimiter_is_the_most_frequent_sign_of_the_first_row(tmp_path, sign):
    path = made(tmp_path, f"a{sign}b{sign}c\n1{sign}2{sign}3\n")
    (chunk,) = read_rows(path)
    assert chunk.columns == {"a": ["1"], "b": ["2"], "c": ["3"]}
    assert chunk.delimiter == sign


def test_signs_and_line_breaks_inside_quotes_are_no_delimiters(tmp_path):
    path = made(tmp_path, '"a,\n,,b";"c,d"\n1;2\n')
    assert columns(path)[0] == {"a,\n,,b": ["1"], "c,d": ["2"]}
    assert columns(made(tmp_path, '"a;b;c"\n1\n'))[0] == {"a;b;c": ["1"]}


def test_a_tie_between_delimiters_is_refused(tmp_path):
    refused(made(tmp_path, "price, EUR;size\n1;2\n"), "row 1", "comma or semicolon", "quotes")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end(tmp_path, end):
    assert columns(made(tmp_path, end.join(["a,b", "1,2", "3,4"])))[0] == {"a": ["1", "3"], "b": ["2", "4"]}


# --- rows ---


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 100])
def test_rows_are_numbered_as_in_a_spreadsheet(tmp_path, rows_at_once):
    path = made(tmp_path, 'a,b\n1,"x\ny"\n\n2,"say ""no"""\n3,\n\n')
    assert columns(path, rows_at_once) == ({"a": ["1", "2", "3"], "b": ["x\ny", 'say "no"', ""]}, [2, 4, 5])
    assert max(len(chunk.rows) for chunk in read_rows(path, rows_at_once)) <= rows_at_once


def test_lines_of_spaces_are_left_out_but_counted(tmp_path):
    assert columns(made(tmp_path, "a,b\n1,2\n  \n\n3,4\n"))[1] == [2, 5]
    refused(made(tmp_path, "a,b\n1,2\n x \n"), "row 3: 2 cells were needed, got 1")
    assert columns(made(tmp_path, "a\n1\n  \n2\n"))[0] == {"a": ["1", "  ", "2"]}


def test_long_texts_and_many_items_are_cut_short():
    assert table_files.shown("a" * 60) == repr("a" * 60)
    assert table_files.shown("a" * 61) == repr("a" * 57 + "...")
    assert table_files.listed(range(3), most=3) == "0, 1, 2"
    assert table_files.listed(["x", "y", "z"], most=2) == "'x', 'y' and 1 more"
    assert table_files.listed(range(11)).endswith("8, 9 and 1 more")


def test_a_compressed_file_under_any_name(tmp_path):
    content = gzip.compress(b"a;b\n1;2\n")
    for name in ("table.csv.gz", "table.csv"):
        assert columns(made(tmp_path, content, name))[0] == {"a": ["1"], "b": ["2"]}
    refused(made(tmp_path, content[:-6]), "cannot be read")
    refused(made(tmp_path, content[:12] + b"\xff\xff\xff" + content[15:]), "cannot be read")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["is empty"]),
        ("\n\n", ["no column names"]),
        ("a,b\n", ["no rows"]),
        ("a,b\n\n\n", ["no rows"]),
        ("a,b\n1,2\n3\n", ["row 3", "2 cells", "got 1"]),
        ("a,b\n1,2\n\n3,4,5\n", ["row 4", "2 cells", "got 3"]),
        ("a,b\n1,x\0y\n", ["row 2", "NUL"]),
        ("a\0,b\n1,2\n", ["row 1", "NUL"]),
        ("a,b,a,c,b\n1,2,3,4,5\n", ["row 1", "'a', 'b'"]),
        ("a, a\n1,2\n", ["'a'"]),
        ("a,,b,\n1,2,3,4\n", ["row 1", "2, 4"]),
        ('a,b\n1,2\n3,"4\n5,6\n', ["row 3", "quotes"]),
        ('a,b\n1,"x"y\n', ["row 2", "quotes"]),
        (b"PK\x03\x04rest", ["spreadsheet"]),
        ("a,b\n1,2".encode("utf-16") + b"\x00", ["cannot be read"]),
        ("a,b\n1,2\n".encode("utf-16-le"), ["NUL"]),
    ],
)
def test_what_is_wrong_is_named_with_its_row(tmp_path, content, words):
    refused(made(tmp_path, content), *words)


def test_folders_and_missing_files(tmp_path):
    refused(tmp_path, "is a folder")
    refused(tmp_path / "none.csv", "not a file")
    with pytest.raises(DataError, match="at least 1"):
        read_rows(made(tmp_path, "a\n1\n"), rows_at_once=0)


def test_a_million_columns_are_refused_at_once_and_fifty_thousand_are_read(tmp_path):
    begin = time.perf_counter()
    refused(made(tmp_path, ",".join(f"c{i}" for i in range(1_000_000)) + "\n1\n"), "1000000 columns")
    refused(made(tmp_path, "," * 1_000_000), "no column names")
    wide = made(tmp_path, ",".join(f"c{i}" for i in range(50_000)) + "\n" + ("1," * 49_999 + "1\n") * 50)
    assert [len(chunk.rows) for chunk in read_rows(wide)] == [40, 10]
    assert time.perf_counter() - begin < 10


def test_long_cells_are_read_and_endless_ones_are_not(tmp_path, monkeypatch):
    assert columns(made(tmp_path, "a,b\n" + "x" * 1_000_000 + ",1\n"))[0]["b"] == ["1"]
    refused(made(tmp_path, 'a,b\n1,"' + "x,y\n" * (table_files.LONGEST_CELL // 4 + 1)), "row 2", "limit")
    monkeypatch.setattr(table_files, "LONGEST_LINE", 100)
    refused(made(tmp_path, "a,b\n" + "x" * 200 + ",1\n"), "row 2", "100 characters")


@pytest.mark.parametrize("mask", [[True, False, True], [False] * 3, [True] * 3])
def test_some_rows_of_a_chunk_keep_their_numbers(tmp_path, mask):
    (chunk,) = read_rows(made(tmp_path, "a,b\n1,x\n\n2,y\n3,z\n"))
    taken = chunk.take(np.array(mask))
    kept = [place for place, wanted in enumerate(mask) if wanted]
    assert taken.columns == {name: [cells[place] for place in kept] for name, cells in chunk.columns.items()}
    assert taken.rows == [chunk.rows[place] for place in kept]
    assert (taken.source, taken.delimiter) == (chunk.source, chunk.delimiter)


# --- Parquet ---


@needs_pyarrow
def test_parquet_gives_the_texts_that_a_csv_would_hold(tmp_path):
    day, moment = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 18)
    header = ["number", "whole", "text", "flag", "day", "moment"]
    values = [
        [1.5, 1, "x;y", True, day, moment],
        [None, -2, "", False, None, moment],
        [1e300, None, "é", None, day, None],
    ]
    for name in ("out.parquet", "out.csv"):
        write_rows(tmp_path / name, header, values)
    assert columns(tmp_path / "out.parquet", 2) == columns(tmp_path / "out.csv", 2)
    renamed = made(tmp_path, (tmp_path / "out.parquet").read_bytes(), "data.bin")
    assert columns(renamed) == columns(tmp_path / "out.csv")


@needs_pyarrow
def test_parquet_times_dictionaries_and_what_is_no_cell(tmp_path):
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    stamps = arrow.array([1_700_000_000_123_456_789], arrow.timestamp("ns", "UTC"))
    parquet.write_table(arrow.table({"t": stamps, "c": arrow.array(["a"]).dictionary_encode()}), path)
    found, rows = columns(path)
    assert found["c"] == ["a"]
    assert rows == [2]
    assert read(found["t"], "year-month-day") == pytest.approx([1_700_000_000.123456 / 86400], abs=1e-9)
    parquet.write_table(arrow.table({"a": [1], "nested": [[1, 2]]}), path)
    refused(path, "'nested'", "list")
    parquet.write_table(arrow.table({"a": arrow.array([], arrow.int64())}), path)
    refused(path, "no rows")


@needs_pyarrow
def test_a_damaged_parquet_file_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    write_rows(path, ["a", "b"], [[i, str(i)] for i in range(100)])
    whole = path.read_bytes()
    for content in (whole[:-10], whole[: len(whole) // 2], b"a,b\n1,2\n", whole[:4] + b"\xff" * 40 + whole[44:]):
        refused(made(tmp_path, content, "t.parquet"), "Parquet")
    with pytest.raises(DataError, match="one type"):
        write_rows(path, ["a"], [[1], ["x"]])
    write_rows(path, ["a"], [])
    refused(path, "no rows")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"bayesemble\[parquet\]"):
        list(read_rows(made(tmp_path, b"PAR1", "t.parquet")))
    with pytest.raises(MissingExtraError, match=r"bayesemble\[parquet\]"):
        write_rows(tmp_path / "out.parquet", ["a"], [[1]])


def test_the_limit_of_the_csv_module_is_as_before_between_two_parts_and_after_an_error(tmp_path):
    before = csv.field_size_limit()
    long = "x" * (before + 1)
    for chunk in read_rows(made(tmp_path, f"a\n{long}\n{long}\n"), rows_at_once=1):
        assert csv.field_size_limit() == before
        assert chunk.columns["a"] == [long]
    with pytest.raises(DataError, match="row 2 cannot be read"):
        list(read_rows(made(tmp_path, f"a\n{'x' * (table_files.LONGEST_CELL + 1)}\n")))
    assert csv.field_size_limit() == before


def test_the_limit_of_the_csv_module_is_never_lowered(tmp_path):
    before = csv.field_size_limit(3 * table_files.LONGEST_CELL)
    try:
        columns(made(tmp_path, "a\n1\n"))
        assert csv.field_size_limit() == 3 * table_files.LONGEST_CELL
    finally:
        csv.field_size_limit(before)


def test_the_largest_number_is_read_and_the_first_beyond_it_is_named(tmp_path):
    (chunk,) = read_rows(made(tmp_path, "a\n1e100\n-1e100\n"))
    assert chunk.values("a", "1.5").tolist() == [1e100, -1e100]
    (chunk,) = read_rows(made(tmp_path, "a\n1e100\n-1e101\n"))
    with pytest.raises(DataError, match=r"row 3, column 'a'.*of at most 1e\+100, was needed, got '-1e101'"):
        chunk.values("a", "1.5")


def test_weights_are_numbers_from_0(tmp_path):
    (chunk,) = read_rows(made(tmp_path, "a,w\n1,0\n2, 2.5 \n3,1e3\n"))
    assert chunk.weights("w").tolist() == [0, 2.5, 1000]
    with pytest.raises(DataError, match=r"no column 'v' with the weights of rows; it has 'a', 'w'"):
        chunk.weights("v")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("-1", r"a weight is a number from 0 to 1e\+30, got '-1'"),
        ("1e31", "a weight is a number from 0"),
        ("", "the weight is missing; write 0 to leave a row out"),
        ("nan", "the weight is missing"),
        ("inf", "was needed, got 'inf'"),
        ("much", "a number like '1.5', of at most .* was needed, got 'much'"),
        ('"1,5"', "was needed, got '1,5'"),
    ],
)
def test_other_weights_are_refused_with_their_place(tmp_path, cell, words):
    (chunk,) = read_rows(made(tmp_path, f"a,w\n1,1\n2,{cell}\n"))
    with pytest.raises(DataError, match=f"row 3, column 'w': .*{words}"):
        chunk.weights("w")
