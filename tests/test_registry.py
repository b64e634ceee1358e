"""A method is its file, its test and its line in the registry: all other files that name it are written by a script."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bayesemble
from bayesemble.core.lazy import attach
from bayesemble.methods import METHODS

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("registry", ROOT / "scripts" / "registry.py")
registry = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(registry)

METHOD = '''"""A method that stands in this file."""

from dataclasses import dataclass

from bayesemble.methods.deep_ensemble import DeepEnsemble


@dataclass(frozen=True, kw_only=True)
class Newest(DeepEnsemble):
    """One line that says the idea."""
'''


@pytest.mark.parametrize("name", registry.WRITTEN)
def test_what_is_written_is_what_the_registry_says(name):
    assert ROOT / name not in registry.outdated(ROOT, METHODS), f"{name} is not what the registry says: make registry"


@pytest.fixture
def copy(tmp_path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("scripts/registry.py", *registry.WRITTEN):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_line_in_the_registry_changes_all_that_names_methods(copy):
    (copy / "src/bayesemble/methods/newest.py").write_text(METHOD)
    path = copy / "src/bayesemble/methods/__init__.py"
    text = path.read_text().replace("METHODS: dict", "from bayesemble.methods.newest import Newest\n\nMETHODS: dict")
    assert text.count('    "map": Entry(') == 1
    path.write_text(
        text.replace('    "map": Entry(', '    "newest": Entry(Newest, "an idea", page="new.md"),\n    "map": Entry(')
    )

    command = [sys.executable, "scripts/registry.py"]
    written = subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True).stdout
    assert written.splitlines() == [f"{name} written" for name in registry.WRITTEN]
    assert "| `newest` | an idea: [docs/new.md](docs/new.md) |\n| `map` |" in (copy / "README.md").read_text()
    assert "\n::: bayesemble.methods.newest.Newest\n" in (copy / "docs/reference.md").read_text()
    _, _, public = attach("bayesemble", str(copy / "src/bayesemble/__init__.py"))
    assert sorted({"Newest", *bayesemble.__all__}) == public


def test_the_check_says_what_to_do_and_writes_nothing(copy, monkeypatch, capsys):
    monkeypatch.setattr(registry, "ROOT", copy)
    assert registry.main(["--check"]) == 0
    path = copy / "README.md"
    path.write_text(path.read_text().replace("| `map` | one network", "| `map` | two networks"))
    assert registry.main(["--check"]) == 1
    assert capsys.readouterr().out == "README.md is not what the registry says: run make registry\n"
    assert "two networks" in path.read_text()
    assert registry.main([]) == 0
    assert path.read_text() == (ROOT / "README.md").read_text()


def test_a_file_without_marks_is_refused():
    with pytest.raises(ValueError, match="one 'methods: begin' and one 'methods: end' are needed, found 0"):
        registry.rewritten("# Reference\n", ["line"])
