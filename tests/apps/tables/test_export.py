"""A run as a folder that needs nothing of this library; ONNX needs the extra `export`, without which a test skips."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest

from apps.tables.test_run import recipe, write_table
from bayesemble.apps.tables.description import TableRequest
from bayesemble.apps.tables.export import CODE, copy_code, export_table
from bayesemble.apps.tables.run import fit_table, open_table, predict_table
from bayesemble.core.errors import SettingError

BLOCKED = """
import sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "scipy", "sklearn", "safetensors", "typer", "rich"):
    sys.modules[name] = None
from bayesemble.apps.tables.score import main
assert main.__code__.co_filename.startswith(sys.argv[1])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    request = TableRequest(file=str(write_table(place / "price.csv")), target="price", recipe=recipe(epochs=2))
    fit_table(request, place / "run")
    return open_table(place / "run")


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=without)


def test_the_code_that_is_copied_needs_no_torch_and_nothing_of_the_library(tmp_path):
    copy_code(tmp_path)
    done = python("-c", BLOCKED, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_with_other_things_is_refused(run, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SettingError, match="not an empty folder"):
        export_table(run, tmp_path)


def test_the_scorer_says_what_predict_says(run, tmp_path):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    file, model = run.description.request.file, tmp_path / "model"
    exported = export_table(run, model, level=0.8)
    assert exported.outputs == ["mean", "std", "low", "high", "aleatoric", "epistemic"]
    assert sorted(path.name for path in model.iterdir()) == [CODE, "model.onnx", "schema.json", "score.py"]
    predict_table(run, file, tmp_path / "expected.csv", level=0.8, keep=["id"])
    done = python(model / "score.py", file, "--out", tmp_path / "found.csv", "--keep", "id")
    assert done.stdout == f"Predictions of 150 rows: {tmp_path / 'found.csv'}\n", done.stderr
    expected, found = (read(tmp_path / name) for name in ("expected.csv", "found.csv"))
    assert expected[0] == found[0]
    scale = run.schema.target.scale
    for before, here in zip(expected[1:], found[1:], strict=True):
        numbers = [np.array(cells[2:8], dtype=float) for cells in (here, before)]
        np.testing.assert_allclose(*numbers, rtol=0, atol=1e-5 * scale)
        assert here[:2] + here[8:] == before[:2] + before[8:]
    done = python(model / "score.py", tmp_path / "found.csv", "--out", tmp_path / "never.csv")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "lacks 'size'" in done.stderr


def read(path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))
