import pytest

from bayesemble.core.errors import CheckpointError
from bayesemble.training.run_folders.same_run import check_same_run

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
