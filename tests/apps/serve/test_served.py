import asyncio
import shutil
import time

import numpy as np
import pytest

from bayesemble.apps.serve.metrics import Metrics
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.rows import RowError, chunk_of_rows
from bayesemble.apps.serve.served import Served, stamp_of
from bayesemble.apps.tables.description import TABLE
from bayesemble.apps.tables.profile import PROFILE
from served_tables import draw_rows, make_run, without_ids


@pytest.fixture
def served(runs, tmp_path):
    opened = []

    def serve(target, **more):
        folder = tmp_path / target
        shutil.copytree(runs[target].folder, folder)
        opened.append(Served(target, folder, Options(**more), Metrics()))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


def answers(served, rows):
    model = served.model
    return asyncio.run(served.answer(model, chunk_of_rows(rows, model.schema, 10_000)))


@pytest.mark.parametrize("target", ["price", "kind"])
def test_answers_have_ids_and_labels_find_their_rows(served, target):
    one, rows = served(target), draw_rows(80, 9)
    found = answers(one, rows)
    ids = [answer["id"] for answer in found]
    assert len(set(ids)) == 80
    labels = [{"id": id, "label": row[target]} for id, row in zip(ids, rows, strict=True)]
    reply = one.feed_back([*labels, {"id": "foreign-1", "label": rows[0][target]}, labels[0]])
    assert (reply["taken"], reply["unknown"]) == (80, ["foreign-1", ids[0]])
    assert one.feed_back(labels[:3])["taken"] == 0  # each row has one label
    state = one.state()
    if target == "kind":
        right = sum(answer["prediction"] == row["kind"] for answer, row in zip(found, rows, strict=True))
    else:
        right = sum(answer["low"] <= row["price"] <= answer["high"] for answer, row in zip(found, rows, strict=True))
    assert (state["labels"], state["hits"]) == (80, right)


def test_labels_that_are_none_are_refused_and_none_is_taken(served):
    one = served("price")
    (answer,) = answers(one, draw_rows(1, 1))
    with pytest.raises(RowError):
        one.feed_back([{"id": answer["id"], "label": 3.0}, {"id": answer["id"], "label": "much"}])
    assert one.feed_back([{"id": answer["id"], "label": 3.0}])["taken"] == 1


def test_a_shift_raises_an_alarm_and_the_same_world_does_not(served):
    one = served("price")
    answers(one, draw_rows(500, 11))
    assert one.state()["watched"]["alarms"] == 0
    answers(one, draw_rows(250, 12, shift=1.5))
    state = one.state()
    assert state["watched"]["alarms"] >= 1
    assert any("'width' is higher" in alarm["words"] for alarm in state["alarms"])
    assert one.metrics.total("bayesemble_alarms_total") == len(state["alarms"])
    assert state["watched"]["words"].startswith("The model may no longer know its world")


def test_labels_of_another_world_raise_an_alarm(served):
    one, rows = served("kind"), draw_rows(250, 13)
    found = answers(one, rows)
    flipped = [
        {"id": a["id"], "label": "cheap" if row["kind"] == "dear" else "dear"}
        for a, row in zip(found, rows, strict=True)
    ]
    one.feed_back(flipped)
    assert any("labels surprise the model more" in alarm["words"] for alarm in one.state()["alarms"])


def test_odd_rows_are_kept_with_their_reasons(served):
    one = served("price")
    rows = draw_rows(30, 1)
    answers(one, [*rows, *({**row, "size": 1e5} for row in rows)])
    state = one.state()
    assert (state["rows"], state["unlike"], len(state["odd"])) == (60, 30, 20)
    assert "'size'" in state["odd"][0]["why"]
    assert state["watched"]["by_column"]["size"] == 30


def test_without_a_profile_it_answers_and_says_that_it_does_not_watch(runs, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(runs["price"].folder, folder)
    (folder / PROFILE).unlink()
    one = Served("old", folder, Options(), Metrics())
    assert len(answers(one, draw_rows(3, 1))) == 3
    state = one.state()
    one.close()
    assert state["watched"] is None
    assert any("not watched" in note for note in state["notes"])


def test_a_run_is_replaced_while_it_answers(served, tmp_path):
    one, rows = served("price"), draw_rows(5, 1)
    before = answers(one, rows)
    old = one.model
    other = make_run(tmp_path, "price", seed=5)
    shutil.rmtree(one.folder)
    shutil.copytree(other.folder, one.folder)
    one.look()  # it has changed, and may change further
    assert one.model is old
    one.look()
    assert (one.model.version, one.trouble) == ("2", "")
    after = answers(one, rows)
    assert without_ids(after) != without_ids(before)
    late = asyncio.run(one.answer(old, chunk_of_rows(rows, old.schema, 10)))  # taken before, computed after
    assert without_ids(late) == without_ids(before)
    assert one.feed_back([{"id": before[0]["id"], "label": 1.0}])["taken"] == 0
    one.look()
    assert one.model.version == "2"


def test_a_folder_that_cannot_be_read_leaves_the_run_before(served):
    one = served("price")
    before = without_ids(answers(one, draw_rows(3, 1)))
    path = one.folder / TABLE
    whole = path.read_bytes()
    path.write_bytes(b"{}")
    for _ in range(3):
        one.look()
    assert "goes on answering" in one.state()["notes"][-1]
    assert one.metrics.total("bayesemble_reloads_total", outcome="failed") == 1
    assert without_ids(answers(one, draw_rows(3, 1))) == before
    path.write_bytes(whole)
    one.look()
    one.look()
    assert (one.model.version, one.trouble) == ("2", "")


def test_stamps_tell_states_of_a_folder_apart(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    first = stamp_of(tmp_path / "a")
    (tmp_path / "a" / ".writing-x").write_text("half")
    assert stamp_of(tmp_path / "a") == first
    time.sleep(0.01)
    (tmp_path / "a" / "x").write_text("2")
    assert stamp_of(tmp_path / "a") != first
    assert stamp_of(tmp_path / "none") == ()


def test_doubt_is_summed_for_prometheus(served):
    one = served("price")
    found = answers(one, draw_rows(10, 1))
    total = sum(answer["std"] for answer in found)
    assert one.metrics.total("bayesemble_doubt_sum") == pytest.approx(total, rel=1e-5)
    assert np.isfinite(total)
