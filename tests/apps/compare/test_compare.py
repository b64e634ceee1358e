"""Comparisons: methods as texts, budgets, going on where they stopped, failures."""

import contextlib
import json
import math
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import bayesemble as be
from bayesemble.apps.compare.job import score_run
from bayesemble.apps.compare.request import read_request
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.compare.source import open_run
from bayesemble.apps.report.comparison import comparison_page
from bayesemble.core.files import read_json, write_json
from comparisons import compared


def scores(comparison):
    return [(result.label, result.seed, result.scores, result.failure) for result in comparison.results]


def test_the_table_and_the_saved_runs_say_the_same(tmp_path):
    options = {"members": 2, "epochs": 2, "seeds": 2, "out": tmp_path}
    comparison = compared("two_moons", "map,deep_ensemble:anchored=true", **options)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["summary"] == json.loads(json.dumps(comparison.summary()))
    assert len(written["results"]) == 4
    for result in written["results"]:
        loaded, split = open_run(tmp_path / result["run"])
        assert score_run(loaded, split) == result["scores"]
        by_library = be.evaluate(loaded, (split.x_test, split.y_test), split.x_ood)
        by_library["aurc"] = be.metrics.aurc(loaded.predict(split.x_test), split.y_test)
        assert by_library == pytest.approx(result["scores"])
        costs = ("train_seconds", "predict_seconds", "gradient_evaluations", "parameters", "peak_memory_mb")
        assert tuple(result["cost"]) == costs


def test_the_data_and_the_command_are_described(tmp_path):
    comparison = compared("digits", "map", members=2, epochs=1, seeds=1, rows=100, out=tmp_path)
    assert comparison.data == {
        "name": "digits",
        "contents": {},
        "kind": "classification",
        "num_train": 100,
        "num_test": 360,
        "num_features": 64,
        "num_classes": 10,
        "ood": True,
        "image_shape": [8, 8],
    }
    assert comparison.command == {
        "data": "digits",
        "ood": None,
        "methods": "map",
        "members": 2,
        "epochs": 1,
        "seeds": 1,
        "batch_size": 64,
        "budget": None,
        "rows": 100,
        "record": False,
    }
    assert asdict(read_request(tmp_path)) == asdict(read_request(tmp_path / "results.json")) == comparison.command


def test_files_are_data_too_and_their_runs_can_be_opened_from_elsewhere(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 2, generator=generator)
    lines = [f"{a},{b},{'in' if a * a + b * b < 1.4 else 'out'}" for a, b in rows.tolist()]
    (tmp_path / "rings.csv").write_text("a,b,place\n" + "\n".join(lines) + "\n")
    (tmp_path / "far.csv").write_text("a,b\n9,9\n-9,9\n")
    monkeypatch.chdir(tmp_path)
    found = compared("rings.csv:place", "map", epochs=2, seeds=1, ood="far.csv", out="here")
    assert found.data["name"] == "rings.csv"
    assert found.data["ood"]
    assert "ood_auroc" in found.results[0].scores
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    (tmp_path / "here").rename(tmp_path / "moved")
    ensemble, split = open_run(tmp_path / "moved" / found.results[0].run)
    assert score_run(ensemble, split) == found.results[0].scores


def test_the_same_command_again_uses_the_finished_runs(tmp_path):
    options = {"members": 2, "epochs": 2, "out": tmp_path}
    first, again = (compared("wine", "map", seeds=1, **options) for _ in range(2))
    assert first == again
    more = compared("wine", "map,deep_ensemble", seeds=2, **options)
    assert more.results[0] == first.results[0], "methods and seeds can be added"
    assert len(more.results) == 4


@pytest.mark.parametrize("change", [{"epochs": 3}, {"batch_size": 32}, {"rows": 50}, {"members": 3}, {"record": True}])
def test_runs_of_other_settings_are_not_mixed_in(tmp_path, change):
    options = {"members": 2, "epochs": 2, "seeds": 1, "out": tmp_path}
    compared("wine", "deep_ensemble", **options)
    with pytest.raises(be.CheckpointError, match=r"seed-0 holds a run of other settings: \w+ was .*, now it is"):
        compared("wine", "deep_ensemble", **(options | change))


def write_rows(path, scale):
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).tolist()
    path.write_text("a,b,y\n" + "".join(f"{a},{b},{scale * (a + b):.4f}\n" for a, b in rows))


