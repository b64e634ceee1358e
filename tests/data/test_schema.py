import dataclasses
import datetime
import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesemble.core.errors import BayesembleError, DataError
from bayesemble.data.find_schema import find_schema
from bayesemble.data.schema import Schema
from bayesemble.data.table_files import Chunk, read_rows
from bayesemble.data.table_writing import write_rows
from odd_tables import ODD


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


def refused(call, *words, error=DataError):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_training_rows_come_out_standardised():
    generator = np.random.default_rng(1)
    whole = chunk(
        x=[str(value) for value in generator.normal(5, 3, 300)],
        flag=["yes" if value else "no" for value in generator.integers(2, size=300)],
        y=[str(value) for value in generator.normal(-2, 9, 300)],
    )
    schema = find_schema(parts(whole, 50), "y")
    encoded = schema.encode(whole)
    assert encoded.numbers.dtype == np.float32
    np.testing.assert_allclose(encoded.numbers.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(encoded.numbers.std(0), 1, atol=1e-6)
    np.testing.assert_allclose(encoded.targets.std(), 1, atol=1e-6)
    decoded = schema.decode_targets(encoded.targets)
    np.testing.assert_allclose(decoded, [float(cell) for cell in whole.columns["y"]], rtol=1e-5, atol=1e-5)
    assert not encoded.unlike.any()
    split = [schema.encode(part) for part in parts(whole, 70)]
    np.testing.assert_array_equal(np.concatenate([part.numbers for part in split]), encoded.numbers)


def test_missing_numbers_become_the_mean_and_a_feature_of_their_own():
    whole = with_target(["1", "", "3", "NA", "5"])
    encoded = find_schema([whole], "y").encode(whole)
    deviation = np.std([1, 3, 5])
    np.testing.assert_allclose(encoded.numbers[:, 0], np.array([-2, 0, 0, 0, 2]) / deviation, rtol=1e-6)
    assert encoded.numbers[:, 1].tolist() == [0, 1, 0, 1, 0]
    assert encoded.numbers.shape == (5, 3)


def test_a_constant_that_is_sometimes_missing_is_kept_for_that():
    whole = with_target(["7", "", "7", ""])
    encoded = find_schema([whole], "y").encode(whole)
    assert encoded.numbers[:, :2].tolist() == [[0, 0], [0, 1], [0, 0], [0, 1]]
    assert not encoded.unlike.any()


def test_dates_are_days_and_circles_of_month_and_weekday():
    days = [datetime.date(1969, 12, 31) + datetime.timedelta(days=37 * i) for i in range(30)]
    whole = with_target([*(day.isoformat() for day in days), ""])
    encoded = find_schema([whole], "y").encode(whole)
    for row, day in zip(encoded.numbers, days, strict=False):
        month, weekday = math.tau * (day.month - 1) / 12, math.tau * day.weekday() / 7
        circles = [math.sin(month), math.cos(month), math.sin(weekday), math.cos(weekday)]
        np.testing.assert_allclose(row[1:6], [*circles, 0], atol=1e-6)
    np.testing.assert_allclose(np.diff(encoded.numbers[:30, 0]), np.diff(encoded.numbers[:30, 0]).mean(), rtol=1e-4)
    assert encoded.numbers[30, :6].tolist() == pytest.approx([0, 0, 0, 0, 0, 1], abs=1e-6)


# --- new rows ---


@pytest.fixture
def houses():
    whole = chunk(
        city=["Rome", "Oslo", "Rome", "", "Oslo", "Rome"],
        size=["50", "60", "70", "80", "90", "100"],
        price=["1.5", "2.5", "3.25", "4", "5", "6"],
    )
    return find_schema([whole], "price")


def test_categories_are_numbered_and_unknown_ones_reported(houses):
    assert houses.category_sizes == [3]
    new = chunk(extra=["1"] * 4, size=["55"] * 4, city=["Rome", "Oslo", "Paris", "n/a"])
    encoded = houses.encode(new, with_targets=False)
    assert encoded.categories.dtype == np.int64
    assert encoded.categories[:, 0].tolist() == [2, 1, 0, 3]
    assert [(cell.column, cell.row, cell.value) for cell in encoded.odd] == [("city", 4, "Paris")]
    assert encoded.unlike.tolist() == [False, False, True, False]
    assert "'city': 'Paris'" in encoded.reasons[2]
    assert encoded.reasons[0] == ""
    assert encoded.ignored == ["extra"]
    assert encoded.targets is None


def test_the_ends_of_the_margin_are_within_the_range(houses):
    """A tenth of 50 beyond 50 and 100."""
    encoded = houses.encode(chunk(size=["45", "105", "44.999", "105.001"], city=["Rome"] * 4), with_targets=False)
    assert encoded.unlike.tolist() == [False, False, True, True]


def test_the_largest_count_is_taken_and_classes_are_those_there_are():
    whole = chunk(x=["1", "2", "3", "4"], y=["0", "1", "1", str(2**53)])
    assert find_schema([whole], "y", "count").encode(whole).targets.tolist() == [0, 1, 1, 2**53]
    beyond = chunk(x=["1"], y=[str(2**53 + 2)])
    refused(lambda: find_schema([whole], "y", "count").encode(beyond), "a count 0, 1, 2, ... was needed")
    classes = find_schema([chunk(x=["1", "2", "3", "4"], y=["a", "b", "a", "b"])], "y")
    assert classes.decode_targets([0, 1]).tolist() == ["a", "b"]
    for wrong in ([2], [-1]):
        refused(lambda wrong=wrong: classes.decode_targets(wrong), "from 0 to 1")


def test_targets_as_far_as_a_million_deviations_are_taken():
    schema = find_schema([chunk(x=["1", "2", "3", "4"], y=["-1.5", "0.5", "-0.5", "1.5"])], "y", "regression")
    schema = dataclasses.replace(schema, target=dataclasses.replace(schema.target, mean=0.0, scale=1.0))
    assert schema.encode(chunk(x=["1", "1"], y=["1e6", "-1e6"])).targets.tolist() == [1e6, -1e6]
    for wrong in ("1000000.1", "-1000000.1"):
        one = chunk(x=["1"], y=[wrong])
        refused(lambda one=one: schema.encode(one), "a number within 1e+06 deviations of the training data was needed")


def test_columns_may_come_in_any_order(houses):
    cells = {"size": ["55", "66"], "city": ["Rome", ""], "price": ["1", "2"]}
    one, two = (houses.encode(chunk(**dict(order))) for order in (cells.items(), reversed(cells.items())))
    for name in ("numbers", "categories", "targets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_numbers_far_outside_the_range_or_missing_for_the_first_time_are_unlike(houses):
    encoded = houses.encode(chunk(size=["46", "44", "104", "106", "", "1e99"], city=["Rome"] * 6), with_targets=False)
    assert encoded.unlike.tolist() == [False, True, False, True, True, True]
    assert "outside the range" in encoded.reasons[1]
    assert "missing" in encoded.reasons[4]
    assert np.isfinite(encoded.numbers).all()
    both = houses.encode(chunk(size=["900"], city=["Bonn"]), with_targets=False)
    assert len(both.odd) == 2
    assert both.reasons[0].count(";") == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"city": ["Rome"], "price": ["1"]}, ["'size'", "'city'"]),
        ({"city": ["Rome"], "size": ["50"]}, ["'price'"]),
        ({"city": ["Rome"] * 2, "size": ["50", "large"], "price": ["1"] * 2}, ["row 3", "'size'", "'large'"]),
        ({"city": ["Rome"] * 2, "size": ["50", "1,5"], "price": ["1"] * 2}, ["row 3", "'size'", "'1,5'"]),
        ({"city": ["Rome"], "size": ["1e999"], "price": ["1"]}, ["row 2", "'size'", "'1e999'"]),
        ({"city": ["Rome"] * 2, "size": ["50"] * 2, "price": ["1", ""]}, ["row 3", "'price'", "missing"]),
        ({"city": ["Rome"], "size": ["50"], "price": ["x"]}, ["row 2", "'price'", "'x'"]),
        ({"city": ["Rome"], "size": ["50"], "price": ["1e90"]}, ["row 2", "'price'", "'1e90'"]),
    ],
)
def test_what_cannot_be_encoded_is_named_with_its_place(houses, cells, words):
    refused(lambda: houses.encode(chunk(**cells)), "t.csv", *words)


