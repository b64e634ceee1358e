import json
import math

import pytest
import torch

import bayesemble as be
from bayesemble.compare import compare, parse_methods, score
from bayesemble.runs import open_run


def test_settings_after_a_colon_belong_to_their_method():
    entries = parse_methods("map, deep_ensemble:bootstrap=true,learning_rate=0.01,deep_ensemble:clip=1", members=7)
    assert [entry.label for entry in entries] == [
        "map",
        "deep_ensemble:bootstrap=true,learning_rate=0.01",
        "deep_ensemble:clip=1",
    ]
    assert entries[0].method == be.DeepEnsemble(num_members=1)
    assert entries[1].method == be.DeepEnsemble(num_members=7, bootstrap=True, learning_rate=0.01)
    assert entries[2].method == be.DeepEnsemble(num_members=7, clip=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no method was named; choose from map, deep_ensemble"),
        ("boosting", "unknown method 'boosting'; choose one of map"),
        ("clip=1,map", "stands before any method"),
        ("deep_ensemble:clip", "written key=value, got 'clip'"),
        ("deep_ensemble:colour=red", "has no setting 'colour'; it has num_members"),
        (
            "deep_ensemble:learning_rate=fast",
            "'learning_rate' of 'deep_ensemble' must be .*float.*got 'fast'",
        ),
        ("deep_ensemble:bootstrap=3", "must be .*bool.*got 3"),
        ("map:num_members=4", "always has num_members=1"),
        ("map,map", "compared once"),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(be.SettingError, match=message):
        parse_methods(text, members=5)


def test_the_table_and_the_saved_runs_say_the_same(tmp_path):
    options = {"members": 2, "epochs": 2, "seeds": 2, "out": tmp_path, "progress": False}
    comparison = compare("two_moons", "map,deep_ensemble:anchored=true", **options)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["summary"] == json.loads(json.dumps(comparison.summary()))
    for result in written["results"]:
        loaded, split = open_run(tmp_path / result["run"])
        assert score(loaded, split) == pytest.approx(result["scores"])
        by_library = be.evaluate(loaded, (split.x_test, split.y_test), split.x_foreign)
        assert by_library == pytest.approx(result["scores"])


def test_the_same_command_again_uses_the_finished_runs(tmp_path):
    options = {"members": 2, "epochs": 2, "seeds": 1, "out": tmp_path, "progress": False}
    first, again = (compare("wine", "map", **options) for _ in range(2))
    assert first == again


def test_regression_is_scored_in_the_units_of_the_target(tmp_path):
    comparison = compare("diabetes", "map", epochs=1, seeds=1, out=tmp_path, progress=False)
    loaded, split = open_run(tmp_path / comparison.results[0].run)
    predictive = loaded.predict(split.x_test)
    targets = torch.as_tensor(split.y_test)
    expected = be.metrics.rmse(predictive, targets) * split.target_scale
    assert comparison.results[0].scores["rmse"] == pytest.approx(expected, rel=1e-5)
    # A density in other units is divided by the scale.
    log_density = be.metrics.nll(predictive, targets) + math.log(split.target_scale)
    assert comparison.results[0].scores["nll"] == pytest.approx(log_density, rel=1e-4)


def test_no_seeds_are_refused():
    with pytest.raises(be.SettingError, match="at least one seed is needed, got 0"):
        compare(seeds=0)
