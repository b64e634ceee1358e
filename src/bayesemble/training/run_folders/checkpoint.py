"""Run folders: written so that a run killed at any moment can be loaded and resumed.

    RUN/checkpoint-000012/manifest.json        sizes and sha256 of the three files below
                         /run.json             task, method, settings, seeds, versions, progress
                         /state.safetensors    every tensor of the state but a named backbone, and what the steps of an
                                               epoch under way told
                         /history.jsonl        one row per epoch

Where several processes hold the members, each writes a file of its own: see `shards.py`.

A checkpoint is written into a temporary folder, flushed to disk, and appears under its name by one rename; older
ones, but for the one before it, go only after that. Nothing in it is executable and no path in it is followed. Only
folders with these names and with nothing but these files inside are ever removed. Who writes holds the folder
(`run_lock.py`); who reads needs no lock.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import (
    WRITING,
    flush,
    is_gone,
    json_text,
    make_folder,
    parse_json,
    process_tag,
    read_json,
    replacing,
    sealed_json,
    understood,
    writable,
)
from bayesemble.core.members import Members, State
from bayesemble.training.run_folders.shards import TOLD, Shards, in_order, is_shard, joined, span_of
from bayesemble.training.run_folders.tensor_files import UNNAMED, read_tensors, write_tensors

RUN, TENSORS, HISTORY, MANIFEST = "run.json", "state.safetensors", "history.jsonl", "manifest.json"
KEEP = 2
"""How many checkpoints a run keeps: if the newest is damaged, it goes on from the one before."""
_NAME = re.compile(r"checkpoint-([0-9]+)")
_HALF_WRITTEN = re.compile(rf"{re.escape(WRITING)}checkpoint-[0-9]+-([0-9]+@[A-Za-z0-9._-]*)")
_VANISHING = 100  # times that a checkpoint may be replaced while it is read
_TOLD, _CENTERS = TOLD, "centers/"

Row = dict[str, Any]
_Expected = dict[str, tuple[int, str]]  # size and sha256 by the name of a file


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run folder holds."""

    run: dict[str, Any]
    state: State
    history: list[Row]
    best: State | None = None
    told: dict[str, Tensor] = field(default_factory=dict)
    """What the steps of an epoch that is under way told, `(step, member)`."""
    centers: dict[str, Tensor] = field(default_factory=dict)
    """The weights that the prior stands around, if it does."""
    cut: bool = False
    """Whether it has those members alone that were asked for."""

    @property
    def kept(self) -> Checkpoint:
        """The same with the state that `fit` returned, or would have: the best, if that was asked for."""
        return replace(self, state=self.best or self.state)


def exists(folder: str | Path) -> bool:
    """Whether there is a finished checkpoint in the folder."""
    return _newest(Path(folder)) is not None


def tidy(folder: str | Path, keep: int = KEEP) -> None:
    """Remove what killed processes of this machine left half written, and finished checkpoints but the newest.

    Whoever calls it holds the folder (`locked`), so that nobody is writing what looks half written.
    """
    root = Path(folder)
    finished = [path for path in _all(root) if (path / MANIFEST).is_file()]
    for old in filter(_is_ours, finished[:-keep]):
        old.replace(root / f"{WRITING}{old.name}-{process_tag()}")  # so that a kill leaves no half of it under its name
    for leftover in root.glob(f"{WRITING}*"):
        tag = _HALF_WRITTEN.fullmatch(leftover.name)
        over = tag is not None and (tag[1] == process_tag() or is_gone(tag[1]))
        if over and leftover.is_dir() and _holds_only_ours(leftover):
            shutil.rmtree(leftover)


def _is_ours(folder: Path) -> bool:
    """Whether a folder is a checkpoint, of which the manifest tells, and holds nothing else."""
    try:
        _read_manifest(folder / MANIFEST)
    except CheckpointError:
        return False
    return _holds_only_ours(folder)


def _holds_only_ours(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()} - {*_FILES, MANIFEST}
    return all(is_shard(name) or UNNAMED.fullmatch(name) for name in names)


def write(folder: str | Path, checkpoint: Checkpoint, keep: int = KEEP, shards: Shards | None = None) -> None:
    """Add a checkpoint to a run folder; on return it is on disk, and of the older ones all but `keep - 1` are gone.

    With `shards`, several processes write it together, each its own members.
    """
    root = Path(folder)
    if shards is not None and not shards.team.is_first:
        with writable(root):
            shards.add(root, _tensors(checkpoint))
        return
    make_folder(root)
    with writable(root):
        tidy(root, keep)
        newest = _newest(root)
        number = 1 if newest is None else _number(newest) + 1
        with replacing(root / f"checkpoint-{number:06d}") as temporary:
            temporary.mkdir()
            _write_files(temporary, checkpoint, number, shards)
        flush(root)
        tidy(root, keep)
    if shards is not None:
        shards.wait()


