"""Run folders: written so that a run killed at any moment can be loaded and resumed.

    RUN/checkpoint-000012/manifest.json        sizes and sha256 of the three files below
                         /run.json             task, method, settings, seeds, versions, progress
                         /state.safetensors    every tensor of the state, and what the steps of an epoch under way told
                         /history.jsonl        one row per epoch

A checkpoint is written into a temporary folder, flushed to disk, and appears under its name by one rename; older
ones, but for the one before it, go only after that. Nothing in it is executable and no path in it is followed. Only
folders with these names and with nothing but these files inside are ever removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import WRITING, flush, json_text, replacing
from bayesemble.core.members import Members, State

RUN, TENSORS, HISTORY, MANIFEST = "run.json", "state.safetensors", "history.jsonl", "manifest.json"
KEEP = 2
"""How many checkpoints a run keeps: if the newest is damaged, it goes on from the one before."""
_NAME = re.compile(r"checkpoint-([0-9]+)")
_HALF_WRITTEN = re.compile(rf"{re.escape(WRITING)}checkpoint-[0-9]+-[0-9]+")
_TOLD = "told/"
_UNNAMED_TENSORS = re.compile(r"\.tmp\w{6}")  # what safetensors calls a file until it is whole

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run folder holds."""

    run: dict[str, Any]
    state: State
    history: list[Row]
    best: State | None = None
    told: dict[str, Tensor] = field(default_factory=dict)
    """What the steps of an epoch that is under way told, `(step, member)`."""

    @property
    def kept(self) -> Checkpoint:
        """The same with the state that `fit` returned, or would have: the best, if that was asked for."""
        return replace(self, state=self.best or self.state)


def exists(folder: str | Path) -> bool:
    """Whether there is a finished checkpoint in the folder."""
    return _newest(Path(folder)) is not None


def tidy(folder: str | Path, keep: int = KEEP) -> None:
    """Remove what a killed run may have left: half-written checkpoints, and finished ones but the newest."""
    root = Path(folder)
    finished = [path for path in _all(root) if (path / MANIFEST).is_file()]
    for old in filter(_holds_only_ours, finished[:-keep]):
        old.replace(root / f"{WRITING}{old.name}-{os.getpid()}")  # so that a kill leaves no half of it under its name
    for leftover in root.glob(f"{WRITING}*"):
        if _HALF_WRITTEN.fullmatch(leftover.name) and leftover.is_dir() and _holds_only_ours(leftover):
            shutil.rmtree(leftover)


def _holds_only_ours(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()} - {*_FILES, MANIFEST}
    return all(map(_UNNAMED_TENSORS.fullmatch, names))


