import numpy as np
import pytest

from bayesemble.apps.serve.recent import RecentRows
from bayesemble.data.schema import Encoded


@pytest.fixture
def recent(runs):
    made = RecentRows(runs["price"].schema)
    made.size = 100
    for name in ("_numbers", "_categories", "_labelled"):
        setattr(made, name, getattr(made, name)[:100])
    return made


def rows(begin, num, recent):
    """Rows whose first number says which it is."""
    numbers = np.zeros((num, recent._numbers.shape[1]), np.float32)
    numbers[:, 0] = np.arange(begin, begin + num)
    return Encoded(np.arange(num), numbers, np.zeros((num, recent._categories.shape[1]), np.int64), None, [], [])


def test_the_last_rows_are_found_by_their_ids_and_each_takes_one_label(recent):
    ids = [id for begin in range(0, 250, 50) for id in recent.add(rows(begin, 50, recent))]
    assert len(set(ids)) == 250
    assert recent.place(ids[149]) is None
    for number in (150, 199, 249):
        numbers, _ = recent.take([recent.place(ids[number])])
        assert numbers[0, 0] == number
        assert recent.place(ids[number]) is None


def test_more_rows_at_once_than_there_is_room_for(recent):
    ids = recent.add(rows(0, 230, recent))
    assert recent.place(ids[129]) is None
    assert [recent.take([recent.place(ids[i])])[0][0, 0] for i in (130, 229)] == [130, 229]
    assert recent.take([recent.place(recent.add(rows(230, 1, recent))[0])])[0][0, 0] == 230


@pytest.mark.parametrize("id", ["", "x", "x-0", 3, None, [], "-1", "{}-", "{}-9", "{}--1", "{}-1e3", "{}-" + "9" * 40])
def test_foreign_ids_are_known_as_such(recent, id):
    recent.add(rows(0, 5, recent))
    word = recent.add(rows(5, 1, recent))[0].partition("-")[0]
    assert recent.place(id.replace("{}", word) if isinstance(id, str) else id) is None
