import sys

import pytest

from bayesemble.apps.compare.plugins import load_plugins
from bayesemble.core.errors import SettingError


@pytest.fixture(autouse=True)
def _forget_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_is_run_once_and_is_a_module_afterwards(tmp_path):
    (tmp_path / "own_methods.py").write_text("import sys\nsys.own_runs = getattr(sys, 'own_runs', 0) + 1\nword = 'a'\n")
    try:
        for _ in range(2):
            load_plugins([str(tmp_path / "own_methods.py")])
        assert sys.own_runs == 1
        assert sys.modules["own_methods"].word == "a"
    finally:
        del sys.own_runs


def test_a_module_is_imported_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "methods.py").write_text("word = 'b'\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins(["own_package.methods"])
    assert sys.modules["own_package.methods"].word == "b"


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("broken.py", "1 / 0\n", r"the plugin .*broken.py cannot be loaded: ZeroDivisionError: division by zero"),
        ("wrong.py", "def\n", r"wrong.py cannot be loaded: SyntaxError"),
        ("absent.py", None, r"absent.py cannot be loaded: FileNotFoundError: .*name a Python file"),
        ("no_such_module", None, r"the plugin no_such_module cannot be loaded: ModuleNotFoundError"),
        ("json.py", "", r"json.py is called like the module json, which is in use; rename it"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_its_reason(tmp_path, monkeypatch, name, code, message):
    monkeypatch.chdir(tmp_path)
    if code is not None:
        (tmp_path / name).write_text(code)
    with pytest.raises(SettingError, match=message):
        load_plugins([name])
    assert name.removesuffix(".py") not in sys.modules or name == "json.py", "no half-loaded module is left"
