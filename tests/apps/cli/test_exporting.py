"""The command; ONNX needs the extra `export`, without which it says so."""

import sys

import pytest

from apps.cli.test_tables import QUICK


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