def test_finished_runs_are_not_shown_for_data_that_have_changed(tmp_path):
    options = {"epochs": 2, "seeds": 1, "out": tmp_path / "out"}
    data, figure, changed = f"{tmp_path / 't.csv'}:y", "Risk against coverage", r"t\.csv:y is not what it was when"
    write_rows(tmp_path / "t.csv", 1)
    before = compared(data, "map", **options)
    results = (tmp_path / "out" / "results.json").read_text()
    assert figure in comparison_page(tmp_path / "out")
    write_rows(tmp_path / "t.csv", 1000)
    with pytest.raises(be.CheckpointError, match=r"seed-0 holds a run on other rows: .*t\.csv:y has changed since"):
        compared(data, "map", **options)
    assert (tmp_path / "out" / "results.json").read_text() == results
    with pytest.raises(be.CheckpointError, match=changed):
        open_run(tmp_path / "out" / before.results[0].run)
    page = comparison_page(tmp_path / "out")
    assert re.search(changed, page)
    assert figure not in page
    new = compared(data, "map", **(options | {"out": tmp_path / "new"}))
    assert new.results[0].scores["rmse"] > 100 * before.results[0].scores["rmse"]
    with pytest.raises(be.CheckpointError, match=r"different data cannot stand side by side: t\.csv held other rows"):
        comparison_page(tmp_path / "out", tmp_path / "new")
    write_rows(tmp_path / "t.csv", 1)
    assert compared(data, "map", **options) == before, "the file is what it was, though newer"


def test_nor_are_epochs_taken_that_were_timed_on_other_data(tmp_path):
    options = {"epochs": 1, "seeds": 1, "budget": "seconds", "out": tmp_path / "out"}
    for scale, words in ((1, None), (1000, "is the plan of another comparison: contents was")):
        write_rows(tmp_path / "t.csv", scale)
        with pytest.raises(be.CheckpointError, match=words) if words else contextlib.nullcontext():
            compared(f"{tmp_path / 't.csv'}:y", "map", **options)


def test_foreign_data_count_too(tmp_path):
    (tmp_path / "far.csv").write_text("a,b\n9,9\n-9,9\n")
    write_rows(tmp_path / "t.csv", 1)
    options = {"epochs": 1, "seeds": 1, "ood": str(tmp_path / "far.csv"), "out": tmp_path / "out"}
    compared(f"{tmp_path / 't.csv'}:y", "map", **options)
    (tmp_path / "far.csv").write_text("a,b\n8,9\n-9,9\n")
    with pytest.raises(be.CheckpointError, match=r"holds a run on other rows: .*far\.csv has changed since"):
        compared(f"{tmp_path / 't.csv'}:y", "map", **options)


def test_a_method_that_fails_is_a_row_with_its_reason_and_the_rest_goes_on(tmp_path):
    said = []
    methods = "deep_ensemble:weight_decay=0.1,map"
    found = compared("wine", methods, members=2, epochs=1, seeds=2, out=tmp_path, say=said.append)
    failed, fine = found.summary()
    assert failed["method"] == "deep_ensemble:weight_decay=0.1"
    assert "would both shrink the weights" in failed["failure"]
    assert fine["accuracy"]["mean"] > 0
    assert len(said) == 4
    assert said[0].startswith("deep_ensemble:weight_decay=0.1, seed 1 of 2: failed: weight_decay=0.1 and the prior")
    assert Comparison.read(tmp_path) == found


def test_results_of_somebody_else_are_not_replaced(tmp_path):
    (tmp_path / "results.json").write_text('{"mine": 1}')
    with pytest.raises(be.CheckpointError, match="not of this library: it has no checksum"):
        compared("wine", "map", members=2, epochs=1, seeds=1, out=tmp_path)
    assert (tmp_path / "results.json").read_text() == '{"mine": 1}'


def test_a_budget_of_steps_trains_the_single_network_longer(tmp_path):
    options = {"members": 4, "epochs": 2, "seeds": 1, "budget": "steps", "out": tmp_path}
    found = compared("wine", "map,deep_ensemble,emp:num_members=1,training_draws=2", **options)
    assert [result.cost["gradient_evaluations"] for result in found.results] == [2 * 3 * 4] * 3
    lengths = [len(open_run(tmp_path / result.run)[0].history) for result in found.results]
    assert lengths == [8, 2, 4]