def test_classes_that_are_not_known(houses):
    classes = find_schema([chunk(x=["1", "2", "3"], y=["a", "b", "a"])], "y")
    for labels in ([2], [-1], [0.5]):
        refused(lambda labels=labels: classes.decode_targets(labels), "from 0 to 1")
    refused(lambda: classes.encode(chunk(x=["1"], y=["c"])), "row 2", "'c'", "'a', 'b'")


# --- JSON ---


def test_a_schema_comes_back_from_json(houses):
    text = json.dumps(houses.to_json(), allow_nan=False)
    assert Schema.from_json(json.loads(text)) == houses


def test_every_damaged_field_is_refused(houses):
    good = houses.to_json()
    assert Schema.from_json(good) == houses
    bad = [
        None,
        [],
        5,
        "x",
        -1.0,
        float("nan"),
        float("inf"),
        True,
        {},
        [1],
        [None],
        {"class": []},
        {"class": "Column"},
    ]
    for place in (good, good["columns"][0], good["columns"][1], good["target"]):
        for name in list(place):
            kept = place.pop(name)
            for value in (*bad, bad):
                same = type(value) is type(kept) and name not in ("class", "columns")
                whole = type(value) is int and type(kept) is float  # a number all the same
                place[name] = value
                if not same and not whole:
                    with pytest.raises(DataError, match=r"a damaged schema|no column is left"):
                        Schema.from_json(good)
            place[name] = kept
    mean = good["target"]["mean"]
    good["target"]["mean"] = 5
    assert Schema.from_json(good).target.mean == 5
    good["target"]["mean"] = mean
    for value in bad:
        with pytest.raises(DataError, match=r"a damaged schema|no column is left"):
            Schema.from_json(value)
    with pytest.raises(DataError, match=r"a damaged schema|no column is left"):
        Schema.from_json({**good, "more": 1})


