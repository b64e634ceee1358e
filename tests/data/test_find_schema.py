import json
import random

import numpy as np
import pytest

from bayesemble.core.errors import BayesembleError, DataError, SettingError
from bayesemble.data import find_schema as finding
from bayesemble.data.find_schema import find_schema
from bayesemble.data.schema import TASKS, Schema
from bayesemble.data.table_files import Chunk, read_rows
from odd_tables import odd_table


def chunk(delimiter=",", **columns):
    return Chunk("t.csv", columns, range(2, 2 + len(next(iter(columns.values())))), delimiter)


def parts(whole, size):
    for start in range(0, len(whole.rows), size):
        cells = {name: column[start : start + size] for name, column in whole.columns.items()}
        yield Chunk(whole.source, cells, whole.rows[start : start + size], whole.delimiter)


Y = [str(i / 7) for i in range(1, 41)]  # a target for regression


def with_target(cells, delimiter=","):
    """A table with one column, and one that is always of use."""
    return chunk(delimiter, x=list(cells), other=Y[: len(cells)], y=Y[: len(cells)])


def way_of(cells, delimiter=","):
    schema = find_schema([with_target(cells, delimiter)], "y")
    found = [column for column in schema.columns if column.name == "x"]
    return found[0].way if found else next(note for note in schema.notes if "'x'" in note)


def refused(call, *words, error=DataError):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


# --- what columns are ---


@pytest.mark.parametrize(
    ("cells", "way"),
    [
        (["1", "2", "3"], "1.5"),
        (["1.5", "2", "-3e2"], "1.5"),
        (["1,5", "2", "3"], "1,5"),
        (["1,234.5", "2", "3"], "1,000.5"),
        (["1.234,5", "2", "3"], "1.000,5"),
        (["1,234,567", "2,000"], "1,000.5"),
        (["1,234", "0,5"], "1,5"),  # 0,5 has no thousands, so the comma is a decimal one
        (["1,234", "1.5"], "1,000.5"),
        (["yes", "No", "yes"], "yes"),
        (["true", "", "false"], "yes"),
        (["2024-01-31", "2024-02-01 12:00"], "year-month-day"),
        (["31.1.2024", "1.2.2024"], "day.month.year"),
        (["31/1/2024", "1/2/2024"], "day/month/year"),
        (["1/31/2024", "1/2/2024"], "month/day/year"),
        (["a", "b", "a"], "text"),
        (["a", "1", "1"], "text"),
        (["1", "2", "yes", "yes"], "text"),
        (["none", "a", "a", "?"], "text"),
        (["", "NA", "N/A", "nan", "NULL", "5", "6"], "1.5"),
    ],
)
def test_how_a_column_is_read(cells, way):
    assert way_of(cells) == way


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2", "3.5", "1,234.5", "7"],
        ["1", "2,5", "3", "1.234,5", "7"],
        ["1.234", "2", "0.5", "", "7"],
        ["1", "2", "x", "x", "1"],
        ["yes", "", "no", "maybe", "yes"],
        ["1/2/2024", "3/4/2024", "31/12/2024", "5/6/2024"],
    ],
)
def test_a_table_in_parts_means_the_same_as_a_whole(cells, size):
    whole = with_target(cells)
    one, two = find_schema([whole], "y"), find_schema(parts(whole, size), "y")
    assert (one.notes, one.task, one.num_rows) == (two.notes, two.task, two.num_rows)
    for column, other in zip((*one.columns, one.target), (*two.columns, two.target), strict=True):
        for name, value in vars(column).items():
            assert getattr(other, name) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_table_with_weights_means_the_same_as_one_with_repeated_rows(size):
    times = [1 + i % 3 for i in range(40)]
    cells = {"x": [str(i * i / 3) if i % 5 else "" for i in range(40)], "town": ["a", "b"] * 20, "y": Y}
    weighted = find_schema(parts(chunk(**cells, w=[str(one) for one in times]), size), "y", weight="w")
    repeated = {
        name: [cell for cell, num in zip(column, times, strict=True) for _ in range(num)]
        for name, column in cells.items()
    }
    expected = find_schema([chunk(**repeated)], "y")
    assert weighted.notes == (*expected.notes, "rows count by 'w'")
    for column, other in zip((*weighted.columns, weighted.target), (*expected.columns, expected.target), strict=True):
        for name, value in vars(column).items():
            assert getattr(other, name) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("numbers", "texts", "is_spoilt"), [(19, 1, False), (20, 1, True), (30, 4, True), (30, 5, False)]
)
def test_texts_among_numbers_are_mistakes_where_they_are_few_and_the_numbers_many(numbers, texts, is_spoilt):
    """More than 20 different cells of which at most a tenth are texts."""
    cells = ["bad"] * texts + [str(i % numbers) for i in range(40 - texts)]
    if is_spoilt:
        refused(lambda: way_of(cells), f"only {texts} of 40 cells are no numbers")
    else:
        assert way_of(cells) == "text"