def read(folder: str | Path, mapped: bool = False) -> Checkpoint:
    """Read the newest checkpoint of a run folder; name the file that is missing, damaged or foreign.

    If somebody replaces the checkpoint while it is read, the one that took its place is read. Mapped tensors are
    views of the file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a folder; pass the folder given to fit(checkpoint=...) or save(...)")
    for _ in range(_VANISHING):
        newest = _newest(root) or (root if (root / MANIFEST).is_file() else None)
        if newest is None:
            break
        try:
            return _read(newest, mapped)
        except CheckpointError:
            if newest.is_dir():
                raise
    found = ", ".join(sorted(path.name for path in root.iterdir())[:5]) or "nothing"
    raise CheckpointError(f"{root} is not a run folder: it needs a checkpoint-NNNNNN inside, it holds {found}")


def recover(folder: str | Path, mapped: bool = False, part: range | None = None) -> Checkpoint:
    """Read the newest checkpoint of a run folder that is whole; where a newer one is not, a warning says so.

    With `part`, one of several processes reads the members with these numbers, if they can be told from others.
    """
    found, damaged = None, None
    for path in reversed(_all(Path(folder))):
        try:
            found = _read(path, mapped, part)
        except CheckpointError as error:
            damaged = damaged or error
            continue
        if damaged is not None:
            warnings.warn(f"{damaged}; training goes on from {path.name}, the one before", stacklevel=2)
        break
    if found is None:
        return read(folder)  # which says what is wrong with the newest
    if part is None:
        tidy(folder)
    return found


def check_replaceable(folder: str | Path) -> None:
    """Refuse to save an ensemble where `fit` keeps a run, or where something is that cannot be read."""
    newest = _newest(Path(folder))
    if newest is not None and "progress" in _read_run(newest, _read_manifest(newest / MANIFEST)):
        raise CheckpointError(
            f"{folder} holds a run of fit, which could not be resumed any more; save the ensemble in another folder"
        )


def _read(newest: Path, mapped: bool, part: range | None = None) -> Checkpoint:
    expected, path = _read_manifest(newest / MANIFEST), newest / TENSORS
    run = _read_run(newest, expected)
    rows = [parse_json(newest / HISTORY, line) for line in _contents(newest / HISTORY, expected).splitlines()]
    with understood(newest / HISTORY):
        history = [{name: _numbers(value) for name, value in row.items()} for row in rows]
    if mapped:
        _check_in_place(path, expected)
        tensors = read_tensors(path, None)
    else:
        tensors = read_tensors(path, _contents(path, expected))
    shards = in_order(expected, newest)
    tensors |= _members(newest, shards, expected, part) if shards else {}
    shared = run.get("shared")
    if not (isinstance(shared, list) and all(isinstance(name, str) for name in shared)):
        raise CheckpointError(f"{newest / RUN} is not of this library: it lacks the list of shared leaves")
    state = _unflatten(tensors, "state", frozenset(shared), path)
    best = _unflatten(tensors, "best", frozenset(shared), path) if "best/weights" in tensors else None
    told = {key.removeprefix(_TOLD): tensor for key, tensor in tensors.items() if key.startswith(_TOLD)}
    centers = {key.removeprefix(_CENTERS): tensor for key, tensor in tensors.items() if key.startswith(_CENTERS)}
    return Checkpoint(run, state, history, best, told, centers, cut=bool(shards) and part is not None)


def _members(folder: Path, shards: list[str], expected: _Expected, part: range | None) -> dict[str, Tensor]:
    """Tensors of some members, or of all; all files are checked, so that processes agree on what is whole."""
    for name in shards:
        _check_in_place(folder / name, expected)
    wanted = range(span_of(shards[-1]).stop) if part is None else part
    parts = [(span_of(name), read_tensors(folder / name, None)) for name in shards]
    return joined(parts, wanted)


def _read_run(folder: Path, expected: _Expected) -> dict[str, Any]:
    return parse_json(folder / RUN, _contents(folder / RUN, expected))


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors of a checkpoint, by name."""
    elsewhere = frozenset((checkpoint.run.get("backbone") or {}).get("leaves", ()))
    best = {} if checkpoint.best is None else _flatten(checkpoint.best, "best", elsewhere)
    told = {_TOLD + name: values.detach().cpu().contiguous() for name, values in checkpoint.told.items()}
    centers = {_CENTERS + name: leaf.detach().cpu().contiguous() for name, leaf in checkpoint.centers.items()}
    return _flatten(checkpoint.state, "state", elsewhere) | best | told | centers


