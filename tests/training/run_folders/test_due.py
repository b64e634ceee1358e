import time

import numpy as np
import pytest

from bayesemble.core.errors import SettingError
from bayesemble.training.run_folders.due import Every, Timer
from bayesemble.training.run_folders.standing import Standing


@pytest.mark.parametrize(
    ("given", "count", "unit"),
    [
        (1, 1, "epochs"),
        (np.int64(3), 3, "epochs"),
        ("2 epochs", 2, "epochs"),
        ("500 steps", 500, "steps"),
        ("1 step", 1, "steps"),
        ("60 s", 60, "seconds"),
        ("0.5 seconds", 0.5, "seconds"),
    ],
)
def test_numbers_are_epochs_and_texts_name_their_unit(given, count, unit):
    assert Every.parse(given) == Every(count, unit)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, None, "often", "0 s", "1.5 steps", "-3 s", "5", "5 miles"])
def test_what_says_no_time_is_refused(given):
    with pytest.raises(SettingError, match=r'such as "500 steps" or "60 s", got '):
        Every.parse(given)


def standing(epoch):
    return Standing(epoch, 10, None)


def test_steps_count_through_epochs():
    timer = Every(3, "steps").timer()
    assert [step for step in range(1, 10) if timer.after_step(step)] == [3, 6, 9]
    assert [epoch for epoch in range(1, 7) if timer.after_epoch(standing(epoch), 2)] == [3, 6]
    assert timer.within_epochs
    assert not Every(3, "epochs").timer().within_epochs
    assert [epoch for epoch in range(1, 7) if Every(3, "epochs").timer().after_epoch(standing(epoch), 2)] == [3, 6]


def test_seconds_count_from_the_last_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    timer, due = Timer(Every(10, "seconds")), []
    for clock[0] in (1.0, 9.0, 11.0, 12.0, 20.9, 21.0, 40.0, 41.0):
        if timer.after_step(1):
            due.append(clock[0])
    assert due == [11.0, 21.0, 40.0]
    clock[0] = 51.0
    assert timer.after_epoch(standing(1), 2)
