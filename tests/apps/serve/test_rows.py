import math
import re

import pytest

from bayesemble.apps.serve.rows import RowError, cell_text, chunk_of_columns, chunk_of_rows
from bayesemble.data.cells import read
from bayesemble.data.schema import Column
from served_tables import draw_rows

GOOD = {"size": 100.5, "width": -1, "city": "Rome", "garden": True, "day": "2020-05-01"}


@pytest.fixture(scope="module")
def schema(runs):
    return runs["price"].schema


@pytest.mark.parametrize("way", ["1.5", "1,5", "1,000.5", "1.000,5"])
@pytest.mark.parametrize("value", [0, -3, 0.1, 1234567.25, 1e-7, -2.5e22, 1e100])
def test_numbers_survive_in_every_way_to_write_them(way, value):
    text = cell_text(value, Column("n", way), 0)
    assert read([text], way)[0] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", math.nan),
        ("size", math.inf),
        ("size", 1e101),
        ("size", 10**400),
        ("size", True),
        ("size", "much"),
        ("size", "1e999"),
        ("size", "inf"),
        ("size", [1]),
        ("size", {}),
        ("city", math.nan),
        ("city", ["Rome"]),
        ("city", "a\0b"),
        ("city", "\ud800"),
        ("city", "x" * 20_000),
        ("garden", 1),
        ("garden", "perhaps"),
        ("day", "May"),
        ("day", 20200501),
        ("day", "2020-13-01"),
    ],
)
def test_a_cell_that_cannot_be_understood_is_refused_by_field_and_row(schema, field, value):
    with pytest.raises(RowError) as refused:
        chunk_of_rows([GOOD, GOOD | {field: value}], schema, 10)
    assert (refused.value.field, refused.value.row) == (field, 1)
    assert f"row 1, field '{field}'" in str(refused.value)


@pytest.mark.parametrize(("rows", "came"), [([], "an empty list"), (None, "null"), ({}, "an object"), ("[]", "a text")])
def test_what_is_no_list_of_rows_is_said(schema, rows, came):
    with pytest.raises(RowError, match=f"a list of at least one row was needed, got {came}"):
        chunk_of_rows(rows, schema, 10)


def test_a_limit_is_said_of_numbers_alone(schema):
    for field, value, needed in (
        ("size", "1e101", "a number like '1.5', of at most 1e+100, was needed"),
        ("garden", "perhaps", "a boolean like 'yes' was needed"),
        ("day", "May", "a date like 'year-month-day' was needed"),
    ):
        with pytest.raises(RowError, match=re.escape(f"{needed}, got '{value}'")):
            chunk_of_rows([GOOD | {field: value}], schema, 10)


def test_a_lacking_field_is_named_and_others_are_not_used(schema):
    with pytest.raises(RowError) as refused:
        chunk_of_rows([{name: value for name, value in GOOD.items() if name != "day"}], schema, 10)
    assert (refused.value.field, refused.value.row) == ("day", 0)
    assert set(chunk_of_rows([GOOD | {"more": object()}], schema, 10).columns) == set(GOOD)


@pytest.mark.parametrize("rows", [None, [], {}, "rows", 3, [GOOD] * 11, [None], [[1, 2]]])
def test_what_are_no_rows_is_refused(schema, rows):
    with pytest.raises(RowError):
        chunk_of_rows(rows, schema, 10)


def test_rows_are_encoded_as_those_of_a_file(schema, tmp_path):
    from bayesemble.data.table_files import read_rows
    from served_tables import write_csv

    rows = draw_rows(40, 5)
    sent = schema.encode(chunk_of_rows(rows, schema, 100), with_targets=False)
    file = schema.encode(next(read_rows(write_csv(tmp_path / "rows.csv", rows, None))), with_targets=False)
    assert sent.numbers.tobytes() == file.numbers.tobytes()
    assert sent.categories.tobytes() == file.categories.tobytes()
    by_column = {name: [row[name] for row in rows] for name in GOOD}
    again = schema.encode(chunk_of_columns(by_column, schema, 100), with_targets=False)
    assert again.numbers.tobytes() == file.numbers.tobytes()


def test_columns_of_another_length_are_refused(schema):
    columns = {name: [value, value] for name, value in GOOD.items()}
    for wrong in (columns | {"day": ["2020-01-01"]}, {name: [] for name in columns}, {"size": [1]}):
        with pytest.raises(RowError):
            chunk_of_columns(wrong, schema, 10)
    with pytest.raises(RowError):
        chunk_of_columns(columns, schema, 1)
