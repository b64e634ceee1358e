"""One writer at a time: whoever writes into a run folder holds its lock file.

    RUN/.bayesemble-lock    process and host, since when

What counts is the lock of the kernel on the file (flock), which ends with its process, however that ends. Where there
are no such locks, the process in the file counts as long as it lives. Readers never need it.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import is_gone, make_folder, process_tag, writable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".bayesemble-lock"
PATIENCE = 2.0
"""Seconds that another process is waited for: it may be about to end, as workers of a killed comparison are."""
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_holders: dict[Path, tuple[int, int]] = {}  # the process and the thread that hold a folder, as far as is known here
_turn = threading.Lock()


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a run folder, which is made if it is not there; refused if another process or thread holds it.

    As the lock is written to disk, a folder that cannot be written to is noticed here. A thread that holds the folder
    already may enter again.
    """
    root = Path(os.path.realpath(folder))
    if _holders.get(root) == _this_thread():
        yield
        return
    is_new = not root.exists()
    make_folder(root)
    try:
        handle = _wait_for(root)
        try:
            yield
        finally:
            _release(root, handle)
    finally:
        if is_new:
            with suppress(OSError):  # unless something was put into it
                root.rmdir()


def holding(
    argument: str, unless: Callable[[dict[str, Any]], bool] = lambda _: False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Hold the run folder that a function is given under this name, if it is given one, while it runs.

    `unless` says, from all arguments by name, whether somebody else holds it for the function.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def held(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            given = dict(zip(names, args, strict=False)) | kwargs
            folder = given.get(argument)
            if not isinstance(folder, str | os.PathLike) or unless(given):
                return function(*args, **kwargs)
            with locked(folder):
                return function(*args, **kwargs)

        return held

    return decorate


def _this_thread() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def _wait_for(root: Path) -> int:
    """Take the lock and give a handle of its file."""
    end = time.monotonic() + PATIENCE
    while True:
        with _turn, writable(root):
            here = _holders.get(root, (0, 0))[0] == os.getpid()
            taken = (root / LOCK).read_text(errors="replace") if here else _take(root / LOCK)
            if isinstance(taken, int):
                _holders[root] = _this_thread()
                return taken
        if here or time.monotonic() > end:
            raise CheckpointError(
                f"{root} is being written by {taken or 'another process'}; wait for its end, or choose another folder. "
                f"If there is no such process any more, remove {root / LOCK}"
            )
        time.sleep(0.05)


def _take(path: Path) -> int | str:
    """A handle of the lock file, locked and with our name in it; or the name of its owner."""
    while True:
        handle, ours = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666), False
        try:
            owner = os.read(handle, 1000).decode(errors="replace")
            if not _lock(handle, owner):
                os.close(handle)
                return owner
            ours = _is_at(path, handle)
            if ours:  # else its last holder has removed it since
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, f"process {process_tag()} since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
                os.fsync(handle)
                return handle
        except OSError:
            if ours:
                with suppress(OSError):  # a lock that cannot be written is nobody's
                    path.unlink()
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, owner: str) -> bool:
    """Whether the file is ours now: by the kernel's lock, or where it has none, if its owner is gone."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:  # not every file system has locks
            pass
    return not owner or is_gone(owner.removeprefix("process ").partition(" ")[0])


def _release(root: Path, handle: int) -> None:
    path = root / LOCK
    with _turn:
        del _holders[root]
        with suppress(OSError):
            os.ftruncate(handle, 0)  # where an open file cannot be removed, an empty one is nobody's
            if _is_at(path, handle):
                path.unlink()
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
