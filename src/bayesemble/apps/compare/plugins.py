"""Code of a person that is loaded because the person names it: files or modules that register methods of their own.

Nothing that is read from a run folder names code; only what was written on the command line is ever loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from bayesemble.core.errors import SettingError


def load_plugins(names: Iterable[str]) -> None:
    """Import each file (`methods.py`) or module (`my_package.methods`), unless that was done before."""
    for name in names:
        try:
            _load_file(Path(name).resolve()) if name.endswith(".py") else importlib.import_module(name)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(
                f"the plugin {name} cannot be loaded: {type(error).__name__}: {error}; "
                "name a Python file, or a module that can be imported"
            ) from error


def _load_file(path: Path) -> None:
    """Import a file as the module that its name says, so that what it defines is the same in every process."""
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() != path:
            raise SettingError(f"the plugin {path} is called like the module {path.stem}, which is in use; rename it")
        return
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
