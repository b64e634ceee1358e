import json
import os
import subprocess
import sys

import pytest

import bayesemble
from bayesemble.apps.cli import main
from bayesemble.apps.cli.main import app
from bayesemble.methods import METHODS

COMMANDS = [command.callback.__name__ for command in app.registered_commands]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_comes_within_a_second():
    """A second of processor time: what else the machine does at that moment is not our doing."""
    seconds = []
    for _ in range(3):
        start = os.times()
        result = python("-m", "bayesemble", "--help")
        end = os.times()
        seconds.append(end.children_user + end.children_system - start.children_user - start.children_system)
        assert result.returncode == 0
    assert min(seconds) < 1
    for command in COMMANDS:
        assert command in result.stdout


def test_every_command_has_help_with_an_example_and_speaks_json_without_torch_or_numpy():
    code = f"""
import sys
from typer.testing import CliRunner
from bayesemble.apps.cli.main import app

assert "Example: bayesemble" in CliRunner().invoke(app, ["--help"]).stdout
for command in {COMMANDS}:
    text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"Example: bayesemble {{command}}" in text, command
    assert "--json" in text, command
assert not {{"torch", "numpy", "sklearn"}} & sys.modules.keys()
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare", "--data", "mars"], 1, "error: unknown data set 'mars'; choose one of digits"),
        (["compare", "--methods", "boosting"], 1, "error: unknown method 'boosting'"),
        (["methods", "boosting"], 1, "error: unknown method 'boosting'"),
        (["compare", "--epochs", "-3", "--data", "wine"], 1, "epochs is a whole number from 1 or None, got -3"),
        (["compare", "--members", "0"], 1, "members is a whole number from 1, got 0"),
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
    result = python("-m", "bayesemble", "compare", "--data", "mars", "--out", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith("error: unknown data set 'mars'")
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, tmp_path):
    command = ["score", str(tmp_path / "missing.csv")]
    for words in (["--debug", *command], [*command, "--debug"]):
        monkeypatch.setattr(sys, "argv", ["bayesemble", *words])
        with pytest.raises(bayesemble.DataError, match="is not a file"):
            main.main()
    result = python("-m", "bayesemble", *command, "--debug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A file with a method, as a person writes it."""
    path = tmp_path / "own_method.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "import bayesemble as be\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(be.DeepEnsemble):\n"
        '    """A method of my own."""\n\n\n'
        "be.register(Mine)\n"
    )
    yield path
    sys.modules.pop("own_method", None)
    METHODS.pop("mine", None)


@pytest.mark.parametrize("where", ["first", "last", "one word", "environment"])
def test_a_plugin_brings_a_method_of_ones_own(call, plugin, monkeypatch, where):
    if where == "environment":
        monkeypatch.setenv("BAYESEMBLE_PLUGINS", str(plugin))
    words = {"first": ["--plugin", plugin, "methods"], "last": ["methods", "--plugin", plugin]}
    code, out, err = call(*words.get(where, ["methods", *([f"--plugin={plugin}"] if where == "one word" else [])]))
    assert code == 0, err
    assert "A method of my own." in out


def test_a_plugin_that_is_not_there_is_one_line(call, tmp_path):
    code, _, err = call("methods", "--plugin", tmp_path / "none.py")
    assert code == 1
    assert "none.py cannot be loaded: FileNotFoundError" in err


def test_a_method_of_ones_own_is_compared_in_processes_and_opened_only_with_its_plugin(call, plugin, tmp_path):
    """The processes load the plugin too. What it leaves in folders names the method, never the code."""
    options = ["compare", "--data", "wine", "--methods", "mine,map", "--members", "2", "--epochs", "1", "--seeds", "1"]
    code, out, err = call(*options, "--jobs", "2", "--out", tmp_path / "c", "--json", "--plugin", plugin)
    assert code == 0, err
    assert [row["method"] for row in json.loads(out) if "nll" in row] == ["mine", "map"]
    assert not [path for path in (tmp_path / "c").rglob("*.json") if "own_method" in path.read_text()]
    table = tmp_path / "a.csv"
    table.write_text("a,b\n" + "".join(f"{i},{i * i % 7}.5\n" for i in range(40)))
    options = ["fit", table, "--target", "b", "--method", "mine", "--num-members", "2", "--epochs", "1", "--width", "4"]
    assert call(*options, "--out", tmp_path / "run", "--plugin", plugin)[0] == 0
    assert call("evaluate", tmp_path / "run", "--plugin", plugin)[0] == 0
    assert call("landscape", tmp_path / "c" / "runs" / "mine" / "seed-0", "--resolution", "5", "--epochs", "1")[0] == 0
    refused = in_a_process("evaluate", tmp_path / "run")
    assert refused.returncode == 1
    assert "--plugin FILE" in refused.stderr
    assert in_a_process("report", tmp_path / "c").returncode == 0
    assert "The figures of mine: its run" in (tmp_path / "c" / "report.html").read_text()


def in_a_process(*words):
    """A process that has never heard of the plugin."""
    command = [sys.executable, "-m", "bayesemble", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_error_that_is_not_ours_is_one_line_too(monkeypatch, capsys):
    def broken():
        raise MemoryError("512 TB")

    monkeypatch.setattr(main, "app", broken)
    monkeypatch.setattr(sys, "argv", ["bayesemble", "methods"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: MemoryError: 512 TB; --debug shows where it comes from\n"


def test_version(call):
    assert call("--version")[1].strip() == f"bayesemble {bayesemble.__version__}"
