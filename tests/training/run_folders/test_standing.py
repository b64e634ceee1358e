import json
import math
from dataclasses import fields

import pytest

from bayesemble.core.errors import CheckpointError
from bayesemble.training.run_folders.standing import Standing, check_same_run


@pytest.mark.parametrize(
    "standing",
    [
        Standing(0, 3, None),
        Standing(4, 9, 16, best_loss=-0.25, best_epoch=3, stopped=True, finished=True, data={"a": {}}),
        Standing(
            4, 9, 16, step=2, seconds=0.5, first_losses=[0.7, None], dropped=[{"member": 1, "epoch": 1, "step": 1}]
        ),
        Standing(4, 9, 16, changed=[{"epoch": 2, "setting": "clip", "from": None, "to": 1.0}]),
    ],
    ids=repr,
)
def test_it_comes_back_from_json_as_it_was(standing):
    text = json.dumps(standing.to_json(), allow_nan=False)
    assert Standing.from_json(json.loads(text)) == standing


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_loss_that_is_no_number_is_one_that_was_never_measured(loss):
    saved = Standing(1, 3, 16, best_loss=loss).to_json()
    assert saved["best_loss"] is None
    assert Standing.from_json(saved) == Standing(1, 3, 16)


@pytest.mark.parametrize("lacking", [field.name for field in fields(Standing)])
def test_what_lacks_a_field_is_none(lacking):
    saved = Standing(1, 3, 16).to_json()
    assert Standing.from_json(saved | {"more": 1}) == Standing(1, 3, 16)
    del saved[lacking]
    assert Standing.from_json(saved) is None


def test_nothing_is_none():
    assert Standing.from_json(None) is None
    assert Standing.from_json(Standing(1, 3, 16).to_json() | {"data": [1]}) is None
    assert Standing.from_json([1]) is None


def test_training_is_over_after_its_last_epoch_or_when_it_was_stopped():
    standings = [Standing(2, 3, None), Standing(3, 3, None), Standing(2, 3, None, stopped=True)]
    assert [standing.trained for standing in standings] == [False, True, True]


def test_it_says_where_it_is():
    assert str(Standing(2, 3, None)) == "after epoch 2, of 3 epochs"
    assert str(Standing(2, 3, None, step=5)) == "after step 5 of epoch 3, of 3 epochs"


HELD = {"seed": 1, "method": {"learning_rate": 0.1, "clip": None}}


def test_what_may_change_is_told_and_all_else_is_refused():
    other = {"seed": 1, "method": {"learning_rate": 0.2, "clip": None}}
    assert check_same_run(HELD, HELD, ["learning_rate"], 3) == []
    changed = check_same_run(HELD, other, ["learning_rate"], 3)
    assert changed == [{"epoch": 3, "setting": "learning_rate", "from": 0.1, "to": 0.2}]
    with pytest.raises(CheckpointError, match="made with method"):
        check_same_run(HELD, other, ["clip"], 3)
    with pytest.raises(CheckpointError, match="made with seed 1, now it is 2"):
        check_same_run(HELD, HELD | {"seed": 2}, ["clip"], 3)
