"""The table: its numbers are those of the summary, marks are those of the paired test, failures come last."""

import math

import pytest

from bayesemble.apps.report.score_table import _decimals, columns_of, rows_of
from bayesemble.diagnostics.plots.style import PALETTE
from comparisons import made

GOOD, BAD = [0.20, 0.22, 0.19, 0.21], [0.30, 0.33, 0.28, 0.31]


def table_of(comparison):
    columns = columns_of(comparison)
    rows = rows_of(comparison, columns)
    names = [column.name for column in columns]
    return columns, rows, {row.label: dict(zip(names, row.cells, strict=False)) for row in rows}


def test_numbers_are_those_of_the_summary():
    comparison = made({"one": {"nll": GOOD, "accuracy": BAD}, "two": {"nll": BAD, "accuracy": GOOD}})
    _, _, cells = table_of(comparison)
    for row in comparison.summary():
        for name in ("nll", "accuracy"):
            cell = cells[row["method"]][name]
            assert (cell.value, cell.error) == (row[name]["mean"], row[name]["error"])
    assert (cells["one"]["nll"].text, cells["one"]["nll"].error_text) == ("0.205", "± 0.006")


def test_the_best_and_those_tied_are_marked_in_scores_alone():
    close = [0.21, 0.22, 0.20, 0.20]
    comparison = made(
        {
            "one": {"nll": GOOD, "accuracy": GOOD, "coverage_90": GOOD, "train_seconds": GOOD},
            "two": {"nll": close, "accuracy": BAD, "coverage_90": BAD, "train_seconds": BAD},
            "three": {"nll": BAD, "accuracy": BAD, "coverage_90": BAD, "train_seconds": BAD},
        }
    )
    _, _, cells = table_of(comparison)
    marks = {name: [cells[label][name].mark for label in ("one", "two", "three")] for name in cells["one"]}
    assert marks["nll"] == ["best", "tied", ""]
    assert marks["accuracy"] == ["", "best", "tied"]
    assert marks["train_seconds"] == marks["coverage_90"] == ["", "", ""]


def test_rows_come_from_the_best_nll_to_failures_and_keep_their_colours():
    comparison = made({"bad": {"nll": BAD}, "good": {"nll": GOOD}}, failed={"never": "no memory", "bad": "once"})
    _, rows, _ = table_of(comparison)
    assert [row.label for row in rows] == ["good", "bad", "never"]
    assert [row.number for row in rows] == [1, 0, 2]
    assert [row.failure for row in rows] == [None, None, "no memory"]
    assert rows[1].note == "failed with 1 of 5 seeds: once"


def test_what_a_result_lacks_is_left_out():
    comparison = made({"one": {"nll": GOOD, "brier": GOOD}, "two": {"nll": BAD}})
    columns, _, cells = table_of(comparison)
    assert [column.name for column in columns] == ["nll", "brier"]
    assert (cells["two"]["brier"].value, cells["two"]["brier"].text) == (None, "")
    assert cells["one"]["brier"].mark == ""  # alone it is no best


def test_one_seed_has_no_error_and_no_ties():
    _, _, cells = table_of(made({"one": {"nll": [0.1]}, "two": {"nll": [0.1001]}}))
    assert [cells[label]["nll"].mark for label in ("one", "two")] == ["best", ""]
    assert cells["one"]["nll"].error is None
    assert cells["one"]["nll"].error_text == ""


@pytest.mark.parametrize(("value", "text"), [(0.1234567, "0.123"), (54.321, "54.32"), (3210.6, "3,211")])
def test_large_scores_have_fewer_decimals(value, text):
    _, _, cells = table_of(made({"one": {"rmse": [value]}}))
    assert cells["one"]["rmse"].text == text


@pytest.mark.parametrize(
    ("name", "means", "decimals"),
    [
        ("nll", [0.5, -9.9], 3),
        ("nll", [0.5, -10.0], 2),
        ("nll", [0.5, 123.0, math.inf], 1),
        ("nll", [1000.0, math.nan], 0),
        ("nll", [12345.0], 0),
        ("nll", [math.inf], 3),
        ("train_seconds", [0.9], 3),
        ("train_seconds", [0.9, 1.0], 2),
        ("nll", [1.0], 3),
        ("parameters", [5.0], 0),
    ],
)
def test_the_largest_number_of_a_column_shows_four_figures(name, means, decimals):
    assert _decimals(name, means) == decimals


def test_a_method_beyond_the_palette_has_the_first_colour_again_but_dashed_lines():
    num = len(PALETTE)
    _, rows, _ = table_of(made({f"method {i}": {"nll": [float(i)]} for i in range(num + 2)}))
    assert [row.dashed for row in rows] == [False] * num + [True] * 2
    assert rows[num].colour == rows[0].colour
    assert rows[PALETTE.index("#000000")].colour == "currentColor"


def test_long_labels_may_end_a_line_between_settings():
    _, rows, _ = table_of(made({"repulsive:space=weight,eta=0.1": {"nll": [1.0]}}))
    assert rows[0].parts == ["repulsive:", "space=weight,", "eta=0.1"]
