import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from bayesemble.apps.cli import tables
from bayesemble.data.table_files import read_rows

QUICK = ["--epochs", "3", "--width", "8", "--depth", "0"]


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "houses.csv"
    lines = [f"{i},{i * 7 % 50},{['Rome', 'Oslo', ''][i % 3]},{(i * 7 % 50) + 10 * (i % 3) + 0.5}" for i in range(120)]
    path.write_text("id,size,city,price\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(call, houses, tmp_path):
    code, _, err = call("fit", houses, "--target", "price", "--out", tmp_path / "run", "--num-members", "2", *QUICK)
    assert code == 0, err
    return tmp_path / "run"


def test_from_a_table_to_predictions(call, houses, tmp_path):
    options = ["--target", "price", "--out", tmp_path / "run", "--num-members", "2", *QUICK]
    code, out, err = call("fit", houses, *options)
    assert code == 0
    assert "held-out rows: RMSE" in out
    assert "The 90 % interval held" in out
    assert "3 columns (2 number, 1 category); regression of 'price' by deep_ensemble" in err
    code, out, err = call("predict", tmp_path / "run", houses, "--out", tmp_path / "p.csv", "--keep", "id, city")
    assert code == 0
    assert "Predictions of 120 rows" in out
    assert "note: the target 'price' is in the file; it is not used" in err
    (chunk,) = read_rows(tmp_path / "p.csv")
    assert list(chunk.columns)[:4] == ["row", "id", "city", "mean"]
    code, out, _ = call("evaluate", tmp_path / "run", houses)
    assert "On 120 rows: RMSE" in out
    assert "coverage_90" in out
    code, out, _ = call("diagnose", tmp_path / "run")
    assert "2 of 2 members are distinct functions" in out
    assert "held-out rows: RMSE" in out.splitlines()[-1]


def test_a_column_weighs_rows_and_is_none_to_predict_from(call, houses, tmp_path):
    options = ["--target", "price", "--num-members", "2", *QUICK]
    code, _, err = call("fit", houses, *options, "--weight-column", "size", "--out", tmp_path / "run")
    assert code == 0
    assert "2 columns (1 number, 1 category)" in err
    assert "rows count by 'size'" in err
    code, _, err = call("fit", houses, *options, "--out", tmp_path / "run")
    assert (code, "holds a run with weight_column size, now it is None" in err) == (1, True)
    code, _, err = call("fit", houses, *options, "--weight-column", "city", "--out", tmp_path / "other")
    assert (code, "row 3, column 'city': a number like" in err or "the weight is missing" in err) == (1, True)


def test_the_same_as_json(call, houses, run):
    options = ["--target", "price", "--out", run, "--num-members", "2", *QUICK, "--json"]
    fitted = json.loads(call("fit", houses, *options)[1])
    assert fitted["task"] == "regression"
    assert fitted["train_rows"] + fitted["evaluation"]["rows"] == 120
    predicted = json.loads(call("predict", run, houses, "--out", run.parent / "p.csv", "--json")[1])
    assert predicted["rows"] == 120
    scored = json.loads(call("evaluate", run, "--json")[1])
    assert scored["scores"] == pytest.approx(fitted["evaluation"]["scores"], rel=1e-5)
    examined = json.loads(call("diagnose", run, "--json")[1])
    assert examined["members"]["members"] == 2
    assert examined["evaluation"]["words"] == scored["words"]


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--method", "repulsive", "--repulsion", "0.5"], {"repulsion": 0.5}),
        (["--method=repulsive", "--repulsion=0.5", "--kernel", "laplace"], {"repulsion": 0.5, "kernel": "laplace"}),
        (["--bootstrap"], {"bootstrap": True}),
        (["--bootstrap", "--clip", "none"], {"bootstrap": True, "clip": None}),
        (["--bootstrap", "false", "--learning_rate", "1e-2"], {"bootstrap": False, "learning_rate": 0.01}),
    ],
)
def test_settings_of_the_method_are_flags(call, houses, tmp_path, flags, settings):
    arguments = [*flags, "--num-members", "2", houses, "--target", "price", *QUICK, "--out", tmp_path / "run"]
    code, _, err = call("fit", *arguments)
    assert code == 0, err
    recipe = json.loads((tmp_path / "run" / "table.json").read_text())["job"]["recipe"]
    assert recipe["settings"] == settings | {"num_members": 2}
    assert recipe["epochs"] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["FILE", "--target", "price", "--repulsion", "1"],
            2,
            "--repulsion is no setting of deep_ensemble, which has --num-",
        ),
        (["FILE"], 2, "FILE and --target are needed"),
        (["--target", "price"], 2, "FILE and --target are needed"),
        (["FILE", "--target", "price", "--epochs", "many"], 2, "Invalid value for '--epochs'"),
        (["FILE", "--target", "price", "--method", "forest"], 1, "error: unknown method 'forest'"),
        (["FILE", "--target", "price", "--num-members", "-3"], 1, "num_members is a whole number from 1, got -3"),
        (
            ["FILE", "--target", "price", "--clip", "much"],
            1,
            "error: method 'deep_ensemble': clip is a number above 0 or None, got 'much'",
        ),
        (["FILE", "--target", "cost"], 1, "has no column 'cost'; its columns are 'id', 'size', 'city', 'price'"),
        (
            ["FILE", "--target", "price", "--task", "ranking"],
            1,
            "task is 'regression', 'classification', 'count' or None, got 'ranking'",
        ),
        (["FILE", "--target", "price", "--test", "1.5"], 1, "test is a number in [0, 1), got 1.5"),
        (["none.csv", "--target", "price"], 1, "is not a file"),
        (["--config", "none.json"], 1, "is not a run of `bayesemble fit`"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(call, houses, tmp_path, arguments, code, words):
    filled = [houses if word == "FILE" else word for word in arguments]
    found, out, err = call("fit", *filled, "--out", tmp_path / "run")
    assert found == code
    assert words in err
    assert not out
    assert not (tmp_path / "run").exists()


def test_wrong_folders_and_files_are_one_line(call, run, houses, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("id,size,city\n1,large,Rome\n")
    for arguments, words in (
        (("predict", tmp_path, houses), "it has no table.json"),
        (("evaluate", tmp_path / "none"), "it has no table.json"),
        (("diagnose", houses), "it has no table.json"),
        (("predict", run, bad), "bad.csv, row 2, column 'size'"),
        (("evaluate", run, bad), "lacks 'price'"),
        (("predict", run, houses, "--level", "2"), "level is a probability"),
        (("predict", run, houses, "--out", tmp_path / "no" / "p.csv"), "cannot be written"),
        (("fit", houses, "--target", "price", "--out", houses), "cannot be written: File exists"),
    ):
        code, _, err = call(*arguments)
        assert code == 1, arguments
        assert words in err
        assert "Traceback" not in err
    assert call("predict", run)[0] == 2


def test_a_run_is_repeated_from_its_settings_and_flags_win(call, run, tmp_path):
    before = json.loads((run / "table.json").read_text())
    assert call("fit", "--config", run / "table.json", "--out", tmp_path / "again")[0] == 0
    assert json.loads((tmp_path / "again" / "table.json").read_text()) == before
    options = ["--epochs", "2", "--method", "repulsive", "--seed", "3", "--num-members", "3"]
    assert call("fit", "--config", run, *options, "--out", tmp_path / "other")[0] == 0
    job = json.loads((tmp_path / "other" / "table.json").read_text())["job"]
    assert (job["seed"], job["recipe"]["epochs"], job["recipe"]["width"]) == (3, 2, 8)
    assert job["recipe"]["settings"] == {"num_members": 3}
    code, _, err = call("fit", "--config", run, "--epochs", "9", "--out", tmp_path / "other")
    assert code == 1
    assert "choose another folder" in err


def test_the_bar_shows_rows_where_there_is_a_terminal(call, run, houses, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(tables, "err", Console(file=screen, force_terminal=True, width=80))
    assert call("predict", run, houses, "--out", tmp_path / "p.csv")[0] == 0
    assert "120 rows" in screen.getvalue()
    assert tables._lines(houses) == 121
    assert tables._lines(tmp_path / "p.parquet") is None


def test_control_c_leaves_a_run_that_the_same_command_finishes(call, houses, tmp_path):
    options = [houses, "--target", "price", "--method", "map", "--width", "8", "--batch-size", "4"]
    options = [*map(str, options), "--epochs", "24", "--patience", "24"]
    command = [sys.executable, "-m", "bayesemble", "fit", *options, "--out", str(tmp_path / "run")]

    def listen():  # what a shell starts in the background ignores Ctrl-C, and so would this
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ, preexec_fn=listen)
    for _ in range(600):
        if list(tmp_path.glob("run/checkpoint-*")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err
    assert "training was interrupted after epoch" in call("evaluate", tmp_path / "run")[2]
    assert call("fit", *options, "--out", tmp_path / "run")[0] == 0
    assert "interrupted" not in call("evaluate", tmp_path / "run")[2]


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named(call, houses, tmp_path, device):
    if getattr(torch, device).is_available():
        pytest.skip(f"there is {device} here")
    options = ["--target", "price", "--out", tmp_path / "run", "--num-members", "2", *QUICK, "--device", device]
    code, _, err = call("fit", houses, *options)
    assert code == 1
    assert f"device='{device}' cannot be used here" in " ".join(err.split())
    assert "Traceback" not in err
