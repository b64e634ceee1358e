"""The command; ONNX needs the extra `export`, without which it says so."""

import csv
import sys

import numpy as np
import pytest

import bayesemble as be
from apps.cli.test_tables import QUICK
from bayesemble.apps.compare.source import open_run
from bayesemble.apps.tables.run import open_table, predict_table
from bayesemble.apps.tables.score import score
from comparisons import compared
from helpers import quick_fit, small_mlp
from helpers import table as rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "kinds.csv"
    lines = [f"{i % 17},{'yes' if i % 17 > 8 else 'no'}" for i in range(60)]
    path.write_text("size,kind\n" + "\n".join(lines) + "\n")
    return path


def test_without_the_extra_the_command_names_it(call, table, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert call("fit", table, "--target", "kind", "--out", run, "--num-members", "2", *QUICK)[0] == 0
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "onnx", None)
        code, _, err = call("export", run, "--out", tmp_path / "model")
    assert code == 1
    assert "bayesemble[export]" in err
    assert not (tmp_path / "model").exists()
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    code, out, err = call("export", run, "--out", tmp_path / "model")
    assert code == 0, err
    assert "probs, entropy, aleatoric, epistemic" in out
    assert "score.py new.csv" in out


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "moons"
    compared("two_moons", "map", members=1, epochs=1, seeds=1, out=folder)
    return folder


def test_of_a_comparison_one_run_is_written(call, comparison, tmp_path):
    run = comparison / "runs" / "map" / "seed-0"
    for several in (comparison, run.parent):
        code, _, err = call("export", several, "--out", tmp_path / "model")
        assert code == 1
        assert "holds 1 runs of a comparison; name one of them" in err
        assert str(run) in err.replace("\n", "")
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    assert call("export", run, "--out", tmp_path / "model")[0] == 0
    ensemble, split = open_run(run)
    some = np.asarray(split.x_test[:5], dtype=np.float32)
    found = runtime.InferenceSession(str(tmp_path / "model" / "model.onnx")).run(["probs"], {"inputs": some})
    np.testing.assert_allclose(found[0], ensemble.predict(some).probs, atol=1e-5)
    code, _, err = call("export", run, "--out", tmp_path / "model")
    assert code == 1
    assert "not an empty folder" in err


def test_counts_are_written_without_intervals_and_it_says_so(call, tmp_path):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    table, run = tmp_path / "counts.csv", tmp_path / "run"
    table.write_text("size,count\n" + "\n".join(f"{i % 17},{i % 5}" for i in range(60)) + "\n")
    asked = ("--target", "count", "--task", "count", "--out", run, "--num-members", "2")
    assert call("fit", table, *asked, *QUICK)[0] == 0
    code, out, err = call("export", run, "--out", tmp_path / "model")
    assert code == 0, err
    assert "predictions have no columns low and high" in (out + err).replace("\n", " ")
    score(tmp_path / "model", table, tmp_path / "found.csv")
    predict_table(open_table(run), table, tmp_path / "expected.csv")
    with (tmp_path / "found.csv").open() as found, (tmp_path / "expected.csv").open() as expected:
        for here, there in zip(csv.DictReader(found), csv.DictReader(expected), strict=True):
            for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
                assert float(here[name]) == pytest.approx(float(there[name]), abs=1e-5)


def test_an_ensemble_of_a_network_that_is_not_known_is_refused_with_what_to_do(call, tmp_path):
    quick_fit(be.Task(small_mlp, be.Categorical()), rows()).save(tmp_path / "saved")
    code, _, err = call("export", tmp_path / "saved", "--out", tmp_path / "model")
    assert code == 1
    assert "a network that only your code knows" in err.replace("\n", " ")