@pytest.mark.parametrize("delimiter", [",", "\t", None])
def test_points_are_decimal_except_where_semicolons_make_that_doubtful(delimiter):
    assert way_of(["1.234", "12.500"], delimiter) == "1.5"
    refused(lambda: way_of(["1.234", "12.500"], ";"), "t.csv", "'x'", "thousands or decimals")
    assert way_of(["1.234", "0.5"], ";") == "1.5"
    assert way_of(["1.234", "0,5"], ";") == "1.000,5"
    assert way_of(["1,5", "2"], ";") == "1,5"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["1,234", "2,500", "3"], ["thousands or decimals"]),
        (["1,5", "1.5", "2"], ["decimal point", "decimal comma"]),
        (["1,234", "1.234", "2"], ["thousands or decimals"]),
        (["1/2/2024", "3/4/2024"], ["day and month"]),
        (["1", "inf", "2"], ["row 3", "'inf'", "finite"]),
        (["1", "2", "1e999"], ["row 4", "'1e999'"]),
        (["1", "-Infinity", "2"], ["row 3"]),
        ([*map(str, range(30)), "x"], ["row 32", "'x'", "1 of 31"]),
    ],
)
def test_what_is_doubtful_is_refused(cells, words):
    refused(lambda: way_of(cells), "t.csv", "'x'", *words)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (["", "NA", "?"], "empty"),
        (["a", "a", "a"], "the same"),
        (["1", "1.0", "1e0"], "the same"),
        (["yes", "true", "Y"], "the same"),
        (["a", "b", "c"], "no text occurs twice"),
        (["a", "b", "", ""], "no text occurs twice"),
        (["inf", "inf", "inf"], "the same"),
        (["a", "x" * 300, "a"], "very long"),
    ],
)
def test_columns_of_no_use_are_dropped_with_a_note(cells, why):
    assert why in way_of(cells)


def test_many_different_texts_are_not_kept_in_memory():
    cells = [f"t{i // 2}" for i in range(5000)]
    whole = chunk(x=cells, other=[str(i) for i in range(5000)], y=[str(i / 3) for i in range(5000)])
    schema = find_schema(parts(whole, 100), "y")
    assert [column.name for column in schema.columns] == ["other"]
    assert "more than 1000" in "".join(schema.notes)
    profile = finding._Profile("x", 1000)
    for part in parts(whole, 100):
        profile.add(part, np.ones(100))
    assert profile.counts is None


def test_a_table_without_a_useful_column_is_refused():
    refused(lambda: find_schema([chunk(x=["1", "1"], y=["1", "2"])], "y"), "no column is left", "'x'", "the same")


def test_notes_name_odd_ways_to_write_numbers():
    schema = find_schema([with_target(["1,5", "2,5"], ";")], "y")
    assert any("'x'" in note and "1,5" in note for note in schema.notes)


def test_as_many_texts_and_letters_as_are_allowed_are_kept():
    longest = "x" * finding.LONGEST_CATEGORY
    for cells, kept in ((["a", "b", longest], True), (["a", "b", longest + "x"], False), (["a", "b", "c", "d"], False)):
        profile = finding._Profile("x", 3)
        profile.add(with_target(cells), np.ones(len(cells)))
        assert (profile.counts is not None) == kept


def test_texts_that_are_counted_are_shared_out_among_many_columns(monkeypatch):
    monkeypatch.setattr(finding, "MOST_COUNTED_TEXTS", 6)
    assert way_of(["a", "b", "a", "b"]) == "text"
    assert "more than 2 different texts" in way_of(["a", "b", "c", "a"])
    monkeypatch.setattr(finding, "MOST_CATEGORIES", 1)
    assert "more than 1 different texts" in way_of(["a", "b", "a", "b"])


@pytest.mark.parametrize(
    ("missing", "words"), [(10, "in 10 rows: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11; "), (11, "10, 11, ...; ")]
)
def test_ten_rows_without_a_target_are_named(missing, words):
    whole = chunk(x=[str(i) for i in range(15)], y=[""] * missing + ["1.5"] * (15 - missing))
    refused(lambda: find_schema([whole], "y"), words)


def test_two_classes_may_be_seen_once_and_three_may_not():
    assert find_schema([chunk(x=["1", "2"], y=["a", "b"])], "y").target.categories == ("a", "b")
    refused(lambda: find_schema([chunk(x=["1", "2", "3"], y=["a", "b", "c"])], "y"), "seen only once")


# --- statistics ---


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_mean_and_spread_in_parts_are_those_of_all_rows(size):
    generator = np.random.default_rng(0)
    values = 1e9 + generator.normal(size=200)  # far from zero: naive sums of squares lose all digits
    whole = chunk(x=[repr(float(value)) for value in values], y=[repr(float(v)) for v in generator.normal(size=200)])
    (column,) = find_schema(parts(whole, size), "y").columns
    assert column.mean == pytest.approx(values.mean(), rel=1e-15)
    assert column.scale == pytest.approx(values.std(), rel=1e-6)
    assert (column.low, column.high) == (values.min(), values.max())


