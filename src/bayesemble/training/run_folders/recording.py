"""Networks along training, one file for each recorded epoch:  FOLDER/epoch-000012.safetensors

Epoch 0 is the start. An epoch is read, as a whole and with its checksum, when it is asked for, so a long recording
takes the memory of one epoch.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import (
    CHECKSUM,
    UNSEALED,
    is_gone,
    make_folder,
    process_tag,
    read_sealed,
    replacing,
    seal,
    understood,
    writable,
)
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.training.run_folders.tensor_files import UNNAMED, read_tensors, write_tensors

FOLDER = "recording"
"""Its name inside a run folder."""

_NAME = re.compile(r"epoch-([0-9]+)\.safetensors")
_TEMPORARY = "bayesemble-"
_OF_PROCESS = re.compile(rf"{_TEMPORARY}([0-9]+@[A-Za-z0-9._-]*)-\w{{8}}")


class Recording:
    """The members after each recorded epoch, in a folder; without one, in a temporary folder of its own."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = _temporary_folder() if folder is None else Path(folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def epochs(self) -> list[int]:
        """The recorded epochs, in order."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("*"))
        return sorted(int(found[1]) for found in names if found)

    def add(self, epoch: int, members: Members) -> None:
        """Write the members as they are after an epoch; what was recorded of it before is replaced."""
        make_folder(self.folder)
        self._sweep()
        groups = {"params": members.params, "buffers": members.buffers, "": {"weights": members.weights}}
        leaves = {f"{group}/{name}": leaf for group, own in groups.items() for name, leaf in own.items()}
        with replacing(self._path(epoch)) as temporary:
            write_tensors(temporary, leaves, {CHECKSUM: UNSEALED, "shared": json.dumps(sorted(members.shared))})
            seal(temporary)

    def members(self, epoch: int) -> Members:
        """The members after an epoch."""
        path = self._path(epoch)
        if not path.is_file():
            known = ", ".join(map(str, self.epochs)) or "none"
            raise CheckpointError(f"epoch {epoch} was not recorded in {self.folder}; there are {known}")
        groups: dict[str, Leaves] = {"params": {}, "buffers": {}, "": {}}
        with understood(path):
            content = read_sealed(path)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            for key, leaf in read_tensors(path, content).items():
                group, _, name = key.partition("/")
                groups[group][name] = leaf
            shared = frozenset(json.loads(header["__metadata__"]["shared"]))
            return Members(groups["params"], groups["buffers"], groups[""]["weights"], shared)

    def along(self, member: int, epochs: Sequence[int] | None = None) -> Members:
        """One member at several epochs (all by default), as networks side by side with equal weights."""
        chosen = self.epochs if epochs is None else list(epochs)
        require(bool(chosen), f"nothing was recorded in {self.folder}; train with fit(..., record='epoch')")
        index = torch.tensor([member])
        return Members.concat([self.members(epoch).take(index).unshared() for epoch in chosen])

    def copy_to(self, run: Path) -> None:
        """Copy the recording into a run folder."""
        if run / FOLDER == self.folder:
            return
        make_folder(run / FOLDER)
        for epoch in self.epochs:
            with replacing(run / FOLDER / self._path(epoch).name) as temporary:
                shutil.copyfile(self._path(epoch), temporary)

    def _sweep(self) -> None:
        """Remove what a killed run left; whoever adds an epoch is alone in the folder."""
        with suppress(OSError):
            for left in filter(UNNAMED.fullmatch, (path.name for path in self.folder.iterdir())):
                with (self.folder / left).open("rb") as file:
                    start = file.read(1000)
                if not start or CHECKSUM.encode() in start:
                    (self.folder / left).unlink()

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06d}.safetensors"


def _temporary_folder() -> Path:
    """A new folder, named after this process; those that processes which are gone left there are removed."""
    root = Path(tempfile.gettempdir())
    with suppress(OSError):
        for left in root.glob(f"{_TEMPORARY}*"):
            found = _OF_PROCESS.fullmatch(left.name)
            if found and is_gone(found[1]) and not left.is_symlink() and _holds_only_epochs(left):
                shutil.rmtree(left, ignore_errors=True)
    with writable(root):
        return Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{process_tag()}-"))


def _holds_only_epochs(folder: Path) -> bool:
    return all(_NAME.fullmatch(path.name) or path.name.startswith(".") for path in folder.iterdir())


def find(run: str | Path) -> Recording | None:
    """The recording in a run folder, if there is one."""
    return Recording(Path(run) / FOLDER) if (Path(run) / FOLDER).is_dir() else None
