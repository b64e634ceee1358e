import numpy as np
import pytest

from bayesemble.apps.serve.watch.stream import Alarm, Watched
from bayesemble.apps.serve.watch.words import alarm_words, verdict
from bayesemble.apps.tables.profile import Histogram


def alarm(kind, name, histogram, values, p_value=1e-5):
    counts = histogram.count(values)
    return Alarm(Watched(kind, name, histogram), counts, 250, 250, p_value)


@pytest.fixture(scope="module")
def schema(runs):
    return runs["price"].schema


def test_numbers_are_told_in_their_units(schema, models):
    column, histogram = (
        next(one for one in schema.columns if one.name == "size"),
        models["price"].profile.columns["size"],
    )
    words = alarm_words(alarm("column", "size", histogram, np.full(250, 1.0)), schema)
    assert "column 'size' is higher than in training" in words
    assert f"now {column.mean + column.scale * histogram.quantile(histogram.count(np.full(9, 1.0)), 0.5):.4g}" in words
    assert words.endswith("(250 rows, p = 1e-05)")
    assert "lower" in alarm_words(alarm("column", "size", histogram, np.full(250, -2.0)), schema)
    assert "missing in 0.0% of the training rows, now in 100.0%" in alarm_words(
        alarm("column", "size", histogram, np.full(250, np.nan)), schema
    )


def test_days_are_told_as_days(schema, models):
    histogram = models["price"].profile.columns["day"]
    assert "its median was 2020-" in alarm_words(alarm("column", "day", histogram, np.full(250, 9.0)), schema)


def test_categories_are_told_by_name(schema, models):
    histogram = models["price"].profile.columns["city"]
    words = alarm_words(alarm("column", "city", histogram, np.full(250, 2)), schema)
    name = next(one for one in schema.columns if one.name == "city").categories[1]
    assert repr(name) in words
    assert "now 100.0%" in words


def test_doubt_and_surprise(schema):
    histogram = Histogram.of(np.linspace(0, 1, 100))
    assert "larger" in alarm_words(alarm("doubt", "std", histogram, np.full(50, 2.0), 1e-20), schema)
    assert "p below 1e-12" in alarm_words(alarm("doubt", "std", histogram, np.full(50, 2.0), 1e-20), schema)
    assert "surprise the model more" in alarm_words(alarm("surprise", "", histogram, np.full(50, np.inf)), schema)
    assert "labels" in alarm_words(alarm("surprise", "", histogram, np.full(50, np.inf)), schema)


def test_verdicts():
    assert "still knows its world" in verdict(500, 0, 8, 0)
    assert "and 40 labels" in verdict(500, 40, 9, 0)
    assert "too few" in verdict(3, 0, 8, 0)
    assert "1 is not as it was" in verdict(500, 0, 8, 1)
    assert "2 are not as they were" in verdict(3, 0, 8, 2)
