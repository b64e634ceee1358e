import numpy as np
import pytest

from bayesemble.apps.serve.rows import chunk_of_rows
from bayesemble.apps.serve.watch.monitor import ALPHA, Monitor
from served_tables import draw_rows


def taken(model, rows):
    found = model.answer(chunk_of_rows(rows, model.schema, 10_000))
    return found.encoded, found.doubts


def test_everything_of_a_profile_is_watched(models):
    model = models["price"]
    monitor = Monitor(model.schema, model.profile)
    kinds = [one.kind for one in monitor.rows.watched]
    assert {kind: kinds.count(kind) for kind in kinds} == {"column": 5, "doubt": 2, "unlike": 1}
    assert [one.kind for one in monitor.labels.watched] == ["surprise"]
    assert monitor.rows.alpha + monitor.labels.alpha == pytest.approx(ALPHA)


def test_each_quantity_is_told_once(models):
    model = models["price"]
    monitor = Monitor(model.schema, model.profile)
    assert monitor.update(*taken(model, draw_rows(250, 20))) == []
    moved = taken(model, draw_rows(500, 21, shift=2.0))
    first = monitor.update(*moved)
    assert sum("'width'" in words for words in first) == 1
    assert not any("'width'" in words for words in monitor.update(*moved))
    assert len(monitor.alarms) >= len(first)


def test_rows_unlike_the_training_are_counted_by_column(models):
    model = models["kind"]
    monitor = Monitor(model.schema, model.profile)
    rows = draw_rows(250, 22)
    said = monitor.update(*taken(model, [row | {"city": "Atlantis"} for row in rows[:60]] + rows[60:]))
    assert monitor.unlike_by_column["city"] == 60
    assert monitor.unlike >= 60
    assert any("unlike the training data" in words for words in said)
    assert any("unknown categories" in words for words in said)


def test_labels_have_a_clock_of_their_own(models):
    model = models["price"]
    monitor = Monitor(model.schema, model.profile)
    assert monitor.update_labels(np.array([])) == []
    assert monitor.update_labels(np.full(249, np.inf)) == []
    assert "labels surprise the model more" in monitor.update_labels(np.full(1, np.inf))[0]
