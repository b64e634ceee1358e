import datetime
import importlib.util
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesemble.core.errors import DataError
from bayesemble.data.cells import is_number
from bayesemble.data.table_files import read_rows
from bayesemble.data.table_writing import write_rows

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow, of the extra parquet, is not installed"
)


def columns(path, rows_at_once=10_000):
    whole = {}
    for chunk in read_rows(path, rows_at_once):
        for name, cells in chunk.columns.items():
            whole.setdefault(name, []).extend(cells)
    return whole


def test_a_table_is_written_in_quotes_where_they_are_needed(tmp_path):
    day = datetime.date(2024, 2, 29)
    values = [
        [1, "x;y", None, True],
        [0.1, 'a"b\r\n', np.float32(0.1), np.bool_(False)],
        [np.int64(7), " ", day, Decimal(2)],
    ]
    for name in ("out.csv", "out.csv.gz"):
        write_rows(tmp_path / name, ["a;b;c", "d", "e,f", "g"], values)
        found = columns(tmp_path / name)
        assert found == {
            "a;b;c": ["1", "0.1", "7"],
            "d": ["x;y", 'a"b\r\n', " "],
            "e,f": ["", "0.1", "2024-02-29"],
            "g": ["true", "false", "2"],
        }
    first = (tmp_path / "out.csv.gz").read_bytes()
    write_rows(tmp_path / "out.csv.gz", ["a;b;c", "d", "e,f", "g"], values)
    assert (tmp_path / "out.csv.gz").read_bytes() == first


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", pytest.param("out.parquet", marks=needs_pyarrow)])
@pytest.mark.parametrize("bad", [[1], [1, "\ud800"], [1, object()], [1, 2, 3], None])
def test_what_goes_wrong_leaves_the_old_file_and_no_other(tmp_path, name, bad):
    def rows():
        yield [1, "x"]
        if bad is None:
            raise DataError("broken source")
        yield bad

    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(DataError, match="broken source" if bad is None else str(path)):
        write_rows(path, ["a", "b"], rows())
    assert path.read_text() == "old"
    assert [place.name for place in tmp_path.iterdir()] == [name]


def test_a_place_that_cannot_be_written_to(tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        write_rows(tmp_path / "none" / "out.csv", ["a"], [[1]])
    with pytest.raises(DataError, match="repeated"):
        write_rows(tmp_path / "out.csv", ["a", "a"], [[1, 2]])
    with pytest.raises(DataError, match=r"row 2.*NUL"):
        write_rows(tmp_path / "out.csv", ["a"], [["\0"]])
    assert not list(tmp_path.iterdir())


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NAMES = st.lists(TEXTS.map(str.strip).filter(bool), min_size=1, max_size=5, unique=True)


def with_apostrophe(value):
    """What is written for a value: a text that a spreadsheet would run has an apostrophe before it."""
    risky = isinstance(value, str) and re.match(r"[=+\-@\t\r]", value) and not is_number(value)
    return f"'{value}" if risky else value


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", "-", "+49 30 1", "-1e5x"]
NUMBERS = ["-1", "+2.5", "-1,5", "-1.234,5", "-1e-5", "+1,000.25"]


def test_texts_that_a_spreadsheet_would_run_are_made_inert_and_numbers_are_not(tmp_path):
    plain = ["a=b", "x-1", " =1", "'=1", ""]
    texts = [*FORMULAS, *NUMBERS, *plain]
    rows = [[text, -1.5, np.float32(-2), -3, Decimal(-4)] for text in texts]
    write_rows(tmp_path / "out.csv", ["=name", "-1", "c", "d", "e"], rows)
    found = columns(tmp_path / "out.csv")
    assert list(found) == ["'=name", "-1", "c", "d", "e"]
    assert found["'=name"] == [*(f"'{text}" for text in FORMULAS), *NUMBERS, *plain]
    assert [set(found[name]) for name in ("-1", "c", "d", "e")] == [{"-1.5"}, {"-2.0"}, {"-3"}, {"-4"}]


@settings(max_examples=150, deadline=None)
@given(st.data(), NAMES, st.integers(1, 6), st.integers(1, 4))
def test_texts_and_numbers_come_back_from_a_csv(tmp_path_factory, data, names, count, at_once):
    kinds = [data.draw(st.sampled_from([TEXTS, st.floats(allow_nan=False), st.integers()])) for _ in names]
    rows = [[data.draw(kind) for kind in kinds] for _ in range(count)]
    path = tmp_path_factory.getbasetemp() / "round.csv"
    write_rows(path, names, rows)
    found = columns(path, at_once)
    assert list(found) == [with_apostrophe(name) for name in names]
    for index, name in enumerate(found):
        values = [with_apostrophe(row[index]) for row in rows]
        assert [type(value)(cell) for value, cell in zip(values, found[name], strict=True)] == values
