import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

import bayesemble
from bayesemble.apps.cli import main
from bayesemble.apps.cli.main import app
from bayesemble.core.errors import BayesembleError


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bayesemble", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


def test_help_comes_within_a_second_and_without_torch():
    """A second of processor time: what else the machine does at that moment is not our doing."""
    seconds = []
    for _ in range(3):
        start = os.times()
        result = run("--help")
        end = os.times()
        seconds.append(end.children_user + end.children_system - start.children_user - start.children_system)
        assert result.returncode == 0
    assert min(seconds) < 1
    for command in ("compare", "methods", "datasets", "score"):
        assert command in result.stdout
    code = "import sys, bayesemble.apps.cli.main; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_command_has_help_with_an_example_and_speaks_json(call):
    assert "Example: bayesemble" in call("--help")[1]
    for command in app.registered_commands:
        text = call(command.callback.__name__, "--help")[1]
        assert "Example: bayesemble" in text, command
        assert "--json" in text, command


def test_methods_and_datasets_as_tables_and_as_json(call):
    assert "deep_ensemble" in call("methods")[1]
    assert {row["method"] for row in json.loads(call("methods", "--json")[1])} == set(bayesemble.METHODS)
    settings = {row["setting"]: row for row in json.loads(call("methods", "deep_ensemble", "--json")[1])}
    assert settings["num_members"]["default"] == "5"
    assert all(row["meaning"] for row in settings.values())
    assert "digits" in call("datasets")[1]
    assert len(json.loads(call("datasets", "--json")[1])) == 7


def test_compare_prints_a_table_and_where_the_results_are(call, tmp_path):
    methods = "map,deep_ensemble:bootstrap=true"
    options = ["--data", "wine", "--methods", methods, "--epochs", "2", "--seeds", "2", "--jobs", "1", "--members", "2"]
    code, shown, complaints = call("compare", *options, "--out", tmp_path / "results", columns=80)
    assert code == 0, complaints
    for words in ("accuracy", "NLL", "ECE", "bootstrap=true", "±", "results.json"):
        assert words in shown
    assert max(len(line) for line in shown.splitlines() if "results/" not in line) <= 80
    folders = sorted(path.parent.name + "/" + path.name for path in (tmp_path / "results" / "runs").glob("*/*"))
    assert folders == [
        "deep_ensemble-bootstrap=true/seed-0",
        "deep_ensemble-bootstrap=true/seed-1",
        "map/seed-0",
        "map/seed-1",
    ]
    again = call("compare", *options, "--out", tmp_path / "results", "--json")[1]
    assert [row["method"] for row in json.loads(again)] == ["map", "deep_ensemble:bootstrap=true"]


def invoke(*arguments: str) -> Any:
    """The command in this process, which has torch already."""
    return CliRunner().invoke(app, list(arguments))


def test_an_earlier_comparison_is_repeated_from_its_results(tmp_path):
    options = ["--data", "wine", "--methods", "map,deep_ensemble:weight_decay=0.1", "--epochs", "3", "--rows", "60"]
    first = invoke(
        "compare", *options, "--seeds", "1", "--batch-size", "32", "--jobs", "1", "--out", str(tmp_path / "one")
    )
    assert first.exit_code == 0, first.output
    assert "deep_ensemble:weight_decay=0.1: failed: weight_decay=0.1 and the prior" in first.stdout
    config = ["--config", str(tmp_path / "one" / "results.json"), "--jobs", "1", "--json"]
    assert invoke("compare", *config, "--out", str(tmp_path / "two")).exit_code == 0
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["command"] == one["command"]
    assert [row["scores"] for row in two["results"]] == [row["scores"] for row in one["results"]]
    other = invoke("compare", *config, "--methods", "map", "--epochs", "2", "--out", str(tmp_path / "three"))
    assert other.exit_code == 0, other.output
    found = json.loads((tmp_path / "three" / "results.json").read_text())["command"]
    assert found == one["command"] | {"methods": "map", "epochs": 2}, "what is given wins"


