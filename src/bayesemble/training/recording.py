"""Networks along training, one file for each recorded epoch:  FOLDER/epoch-000012.safetensors

They are read by memory mapping when they are asked for, so a long recording takes no memory. Epoch 0 is the start.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import replacing
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves

FOLDER = "recording"
"""Its name inside a run folder."""

_NAME = re.compile(r"epoch-(\d+)\.safetensors")


class Recording:
    """The members after each recorded epoch, in a folder; without one, in a temporary folder of its own."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bayesemble-") if folder is None else folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def epochs(self) -> list[int]:
        """The recorded epochs, in order."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("*"))
        return sorted(int(found[1]) for found in names if found)

    def add(self, epoch: int, members: Members) -> None:
        """Write the members as they are after an epoch; what was recorded of it before is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        groups = {"params": members.params, "buffers": members.buffers, "": {"weights": members.weights}}
        leaves = {f"{group}/{name}": leaf for group, own in groups.items() for name, leaf in own.items()}
        shared = dict.fromkeys(members.shared, "shared")
        with replacing(self._path(epoch)) as temporary:
            save_file({name: leaf.detach().cpu().contiguous() for name, leaf in leaves.items()}, temporary, shared)

    def members(self, epoch: int) -> Members:
        """The members after an epoch."""
        if not self._path(epoch).is_file():
            known = ", ".join(map(str, self.epochs)) or "none"
            raise CheckpointError(f"epoch {epoch} was not recorded in {self.folder}; there are {known}")
        groups: dict[str, Leaves] = {"params": {}, "buffers": {}, "": {}}
        with safe_open(self._path(epoch), "pt") as file:
            for key in file.keys():  # noqa: SIM118
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
            shared = frozenset(file.metadata() or ())
        return Members(groups["params"], groups["buffers"], groups[""]["weights"], shared)

    def along(self, member: int, epochs: Sequence[int] | None = None) -> Members:
        """One member at several epochs (all by default), as networks side by side with equal weights."""
        chosen = self.epochs if epochs is None else list(epochs)
        require(bool(chosen), f"nothing was recorded in {self.folder}; train with fit(..., record='epoch')")
        index = torch.tensor([member])
        return Members.concat([self.members(epoch).take(index).unshared() for epoch in chosen])

    def copy_to(self, run: Path) -> None:
        """Copy the recording into a run folder."""
        if run / FOLDER != self.folder:
            shutil.copytree(self.folder, run / FOLDER, dirs_exist_ok=True)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06d}.safetensors"


def find(run: str | Path) -> Recording | None:
    """The recording in a run folder, if there is one."""
    return Recording(Path(run) / FOLDER) if (Path(run) / FOLDER).is_dir() else None
