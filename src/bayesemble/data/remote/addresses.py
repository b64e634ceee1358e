"""Files at an address, such as s3://bucket/houses.csv, memory://houses.csv or github://owner:repo@main/houses.csv.

fsspec knows how to read them, with a package for each kind of place (s3fs, gcsfs, ...). Each process copies a file to
this machine once, and again when the place says that it has changed; the copies go when the process ends.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from bayesemble.core.errors import BayesembleError, DataError
from bayesemble.core.lazy import import_extra

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.+", re.DOTALL)


def is_address(text: str) -> bool:
    """Whether a text names a file by an address rather than by a path."""
    return _ADDRESS.fullmatch(text) is not None


def exists(address: str) -> bool:
    """Whether there is a file at an address; a place that cannot be asked is refused by name."""
    try:
        system, path = _opened(address)
        return bool(system.isfile(path))
    except BayesembleError:
        raise
    except Exception as error:  # each kind of place has errors of its own
        raise _unreadable(address, error) from error


def local_copy(address: str) -> Path:
    """The path of a copy here of the file at an address, under its own name."""
    try:
        system, path = _opened(address)
        key = hashlib.sha256(f"{address} {system.ukey(path)}".encode()).hexdigest()[:16]
        copy = Path(_folder().name) / key / (path.rstrip("/").rpartition("/")[2] or "file")
        if not copy.is_file():
            copy.parent.mkdir(exist_ok=True)
            partial = copy.with_name(".partial")
            system.get_file(path, str(partial))
            partial.replace(copy)
        return copy
    except BayesembleError:
        raise
    except Exception as error:
        raise _unreadable(address, error) from error


def local_file(text: str) -> str:
    """The path of a file here: that of a copy if the text is an address, else the text."""
    return str(local_copy(text)) if is_address(text) else text


def _opened(address: str) -> tuple[Any, str]:
    fsspec = import_extra("fsspec", f"{address} needs fsspec", "'bayesemble[addresses]'")
    system, path = fsspec.core.url_to_fs(address)
    system.invalidate_cache()  # another process may have changed what is there
    return system, path


def _unreadable(address: str, error: Exception) -> DataError:
    reason = str(error).strip() or type(error).__name__
    return DataError(f"{address} cannot be read: {reason}")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where copies lie until this process ends."""
    return tempfile.TemporaryDirectory(prefix="bayesemble-")