def write(folder: str | Path, checkpoint: Checkpoint, keep: int = KEEP) -> None:
    """Add a checkpoint to a run folder; on return it is on disk, and of the older ones all but `keep - 1` are gone."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    tidy(root, keep)
    newest = _newest(root)
    number = 1 if newest is None else _number(newest) + 1
    with replacing(root / f"checkpoint-{number:06d}") as temporary:
        temporary.mkdir()
        _write_files(temporary, checkpoint)
    flush(root)
    tidy(root, keep)


def read(folder: str | Path) -> Checkpoint:
    """Read the newest checkpoint of a run folder; name the file that is missing, damaged or foreign."""
    root = Path(folder)
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a folder; pass the folder given to fit(checkpoint=...) or save(...)")
    newest = _newest(root) or (root if (root / MANIFEST).is_file() else None)
    if newest is None:
        found = ", ".join(sorted(path.name for path in root.iterdir())[:5]) or "nothing"
        raise CheckpointError(f"{root} is not a run folder: it needs a checkpoint-NNNNNN inside, it holds {found}")
    return _read(newest)


def recover(folder: str | Path) -> Checkpoint:
    """Read the newest checkpoint of a run folder that is whole; where a newer one is not, a warning says so."""
    found, damaged = None, None
    for path in reversed(_all(Path(folder))):
        try:
            found = _read(path)
        except CheckpointError as error:
            damaged = damaged or error
            continue
        if damaged is not None:
            warnings.warn(f"{damaged}; training goes on from {path.name}, the one before", stacklevel=2)
        break
    if found is None:
        return read(folder)  # which says what is wrong with the newest
    tidy(folder)
    return found


def check_replaceable(folder: str | Path) -> None:
    """Refuse to save an ensemble where `fit` keeps a run, or where something is that cannot be read."""
    newest = _newest(Path(folder))
    if newest is not None and "progress" in _parse(newest / RUN, _text(newest / RUN)):
        raise CheckpointError(
            f"{folder} holds a run of fit, which could not be resumed any more; save the ensemble in another folder"
        )


def _read(newest: Path) -> Checkpoint:
    _verify(newest)
    run = _parse(newest / RUN, _text(newest / RUN))
    lines = _text(newest / HISTORY).splitlines()
    history = [{name: _numbers(value) for name, value in _parse(newest / HISTORY, line).items()} for line in lines]
    try:
        tensors = load_file(newest / TENSORS)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{newest / TENSORS} cannot be read: {error}") from error
    shared = run.get("shared")
    if not (isinstance(shared, list) and all(isinstance(name, str) for name in shared)):
        raise CheckpointError(f"{newest / RUN} is not of this library: it lacks the list of shared leaves")
    state = _unflatten(tensors, "state", frozenset(shared), newest / TENSORS)
    best = _unflatten(tensors, "best", frozenset(shared), newest / TENSORS) if "best/weights" in tensors else None
    told = {key.removeprefix(_TOLD): tensor for key, tensor in tensors.items() if key.startswith(_TOLD)}
    return Checkpoint(run, state, history, best, told)


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    run = checkpoint.run | {"shared": sorted(checkpoint.state.members.shared)}
    (folder / RUN).write_text(json_text(run) + "\n", encoding="utf-8")
    rows = "".join(json_text(row, indent=None) + "\n" for row in checkpoint.history)
    (folder / HISTORY).write_text(rows, encoding="utf-8")
    tensors = _flatten(checkpoint.state, "state") | (_flatten(checkpoint.best, "best") if checkpoint.best else {})
    tensors |= {_TOLD + name: values.detach().cpu().contiguous() for name, values in checkpoint.told.items()}
    save_file(tensors, folder / TENSORS)
    os.chmod(folder / TENSORS, (folder / RUN).stat().st_mode)  # save_file ignores the umask
    files = {name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in _FILES}
    (folder / MANIFEST).write_text(json_text({"format": 1, "files": files}) + "\n", encoding="utf-8")


_FILES = (RUN, TENSORS, HISTORY)


def _verify(folder: Path) -> None:
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete or not of this library")
    manifest = _parse(path, path.read_bytes().decode("utf-8", errors="replace"))
    if manifest.get("format") != 1:
        raise CheckpointError(f"{path} has format {manifest.get('format')!r}; this version of the library reads 1")
    for name in _FILES:
        expected = manifest.get("files", {})
        expected = expected.get(name) if isinstance(expected, dict) else None
        if not isinstance(expected, dict):
            raise CheckpointError(f"{path} is damaged: it says nothing of {name}")
        file = folder / name
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file} is missing; restore it from where the run was made")
        if file.stat().st_size != expected.get("size"):
            raise CheckpointError(
                f"{file} is damaged: {expected.get('size')} bytes expected, {file.stat().st_size} found"
            )
        if _sha256(file) != expected.get("sha256"):
            raise CheckpointError(f"{file} is damaged: its contents are not those that were written")


def _flatten(state: State, prefix: str) -> dict[str, Tensor]:
    groups = {"params": state.members.params, "buffers": state.members.buffers}
    groups |= {f"slots/{slot}": leaves for slot, leaves in state.slots.items()}
    flat = {f"{prefix}/{group}/{name}": leaf for group, leaves in groups.items() for name, leaf in leaves.items()}
    flat[f"{prefix}/weights"] = state.members.weights
    return {name: leaf.detach().cpu().contiguous() for name, leaf in flat.items()}


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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: a JSON object was expected, got {type(value).__name__}")
    return value


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
