import numpy as np
import pytest

from bayesemble.apps.serve.watch.table import labels_of, watch_table
from bayesemble.apps.tables.profile import PROFILE
from bayesemble.core.errors import DataError
from bayesemble.data.table_files import read_rows
from served_tables import draw_rows, make_run, write_csv


def test_the_same_world_and_another(runs, tmp_path):
    same = watch_table(runs["price"], write_csv(tmp_path / "same.csv", draw_rows(500, 30), "price"))
    assert (same.rows, same.labels, same.alarms, same.first_alarm) == (500, 500, [], None)
    assert same.evaluation.rows == 500
    moved = watch_table(runs["price"], write_csv(tmp_path / "moved.csv", draw_rows(500, 31, shift=1.0), None))
    assert (moved.labels, moved.evaluation, moved.first_alarm) == (0, None, 250)
    assert any("'width'" in words for words in moved.alarms)


def test_labels_may_lack_and_classes_may_be_new(runs, tmp_path):
    rows = draw_rows(100, 32)
    for number, row in enumerate(rows):
        row["kind"] = "" if number < 30 else "priceless" if number < 80 else row["kind"]
    file = write_csv(tmp_path / "rows.csv", rows, "kind")
    known, foreign = labels_of(runs["kind"].schema, next(read_rows(file)))
    assert (np.flatnonzero(known).tolist(), np.flatnonzero(foreign).tolist()) == (
        list(range(80, 100)),
        list(range(30, 80)),
    )
    found = watch_table(runs["kind"], file)
    assert (found.rows, found.labels, found.evaluation.rows) == (100, 70, 20)
    assert any("labels" in words for words in found.alarms)


def test_a_run_without_a_profile_cannot_be_watched(tmp_path):
    run = make_run(tmp_path, "price", num=120)
    (run.folder / PROFILE).unlink()
    with pytest.raises(DataError, match="fit again"):
        watch_table(run, tmp_path / "price-120.csv")