def test_a_comparison_in_which_nothing_worked_ends_with_an_error_code(tmp_path):
    options = ["--data", "wine", "--methods", "deep_ensemble:weight_decay=0.1", "--seeds", "1", "--jobs", "1"]
    result = invoke("compare", *options, "--out", str(tmp_path), "--json")
    assert result.exit_code == 1
    assert "would both shrink the weights" in json.loads(result.stdout)[0]["failure"]
    assert "failed: weight_decay=0.1" in result.stderr


def test_predictions_made_elsewhere_are_scored(call, tmp_path):
    (tmp_path / "own.csv").write_text("p_cat,p_dog,target\n0.9,0.1,cat\n0.2,0.8,dog\n")
    (tmp_path / "other.csv").write_text("p_cat,p_dog\n0.5,0.5\n0.45,0.55\n")
    files = [str(tmp_path / "own.csv"), "--ood", str(tmp_path / "other.csv")]
    found = json.loads(call("score", *files, "--json")[1])
    assert found["accuracy"] == 1.0
    assert found["ood_auroc"] == 1.0
    shown = call("score", *files, columns=120)[1]
    assert all(name in shown for name in found)
    assert "lower is better" in shown
    code, _, complaints = call("score", tmp_path / "missing.csv")
    assert code == 1
    assert "is not a file" in complaints


def test_the_widest_table_fits_into_eighty_columns():
    from rich.console import Console

    from bayesemble.apps.cli.main import comparison_table
    from bayesemble.apps.compare.results import Comparison, Result

    scores = {"accuracy": 0.9713, "nll": 0.1123, "ece": 0.0234, "ood_auroc": 0.8765}
    label = "deep_ensemble:adversarial=0.05"
    cost = {"train_seconds": 123.4}
    results = [Result(label, seed, "", {k: v + seed / 20 for k, v in scores.items()}, cost) for seed in (0, 1)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table(Comparison({"data": "digits", "epochs": 20, "seeds": 2}, {}, results)))
    text = console.export_text()
    assert "…" not in text
    for words in ("accuracy ↑", "0.996±0.025", "0.137±0.025", "0.048±0.025", "0.901±0.025", "123.4", "sec"):
        assert words in text, words


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare", "--data", "mars"], 1, "error: unknown data set 'mars'; choose one of digits"),
        (["compare", "--methods", "boosting"], 1, "error: unknown method 'boosting'"),
        (["methods", "boosting"], 1, "error: unknown method 'boosting'"),
        (["compare", "--epochs", "-3", "--data", "wine"], 1, "epochs must be a whole number from 1, got -3"),
        (["compare", "--members", "0"], 1, "at least one member, got num_members=0"),
        (["compare", "--epochs", "many"], 2, "Invalid value for '--epochs'"),
        (["predict-the-future"], 2, "No such command"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(call, arguments, code, words, tmp_path):
    extra = ["--out", tmp_path] if arguments[0] == "compare" else []
    found, shown, complaints = call(*arguments, *extra)
    assert found == code
    assert words in complaints
    assert not shown


def test_the_process_of_a_command_that_failed_ends_with_its_code(tmp_path):
    result = run("compare", "--data", "mars", "--out", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith("error: unknown data set 'mars'")
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, tmp_path):
    command = ["score", str(tmp_path / "missing.csv")]
    for words in (["--debug", *command], [*command, "--debug"]):
        monkeypatch.setattr(sys, "argv", ["bayesemble", *words])
        with pytest.raises(BayesembleError, match="is not a file"):
            main.main()
    result = run(*command, "--debug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_an_error_that_is_not_ours_is_one_line_too(monkeypatch, capsys):
    def broken(words):
        raise MemoryError("512 TB")

    monkeypatch.setattr(main, "app", broken)
    monkeypatch.setattr(sys, "argv", ["bayesemble", "methods"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: MemoryError: 512 TB; --debug shows where it comes from\n"


def test_version():
    assert run("--version").stdout.strip() == f"bayesemble {bayesemble.__version__}"
