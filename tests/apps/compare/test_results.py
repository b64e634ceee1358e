"""Results of a comparison: means over seeds, failures, and the file they are kept in."""

import math
from dataclasses import asdict

import pytest

import bayesemble as be
from bayesemble.apps.compare.results import Comparison, Result, gather
from bayesemble.core.files import json_text, write_json


def made(*values, failed=()):
    good = [
        Result("a", seed, f"runs/a/seed-{seed}", {"nll": value}, {"parameters": 7}) for seed, value in enumerate(values)
    ]
    bad = [Result(label, 0, "runs/b/seed-0", failure="too large") for label in failed]
    return Comparison({"data": "wine"}, {"name": "wine"}, good + bad)


def test_mean_and_standard_error_over_seeds():
    (row,) = made(1.0, 2.0, 6.0).summary()
    assert row["nll"]["mean"] == 3.0
    assert row["nll"]["error"] == pytest.approx(math.sqrt(7 / 3))
    assert row["parameters"] == {"mean": 7, "error": 0}
    (single,) = made(1.0).summary()
    assert single["nll"] == {"mean": 1.0, "error": None}


def test_a_failed_method_is_a_row_with_its_reason():
    comparison = made(1.0, failed=["b"])
    assert comparison.summary()[1] == {"method": "b", "failure": "too large"}
    assert comparison.labels == ["a", "b"]


def test_a_seed_that_failed_does_not_count():
    comparison = made(1.0, 3.0, failed=["a"])
    assert comparison.summary()[0]["nll"]["mean"] == 2.0


def test_it_is_written_and_read_back(tmp_path):
    comparison = made(1.0, 2.0, failed=["b"])
    comparison.write(tmp_path)
    assert Comparison.read(tmp_path) == comparison
    assert Comparison.read(tmp_path / "results.json") == comparison, "the file will do as well"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    comparison.write(tmp_path / "new" / "folder")
    assert Comparison.read(tmp_path / "new" / "folder") == comparison


RESULT = asdict(Result("a", 0, "runs/a/seed-0", {"nll": 1.0}, {"parameters": 7}))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"command": {}, "data": {}, "results": [{"label": 1}]},
        {"command": [], "data": {}, "results": []},
        {"command": {}, "data": None, "results": []},
        *(
            {"command": {}, "data": {}, "results": [RESULT | {name: value}]}
            for name, value in [
                ("run", "../../etc"),
                ("run", "/etc"),
                ("run", "runs/../../../etc"),
                ("run", None),
                ("label", 5),
                ("scores", {"nll": "0.1"}),
                ("scores", {"nll": None}),
                ("scores", [1]),
                ("cost", {"parameters": True}),
                ("failure", 3),
                ("notes", "text"),
                ("colour", "red"),
            ]
        ),
    ],
    ids=str,
)
def test_other_files_are_refused(tmp_path, content):
    with pytest.raises(be.CheckpointError, match="is not the folder of a comparison"):
        Comparison.read(tmp_path)
    (tmp_path / "results.json").write_text(json_text(content))
    with pytest.raises(be.CheckpointError, match="it has no checksum"):
        Comparison.read(tmp_path)
    write_json(tmp_path / "results.json", content)
    with pytest.raises(be.CheckpointError, match=r"results\.json does not hold a comparison"):
        Comparison.read(tmp_path)


def test_scores_that_are_edited_or_no_numbers_of_json_are_refused(tmp_path):
    made(1.25).write(tmp_path)
    text = (tmp_path / "results.json").read_text()
    for value in ("0.25", "NaN", '"good"'):
        (tmp_path / "results.json").write_text(text.replace("1.25", value))
        with pytest.raises(be.CheckpointError, match=r"results\.json is damaged.*takes no edits"):
            Comparison.read(tmp_path)


def test_comparisons_and_single_runs_are_gathered(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / "runs/a/seed-1").mkdir(parents=True)
        made(1.0, 2.0, failed=["b"]).write(tmp_path / name)
    alone = gather([tmp_path / "one"])
    assert alone.labels == ["a", "b"]
    assert alone.results[0].run == str((tmp_path / "one/runs/a/seed-0").resolve())
    (single,) = gather([tmp_path / "one/runs/a/seed-1"]).results
    assert single.scores == {"nll": 2.0}
    both = gather([tmp_path / "one/runs/a/seed-1", tmp_path / "other", tmp_path / "one"])
    assert sorted(both.labels) == ["one/a", "one/b", "other/a", "other/b"]
    assert len(both.results) == 6


def test_other_folders_and_other_data_are_not_gathered(tmp_path):
    with pytest.raises(be.CheckpointError, match="neither the folder of a comparison nor a run of one"):
        gather([tmp_path])
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        Comparison({}, {"name": name}, made(1.0).results).write(tmp_path / name)
    with pytest.raises(be.CheckpointError, match="different data cannot stand side by side: one and other"):
        gather([tmp_path / "one", tmp_path / "other"])


def test_seeds_of_one_method_have_the_same_scores_and_costs():
    results = [
        Result("a", seed, "", {"nll": 1.0}, {cost: 7.0}) for seed, cost in enumerate(("parameters", "parbmeters"))
    ]
    with pytest.raises(be.CheckpointError, match="the results of 'a' have different scores or costs"):
        Comparison({}, {}, results)