def _write_files(folder: Path, checkpoint: Checkpoint, number: int, shards: Shards | None) -> None:
    run = checkpoint.run | {"shared": sorted(checkpoint.state.members.shared)}
    (folder / RUN).write_text(json_text(run) + "\n", encoding="utf-8")
    rows = "".join(json_text(row, indent=None) + "\n" for row in checkpoint.history)
    (folder / HISTORY).write_text(rows, encoding="utf-8")
    tensors, names = _tensors(checkpoint), list(_FILES)
    if shards is not None:
        tensors, others = shards.gather(folder, number, tensors)
        names += others
    write_tensors(folder / TENSORS, tensors)
    files = {name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in names}
    (folder / MANIFEST).write_text(sealed_json({"format": 1, "files": files}), encoding="utf-8")


_FILES = (RUN, TENSORS, HISTORY)


def _read_manifest(path: Path) -> _Expected:
    """Size and sha256 of each file."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete or not of this library")
    manifest = read_json(path)
    if manifest.get("format") != 1:
        raise CheckpointError(f"{path} has format {manifest.get('format')!r}; this version of the library reads 1")
    with understood(path):
        names = [*_FILES, *filter(is_shard, manifest["files"])]
        return {name: (manifest["files"][name]["size"], manifest["files"][name]["sha256"]) for name in names}


def _contents(path: Path, expected: _Expected) -> bytes:
    """What a file holds, after a check: the bytes that were checked, whatever becomes of the file."""
    with _opened(path, expected) as file:
        content = file.read()
    _check(path, hashlib.sha256(content).hexdigest(), expected)
    return content


def _check_in_place(path: Path, expected: _Expected) -> None:
    with _opened(path, expected) as file:
        digest = hashlib.file_digest(file, "sha256")
    _check(path, digest.hexdigest(), expected)


@contextmanager
def _opened(path: Path, expected: _Expected) -> Iterator[BufferedReader]:
    """A file of the size that it should have."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is missing; restore it from where the run was made")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected[path.name][0]:
                raise CheckpointError(f"{path} is damaged: {expected[path.name][0]} bytes expected, {size} found")
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _check(path: Path, digest: str, expected: _Expected) -> None:
    if digest != expected[path.name][1]:
        raise CheckpointError(f"{path} is damaged: its contents are not those that were written")


def _flatten(state: State, prefix: str, elsewhere: frozenset[str] = frozenset()) -> dict[str, Tensor]:
    """All tensors but the buffers that are kept elsewhere: see `backbone.py`."""
    buffers = {name: leaf for name, leaf in state.members.buffers.items() if name not in elsewhere}
    groups = {"params": state.members.params, "buffers": buffers}
    groups |= {f"slots/{slot}": leaves for slot, leaves in state.slots.items()}
    flat = {f"{prefix}/{group}/{name}": leaf for group, leaves in groups.items() for name, leaf in leaves.items()}
    flat[f"{prefix}/weights"] = state.members.weights
    return flat


def _unflatten(tensors: dict[str, Tensor], prefix: str, shared: frozenset[str], path: Path) -> State:
    params: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    slots: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match key.split("/", 3):
            case [root, "params", *name] if root == prefix:
                params["/".join(name)] = tensor
            case [root, "buffers", *name] if root == prefix:
                buffers["/".join(name)] = tensor
            case [root, "slots", slot, name] if root == prefix:
                slots.setdefault(slot, {})[name] = tensor
    if not params or f"{prefix}/weights" not in tensors:
        raise CheckpointError(f"{path} is not of this library: it holds no members")
    return State(Members(params, buffers, tensors[f"{prefix}/weights"], shared), slots)


def _numbers(value: Any) -> Any:
    """Numbers of a history; JSON has null for those that are not finite."""
    return [_numbers(item) for item in value] if isinstance(value, list) else math.nan if value is None else value


def _all(root: Path) -> list[Path]:
    folders = [path for path in root.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(folders, key=_number)


def _newest(root: Path) -> Path | None:
    folders = _all(root)
    return folders[-1] if folders else None


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("checkpoint-"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
