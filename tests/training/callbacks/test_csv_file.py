import csv

import pytest

import bayesemble as be
from bayesemble.training.callbacks import CSV
from helpers import quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


def read(path):
    with path.open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def expected(history):
    return [be.callbacks.figures(row) for row in history]


def test_the_file_has_the_history_and_a_resumed_run_goes_on_with_it(tmp_path):
    path, folder = tmp_path / "log.csv", tmp_path / "run"
    first = quick_fit(TASK, table(32), callbacks=[CSV(path)], checkpoint=folder, validation=table(8))
    assert read(path) == expected(first.history)
    with pytest.raises(be.SettingError, match="exists, and a new run would replace it"):
        quick_fit(TASK, table(32), callbacks=[CSV(path)])
    longer = quick_fit(
        TASK, table(32), callbacks=[CSV(path)], checkpoint=folder, validation=table(8), epochs=4, resume=True
    )
    assert read(path) == expected(longer.history)
    assert [row["epoch"] for row in read(path)] == [1, 2, 3, 4]


def test_each_epoch_is_there_when_it_ends_and_new_columns_find_their_place(tmp_path):
    log, fitted = CSV(tmp_path / "log.csv"), quick_fit(TASK, table(32), epochs=1)
    log.on_start(be.Ensemble(fitted.task, fitted.method, fitted.state, fitted.executor, 0))
    log.on_epoch(fitted.state, {"epoch": 1, "loss": [1.0]})
    log.on_epoch(fitted.state, {"epoch": 2, "loss": [0.5]})
    assert read(log.path)[1] == {"epoch": 2, "loss/mean": 0.5, "loss/0": 0.5}
    log.on_epoch(fitted.state, {"epoch": 3, "loss": [0.25], "extra": 7})
    assert [row.get("extra") for row in read(log.path)] == [None, None, 7]
