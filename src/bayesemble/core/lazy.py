"""What is imported when it is first used: `import bayesemble` must not wait for torch, nor need what extras bring."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesemble.core.errors import MissingExtraError


def import_extra(module: str, need: str, advice: str) -> Any:
    """Import a module that an extra brings, or say what needs it and what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{need}, which is not here: pip install {advice}") from error


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package from the imports under its `if TYPE_CHECKING:`."""
    origins = _promised(Path(file).read_text(encoding="utf-8"))

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origins[name]
        try:
            value = importlib.import_module(f"{module}.{original}")
        except ModuleNotFoundError as error:
            if error.name != f"{module}.{original}":
                raise
            value = getattr(importlib.import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(origins), sorted(origins)


def _promised(source: str) -> dict[str, tuple[str, str]]:
    """Where each name comes from: (module, name there)."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
