"""Files and folders that appear whole or not at all, and files that carry a checksum.

    written    under the name  .writing-NAME-PID@HOST,  flushed to disk, and renamed; what a killed process left under
               such a name is removed when the same file is written again
    sealed     "checksum": the sha256 of all bytes of the file, with zeros in place of the digits of the checksum itself

All JSON that the library reads again is sealed, and so are recordings: a flipped bit, a lost end or an edit is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesemble.core.errors import BayesembleError, CheckpointError

WRITING = ".writing-"
"""How the names of files and folders begin that are not whole yet."""
CHECKSUM = "checksum"
UNSEALED = "0" * 64
"""What stands for the checksum in a file that is not sealed yet."""
_SEAL = re.compile(rf'"{CHECKSUM}": ?"([0-9a-f]{{64}})"'.encode())


# --- writing ---


@contextmanager
def replacing(path: Path, refused: type[BayesembleError] = CheckpointError) -> Iterator[Path]:
    """Give a name to write a file or a folder under; at the end it is flushed to disk and takes the place of `path`.

    A killed process leaves all of the new or all of the old; after an error the old is there and nothing beside it.
    What the system refuses is raised as the error given.
    """
    temporary = path.with_name(f"{WRITING}{path.name}-{process_tag()}")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise refused(f"{path} is a pipe or a device, which would be replaced by a file; choose another name")
    _sweep(path)
    with writable(path, refused):
        try:
            yield temporary
            for written in (*(temporary.iterdir() if temporary.is_dir() else ()), temporary):
                flush(written)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error counts
                shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
            raise


@contextmanager
def writable(path: Path, refused: type[BayesembleError] = CheckpointError) -> Iterator[None]:
    """Say which path it was, why, and how much room there is, if the system refuses what is done inside."""
    try:
        yield
    except OSError as error:
        raise refused(f"{path} cannot be written: {error.strerror or error}{_free_space(path)}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are not there yet."""
    with writable(path):
        path.mkdir(parents=True, exist_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Where what only saves time is kept between runs, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesemble"


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all, in a folder that is made if it is not there."""
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def process_tag() -> str:
    """The mark of this process in names of what it has not finished: `PID@HOST`."""
    return f"{os.getpid()}@{re.sub('[^A-Za-z0-9.-]', '_', platform.node())}"


def is_gone(tag: str) -> bool:
    """Whether the process with that mark was one of this machine and is no more."""
    pid, _, host = tag.partition("@")
    if not re.fullmatch("[0-9]{1,9}", pid) or host != process_tag().partition("@")[2] or os.name == "nt":
        return False
    try:
        os.kill(int(pid), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _sweep(path: Path) -> None:
    """Remove what processes that are gone left of this very file."""
    start = f"{WRITING}{path.name}-"
    with suppress(OSError):
        for leftover in path.parent.iterdir():
            named = leftover.name.startswith(start) and is_gone(leftover.name.removeprefix(start))
            if named and leftover.is_file() and not leftover.is_symlink():
                leftover.unlink()


def _free_space(path: Path) -> str:
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            return f" ({shutil.disk_usage(folder).free / 1e6:,.0f} MB are free there)"
    return ""


# --- checksums ---


def seal(path: Path) -> None:
    """Put the checksum into a file that was written with `UNSEALED` in its place."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = _place(content)
        assert place is not None
        file.seek(place.start)
        file.write(_digest(content, place).encode())


def read_sealed(path: Path) -> bytes:
    """The contents of a file, which are those that were sealed; refused by name if they are not."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    place = _place(content)
    if place is None:
        raise CheckpointError(f"{path} is damaged or not of this library: it has no checksum")
    if _digest(content, place) != content[place].decode():
        raise CheckpointError(
            f"{path} is damaged: its contents are not those that were written. If somebody edited it on purpose: it is "
            "a record of what was done and takes no edits. Restore it, or repeat the command with a new folder"
        )
    return content


def _place(content: bytes | mmap.mmap) -> slice | None:
    """Where the digits of the checksum stand."""
    found = _SEAL.search(content)
    return None if found is None else slice(*found.span(1))


def _digest(content: bytes | mmap.mmap, place: slice) -> str:
    with memoryview(content) as whole:
        digest = hashlib.sha256(whole[: place.start])
        digest.update(UNSEALED.encode())
        digest.update(whole[place.stop :])
    return digest.hexdigest()


# --- JSON ---


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with a checksum, whole or not at all."""
    write_text(path, sealed_json(content))


def sealed_json(content: dict[str, Any]) -> str:
    """JSON with its checksum in front."""
    text = json_text({CHECKSUM: UNSEALED, **content}) + "\n"
    return text.replace(UNSEALED, hashlib.sha256(text.encode()).hexdigest(), 1)


def read_json(path: Path, of: str = "") -> dict[str, Any]:
    """What `write_json` wrote, without the checksum; refused by name if it is anything else.

    If it is not there, its folder is not what it was taken for: "a run of the command line".
    """
    if of and not path.is_file():
        raise CheckpointError(f"{path.parent} is not {of}: it has no {path.name}")
    values = parse_json(path, read_sealed(path))
    values.pop(CHECKSUM, None)
    return values


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """The JSON object that stands in a file, or in a line of it; refused by name if that is anything else."""
    with understood(path):
        values = json.loads(content.decode("utf-8"), parse_constant=_finite_number, parse_float=_finite_number)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} is damaged: a JSON object was expected, got {type(values).__name__}")
        return values


@contextmanager
def understood(path: Path | str, words: str = "is damaged") -> Iterator[None]:
    """Name the file, if what it says makes no sense to what is done inside."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = str(error) if isinstance(error, BayesembleError | ValueError) else repr(error)
        raise CheckpointError(f"{path} {words}: {reason}") from error


def json_text(content: Any, indent: int | None = 2) -> str:
    """JSON that every reader takes: numbers that are infinite or undefined, which it does not know, become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number
