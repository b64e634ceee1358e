"""The README is run as a test: every Python block, in order, and every option its commands use."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run_in_order(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")))
    result = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_commands_exist_with_their_options():
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("bayesemble")]
    assert len(lines) == 9
    for line in lines:
        command, *options = [word for word in line.split("#")[0].split()[1:] if word[0] != "-" or word[:2] == "--"]
        shown = subprocess.run(
            [sys.executable, "-m", "bayesemble", command, "-h"], capture_output=True, text=True, check=True
        )
        assert all(option in shown.stdout for option in options if option.startswith("--")), line


def test_the_first_thing_are_the_two_commands():
    assert blocks("bash")[0].split()[:2] == ["make", "demo"]
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert "\ndemo:" in makefile
    assert "\ntest:" in makefile


def test_the_table_of_methods_is_the_registry():
    from bayesemble.methods import METHODS

    assert re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE) == list(METHODS)
