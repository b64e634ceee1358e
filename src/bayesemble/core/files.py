"""Files and folders that appear whole or not at all: written under another name, flushed to disk, and renamed."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITING = ".writing-"
"""How the names of files and folders begin that are not whole yet."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write a file or a folder under; at the end it is flushed to disk and takes the place of `path`.

    A killed process leaves all of the new or all of the old; after an error the old is there and nothing beside it.
    """
    temporary = path.with_name(f"{WRITING}{path.name}-{os.getpid()}")
    try:
        yield temporary
        for written in (*(temporary.iterdir() if temporary.is_dir() else ()), temporary):
            flush(written)
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json_text(content) + "\n")


def json_text(content: Any, indent: int | None = 2) -> str:
    """JSON that every reader takes: numbers that are infinite or undefined, which it does not know, become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content
