import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bayesemble
from bayesemble.core.errors import MissingExtraError
from bayesemble.core.lazy import attach, import_extra
from helpers import with_tests_on_path

PACKAGE = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from own import room as room
    from own.room import thing as thing
    from own.room import thing as other
    from own import broken as broken
    from own import hungry as hungry
    from own.room import missing as missing
else:
    from bayesemble.core.lazy import attach

    __getattr__, __dir__, __all__ = attach(__name__, __file__)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package with a module that works, one that fails while it is imported, and one that needs another."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "room.py").write_text("times = []\ntimes.append('imported')\nthing = object()\n")
    (folder / "broken.py").write_text("raise ValueError('the inside of the module')\n")
    (folder / "hungry.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own

    yield own
    for name in [name for name in sys.modules if name == "own" or name.startswith("own.")]:
        del sys.modules[name]


def test_names_are_modules_and_what_is_in_them(own):
    assert "own.room" not in sys.modules, "nothing is imported before it is used"
    assert own.thing is sys.modules["own.room"].thing
    assert own.room is sys.modules["own.room"]


def test_a_name_may_have_another_name_at_home(own):
    assert own.other is own.thing
    assert "other" not in vars(own.room)


def test_a_name_that_was_found_is_kept(own):
    assert "thing" not in vars(own)
    found = own.thing
    own.room.thing = "another"
    assert own.thing is found is vars(own)["thing"]
    assert own.room.times == ["imported"]


def test_all_and_dir_are_the_promised_names(own):
    names = ["broken", "hungry", "missing", "other", "room", "thing"]
    assert own.__all__ == dir(own) == names


def test_an_unknown_name_is_refused(own):
    with pytest.raises(AttributeError, match=r"^module 'own' has no attribute 'nothing'$"):
        own.nothing  # noqa: B018
    assert not hasattr(own, "attach_more")


def test_a_promise_that_is_not_kept_is_told(own):
    with pytest.raises(AttributeError, match="missing"):
        own.missing  # noqa: B018


def test_a_module_that_fails_inside_is_not_hidden(own):
    with pytest.raises(ValueError, match="the inside of the module"):
        own.broken  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        own.hungry  # noqa: B018


def test_only_imports_under_the_condition_are_promised(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("import os\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import json\n    x = 1\n")
    assert attach("some", str(path))[2] == []


def test_the_package_promises_what_type_checkers_read():
    tree = ast.parse(Path(bayesemble.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert bayesemble.__all__ == sorted(alias.asname for node in block.body for alias in node.names)
    assert dir(bayesemble) == bayesemble.__all__


def test_the_package_is_there_before_torch():
    heavy = "('torch', 'sklearn', 'scipy', 'numpy', 'matplotlib', 'bayesemble.task')"
    code = f"import sys, bayesemble; assert bayesemble.__version__; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], env=with_tests_on_path(), check=False).returncode == 0


def test_what_an_extra_brings_is_imported_or_named(monkeypatch):
    assert import_extra("json.decoder", "texts need json", "'json'") is sys.modules["json.decoder"]
    monkeypatch.setitem(sys.modules, "json.decoder", None)
    with pytest.raises(MissingExtraError, match="texts need json, which is not here: pip install 'json'"):
        import_extra("json.decoder", "texts need json", "'json'")