@pytest.mark.parametrize(
    "changes",
    [{"way": "guess"}, {"scale": 0.0}, {"low": 3.0, "high": 2.0}, {"categories": ("a", "a")}, {"mean": math.nan}],
)
def test_columns_that_cannot_be(houses, changes):
    refused(lambda: dataclasses.replace(houses.columns[1], **changes), "damaged")
    refused(lambda: dataclasses.replace(houses, columns=houses.columns * 2), "damaged")
    refused(lambda: dataclasses.replace(houses, task="classification"), "damaged")
    refused(lambda: dataclasses.replace(houses, num_rows=0), "damaged")


# --- round trips and odd files ---


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-1e6, 1e6),
            st.sampled_from(["red", "green;", 'bl"ue', "", "ö\n"]),
            st.booleans(),
            st.dates(datetime.date(1900, 1, 1)),
            st.floats(-100, 100),
        ),
        min_size=4,
        max_size=30,
    )
)
def test_typed_tables_come_back_from_a_file(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "typed.csv"
    first = (0.25, "red", True, datetime.date(2000, 1, 1), 0.5)
    rows = [*rows, first, first, (1.75, "x", False, datetime.date(2001, 2, 3), 1.5)]
    write_rows(path, ["number", "colour", "flag", "day", "y"], rows)
    schema = find_schema(read_rows(path, 7), "y", "regression")
    kinds = {column.name: column for column in schema.columns}
    assert {name: column.kind for name, column in kinds.items()} == {
        "number": "number",
        "colour": "category",
        "flag": "boolean",
        "day": "date",
    }
    (whole,) = read_rows(path)
    encoded = schema.encode(whole)
    texts = [*kinds["colour"].categories]
    assert [texts[code - 1] for code in encoded.categories[:, 0]] == [row[1].strip() for row in rows]
    for index, name, values in (
        (0, "number", [row[0] for row in rows]),
        (1, "flag", [float(row[2]) for row in rows]),
        (2, "day", [(row[3] - datetime.date(1970, 1, 1)).days for row in rows]),
    ):
        back = kinds[name].mean + kinds[name].scale * encoded.numbers[:, index].astype(float)
        np.testing.assert_allclose(back, values, atol=1e-5 * max(1.0, kinds[name].scale))
    np.testing.assert_allclose(schema.decode_targets(encoded.targets), [row[4] for row in rows], atol=1e-3)
    assert not encoded.unlike.any()


def test_new_rows_of_any_kind_give_a_result_or_an_error_of_ours(houses):
    generator = random.Random(1)
    for _ in range(2000):
        cells = {name: [generator.choice(ODD)] for name in ("city", "size", "price")}
        try:
            encoded = houses.encode(chunk(**cells), with_targets=generator.random() < 0.5)
        except BayesembleError:
            continue
        assert np.isfinite(encoded.numbers).all()
