import numpy as np
import pytest

from bayesemble.apps.serve.watch.stream import FEWEST_ROWS, WINDOW, Stream, Watched
from bayesemble.apps.tables.profile import Histogram


def watched(rng, num=1_000):
    return [Watched("column", name, Histogram.of(rng.normal(size=num), 40)) for name in ("a", "b")]


def drawn(rng, num, shift=0.0):
    return {("column", "a"): rng.normal(size=num), ("column", "b"): rng.normal(size=num) + shift}


def test_the_error_rates_of_all_looks_add_up_to_alpha(monkeypatch):
    stream, spent = Stream(watched(np.random.default_rng(0)), 0.01), []
    monkeypatch.setattr(
        stream, "_test", lambda counts, over, number: spent.append(stream.alpha / 2 / (number * (number + 1))) or []
    )
    for _ in range(64):
        stream.update(drawn(np.random.default_rng(0), WINDOW))
    assert len(spent) == 64 + 6  # every window; all rows after 2, 4, 8, 16, 32, 64
    assert sum(spent) < 0.01
    assert sum(spent) == pytest.approx(0.005 * (1 - 1 / 65) + 0.005 * (1 - 1 / 7))


def test_parts_of_any_size_are_counted_alike():
    values = drawn(np.random.default_rng(1), 1_130, shift=0.3)
    reference = watched(np.random.default_rng(2))
    whole, parts = Stream(reference, 0.01), Stream(reference, 0.01)
    first, second, begin = whole.update(values) + whole.finish(), [], 0
    for size in (1, 249, 1, 400, 279, 200):
        second += parts.update({key: one[begin : begin + size] for key, one in values.items()})
        begin += size
    second += parts.finish()
    assert begin == 1_130
    assert [(one.watched.name, one.rows, one.over, one.p_value) for one in first] == [
        (one.watched.name, one.rows, one.over, one.p_value) for one in second
    ]
    assert {one.watched.name for one in first} == {"b"}


def test_false_alarms_are_rare_and_shifts_are_found_at_the_first_look():
    rng, false, found = np.random.default_rng(3), 0, 0
    for _ in range(200):
        reference = watched(rng)
        stream = Stream(reference, 0.02)
        false += bool(stream.update(drawn(rng, 1_000)) + stream.finish())
        alarms = Stream(reference, 0.02).update(drawn(rng, WINDOW, shift=1.0))
        found += [one.watched.name for one in alarms] == ["b"]
    assert false <= 12  # 0.02 of 200 is 4; more than 12 would have a probability below 0.001
    assert found >= 198


def test_a_late_change_is_found_in_its_window():
    rng = np.random.default_rng(4)
    stream = Stream(watched(rng), 0.005)
    assert stream.update(drawn(rng, 40 * WINDOW)) == []
    alarms = stream.update(drawn(rng, WINDOW, shift=1.0))
    assert [(one.watched.name, one.over, one.rows) for one in alarms] == [("b", WINDOW, 41 * WINDOW)]


def test_a_small_change_is_found_in_all_rows():
    rng = np.random.default_rng(5)
    stream = Stream(watched(rng, 20_000), 0.005)
    alarms = stream.update(drawn(rng, 16 * WINDOW, shift=0.12))
    assert any(one.over > WINDOW and one.watched.name == "b" for one in alarms)


def test_few_rows_tell_nothing():
    rng = np.random.default_rng(6)
    stream = Stream(watched(rng), 0.005)
    stream.update(drawn(rng, FEWEST_ROWS - 1, shift=9.0))
    assert stream.finish() == []
    stream.update(drawn(rng, 30, shift=9.0))
    assert {one.watched.name for one in stream.finish()} == {"b"}


def test_fewer_rows_unlike_the_training_are_no_alarm():
    unlike = Watched("unlike", "", Histogram(None, np.array([900, 100])))
    assert unlike.p_value(np.array([250, 0])) > 0.5
    assert unlike.p_value(np.array([150, 100])) < 1e-9