def test_a_budget_of_seconds_is_timed_once_and_kept(tmp_path):
    options = {"members": 3, "epochs": 4, "seeds": 1, "budget": "seconds", "out": tmp_path}
    compared("wine", "deep_ensemble:weight_decay=0.1,map", **options)
    plan = read_json(tmp_path / "plan.json")
    assert plan["seconds"] > 0
    assert plan["epochs"].keys() == {"map", "deep_ensemble:weight_decay=0.1"}, "a method that fails does so in its run"
    plan["epochs"]["map"] += 1
    shutil.rmtree(tmp_path / "runs")
    write_json(tmp_path / "plan.json", plan)
    found = compared("wine", "map", **options)
    assert len(open_run(tmp_path / found.results[0].run)[0].history) == plan["epochs"]["map"], (
        "another time gives others"
    )
    others = {"data": "breast_cancer", "rows": 90, "members": 2, "epochs": 5, "batch_size": 16}
    for name, value in others.items():
        with pytest.raises(be.CheckpointError, match=f"plan of another comparison: {name} was .* it is {value}"):
            compared(**({"data": "wine", "methods": "map"} | options | {name: value}))


def wait_until(holds, seconds=200):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def test_a_killed_comparison_goes_on_to_the_result_of_an_undisturbed_one(tmp_path):
    """Two processes work when the first is killed: they end as well, and what they had finished stays."""
    methods, broken = "map,deep_ensemble,swag:num_members=1", tmp_path / "killed"
    command = [sys.executable, "-m", "bayesemble", "compare", "--data", "two_moons", "--methods", methods]
    command += ["--members", "2", "--epochs", "120", "--seeds", "1", "--jobs", "2", "--out", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def unfinished():
        folders = [path.parent for path in broken.glob("runs/*/*/checkpoint-*")]
        return [folder for folder in folders if not (folder / "result.json").exists()]

    wait_until(lambda: any("swag" in folder.parent.name for folder in unfinished()))  # one of the others is done then
    workers = children(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(worker) for worker in workers), seconds=10)
    assert len(workers) >= 2 or not Path("/proc").is_dir()
    finished = {path: path.stat().st_mtime_ns for path in broken.glob("runs/*/*/result.json")}
    assert 0 < len(finished) < 3, "the kill came in the middle"
    assert unfinished()
    known = {result.run: result.failure for result in Comparison.read(broken).results}
    assert len(known) == 3
    reported = {run for run, failure in known.items() if failure is None}
    assert reported <= {str(path.parent.relative_to(broken)) for path in finished}
    assert all("the same command goes on" in failure for failure in known.values() if failure)
    page = comparison_page(broken)
    assert all(label in page for label in methods.split(","))
    assert "of 3 finished" in page
    options = {"members": 2, "epochs": 120, "seeds": 1}
    resumed = compared("two_moons", methods, out=broken, **options)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished, "finished runs are not repeated"
    undisturbed = compared("two_moons", methods, out=tmp_path / "undisturbed", **options)
    assert scores(resumed) == scores(undisturbed), "to the last bit"


def children(parent):
    """Living processes that a process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, started_by = path.read_text().rpartition(")")[2].split()[:2]
            found += [path.parent] if int(started_by) == parent and state != "Z" else []
    return found


def alive(process):
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_regression_is_scored_in_the_units_of_the_target(tmp_path):
    comparison = compared("diabetes", "map", epochs=1, seeds=1, out=tmp_path)
    loaded, split = open_run(tmp_path / comparison.results[0].run)
    predictive = loaded.predict(split.x_test)
    targets = torch.as_tensor(split.y_test)
    expected = be.metrics.rmse(predictive, targets) * split.target_scale
    assert comparison.results[0].scores["rmse"] == pytest.approx(expected, rel=1e-5)
    # A density in other units is divided by the scale.
    log_density = be.metrics.nll(predictive, targets) + math.log(split.target_scale)
    assert comparison.results[0].scores["nll"] == pytest.approx(log_density, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jobs": 0}, "at least one run at a time is needed, got jobs=0"),
        ({"rows": 10**6}, "digits has 1437 training rows"),
        ({"data": "mars"}, "unknown data set 'mars'"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused_at_once(tmp_path, settings, message):
    with pytest.raises((be.SettingError, be.DataError), match=message):
        compared(**({"data": "digits", "methods": "map", "out": tmp_path / "out"} | settings))
    assert not (tmp_path / "out").exists()
