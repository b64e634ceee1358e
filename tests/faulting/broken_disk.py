"""Disks that fail: one with little room, and one on which the n-th step fails."""

import builtins
import ctypes
import io
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch as tensors
from safetensors import SafetensorError

_PRIVATE = 0x00020000  # CLONE_NEWNS


def mounted(folder: Path) -> Path | None:
    """A disk of 400 kB that vanishes with this process; None where mounting is not allowed."""
    folder.mkdir()
    if os.geteuid() or ctypes.CDLL(None, use_errno=True).unshare(_PRIVATE):
        return None
    words = [["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=400k", "none", str(folder)]]
    done = [subprocess.run(["mount", *one], capture_output=True, check=False).returncode for one in words]
    return None if any(done) else folder


@contextmanager
def failing(folder: Path, error: int, call: int, reading: bool = False) -> Iterator[list[int]]:
    """Let one system call for a path in a folder fail; what is left to count down when it is over."""
    left = [call]

    def failed(path: object) -> bool:
        try:
            place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)  # type: ignore
        except (OSError, TypeError):
            return False
        if not str(place).startswith(str(folder)):
            return False
        left[0] -= 1
        return left[0] == -1

    def wrapped(original: Callable[..., Any], where: int = 0) -> Callable[..., Any]:
        def call_or_fail(*args: Any, **kwargs: Any) -> Any:
            if len(args) > where and failed(args[where]):
                raise OSError(error, os.strerror(error), str(args[where]))
            return original(*args, **kwargs)

        return call_or_fail

    def opened(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_or_fail(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if ("r" in mode and "+" not in mode) == reading and failed(path):
                raise OSError(error, os.strerror(error), str(path))
            return original(path, mode, *args, **kwargs)

        return open_or_fail

    def serialised(original: Callable[..., Any]) -> Callable[..., Any]:
        def serialise_or_fail(flat: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            if failed(path):
                Path(path).write_bytes(b"half")
                raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(error)} (os error {error})")
            return original(flat, path, *args, **kwargs)

        return serialise_or_fail

    with patch.object(io, "open", opened(io.open)), patch.object(builtins, "open", opened(builtins.open)):
        if reading:
            yield left
            return
        with (
            patch.object(os, "fsync", wrapped(os.fsync)),
            patch.object(os, "replace", wrapped(os.replace)),
            patch.object(os, "mkdir", wrapped(os.mkdir)),
            patch.object(tensors, "serialize_file", serialised(tensors.serialize_file)),
        ):
            yield left