# --- targets ---


@pytest.mark.parametrize(
    ("cells", "task", "labels"),
    [
        (["b", "a", "b", "a"], "classification", ("a", "b")),
        (["yes", "no", "yes"], "classification", ("no", "yes")),
        (["0", "1", "1.0", "00"], "classification", ("0", "1")),
        (["10", "9", "10", "9"], "classification", ("9", "10")),
        (["-0", "0", "-1", "-1"], "classification", ("-1", "0")),
        (["1", "2", "3", "4"], "regression", ()),  # whole numbers, but none comes twice
        (["0.5", "1", "0.5", "1"], "regression", ()),
        ([str(i % 20) for i in range(60)], "classification", tuple(map(str, range(20)))),
        ([str(i % 21) for i in range(63)], "regression", ()),
    ],
)
def test_the_task_follows_from_the_target(cells, task, labels):
    whole = chunk(x=[str(i) for i in range(len(cells))], y=cells)
    schema = find_schema([whole], "y")
    assert (schema.task, schema.target.categories) == (task, labels)
    encoded = schema.encode(whole)
    if labels:
        assert [float(a) if a[-1].isdigit() else a for a in schema.decode_targets(encoded.targets)] == [
            float(a) if a[-1].isdigit() else a for a in cells
        ]


def test_a_task_can_be_asked_for():
    whole = chunk(x=["1", "2", "3", "4"], y=["0", "1", "1", "0"])
    assert find_schema([whole], "y", "regression").target.mean == 0.5
    counts = find_schema([whole], "y", "count")
    assert counts.encode(whole).targets.tolist() == [0, 1, 1, 0]
    assert counts.decode_targets([0.5, 2]).tolist() == [0.5, 2]
    assert find_schema([chunk(x=["1", "2", "3"], y=["0.5", "1", "0.5"])], "y", "classification").target.categories == (
        "0.5",
        "1",
    )
    for cells, row in ((["0", "-1", "5"], 3), (["0", "1", "1.5"], 4)):
        bad = chunk(x=["1", "2", "3"], y=cells)
        refused(lambda bad=bad: find_schema([bad], "y", "count").encode(bad), f"row {row}", "count")


@pytest.mark.parametrize(
    ("cells", "task", "words"),
    [
        (["1", "", "2", "?"], None, ["missing in 2 rows: 3, 5"]),
        (["a", "a", "a", "a"], None, ["2 to 1000 classes"]),
        (["a", "b", "c", "d"], None, ["seen only once"]),
        (["1", "1", "1", "1"], "regression", ["the same"]),
        (["1", "a", "2", "a"], "regression", ["row 3", "'a'"]),
        (["yes", "no", "no", "no"], "regression", ["row 2", "'yes'"]),
        (["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-01"], None, ["row 2", "number was needed"]),
        (["1", "inf", "2", "3"], None, ["row 3", "'inf'"]),
        (["1,234", "2,345", "3,456", "4,567"], None, ["thousands"]),
    ],
)
def test_targets_that_cannot_be_learnt(cells, task, words):
    refused(lambda: find_schema([chunk(x=["1", "2", "3", "4"], y=cells)], "y", task), "'y'", *words)


def test_many_missing_targets_are_named_in_part():
    cells = ["", *["1.5", "2.5"] * 2] * 30
    whole = chunk(x=[str(i) for i in range(150)], y=cells)
    refused(lambda: find_schema(parts(whole, 4), "y"), "30 rows: 2, 7, 12", "...")


def test_calls_that_cannot_be_honoured():
    refused(lambda: find_schema([chunk(x=["1"], y=["1"])], "z"), "'z'", "'x', 'y'")
    refused(lambda: find_schema([], "y"), "no rows")
    refused(lambda: find_schema([chunk(x=["1"], y=["2"])], "y", "ranking"), "ranking", error=SettingError)
    refused(lambda: find_schema([chunk(x=["1"], y=["2"]), chunk(y=["1"])], "y"), "changes its columns")


# --- odd files ---


def test_odd_files_give_a_result_or_an_error_of_ours(tmp_path):
    generator, read_well, refusals = random.Random(0), 0, set()
    for number in range(2000):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(odd_table(generator))
        try:
            schema = find_schema(read_rows(path, 10), "y", generator.choice([None, None, None, *TASKS]))
            assert Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False))) == schema
            for part in read_rows(path, 10):
                encoded = schema.encode(part)
                assert np.isfinite(encoded.numbers).all()
                assert np.isfinite(encoded.targets).all()
                assert (encoded.categories <= np.array(schema.category_sizes or 0)).all()
                assert (encoded.categories > 0).all()
                assert encoded.numbers.shape[1] == schema.num_numbers
                assert not encoded.unlike.any()
                assert np.isfinite(encoded.numbers).all()
                assert len(schema.decode_targets(encoded.targets)) == len(part.rows)
            read_well += 1
        except BayesembleError as error:
            refusals.add(str(error).split(":")[-1][:30])
    assert read_well > 300
    assert len(refusals) > 20
