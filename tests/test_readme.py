"""The README is run as a test: every Python block, in order, and every option its commands use."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bayesemble.apps.cli.main import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run_in_order(tmp_path, monkeypatch):
    """In one go, as a reader would run them, but for a few epochs each."""
    monkeypatch.chdir(tmp_path)
    text, shortened = re.subn(r"\bepochs=\d+", "epochs=8", "\n".join(blocks("python")))
    assert shortened >= 6
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    exec(compile(text, "README.md", "exec"), vars(module))


def test_the_commands_exist_with_their_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("bayesemble")]
    assert len(lines) == 13
    for line in lines:
        command, *options = [word for word in line.split("#")[0].split()[1:] if word[0] != "-" or word[:2] == "--"]
        with pytest.raises(SystemExit) as end:
            app([command, "-h"])
        assert end.value.code == 0
        shown = capsys.readouterr().out
        assert all(option in shown for option in options if option.startswith("--")), line


def test_the_first_thing_are_the_two_commands():
    assert blocks("bash")[0].split()[:2] == ["make", "demo"]
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert "\ndemo:" in makefile
    assert "\ntest:" in makefile
