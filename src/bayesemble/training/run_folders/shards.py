"""Checkpoints that several processes write together: a file for the members of each, and one for what all share.

    RUN/checkpoint-000012/members-000000-000003.safetensors     members 0, 1 and 2
                         /members-000003-000005.safetensors     members 3 and 4

Each process writes its file into a temporary folder beside the others. The first one moves them all into the folder of
the checkpoint, writes the manifest, which has the size and sha256 of each, and renames it: until then there is no
checkpoint. Whoever reads one takes the members that it needs, whatever the number of processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import WRITING, flush, json_text, parse_json, process_tag
from bayesemble.execute.ranks.team import Team
from bayesemble.training.run_folders.tensor_files import write_tensors

TOLD = "told/"
_NAME = re.compile(r"members-([0-9]{6})-([0-9]{6})\.safetensors")


def is_shard(name: str) -> bool:
    """Whether a file of a checkpoint holds some of its members."""
    return _NAME.fullmatch(name) is not None


def span_of(name: str) -> range:
    """The numbers of the members that a file holds."""
    found = _NAME.fullmatch(name)
    assert found is not None
    return range(int(found[1]), int(found[2]))


def in_order(names: Iterable[str], folder: Path) -> list[str]:
    """Names of files in the order of their members, of which none may be missing."""
    ordered, end = sorted(filter(is_shard, names)), 0
    for name in ordered:
        if span_of(name).start != end:
            raise CheckpointError(f"{folder} lacks the members from {end} up to {span_of(name).start}")
        end = span_of(name).stop
    return ordered


def joined(parts: list[tuple[range, dict[str, Tensor]]], wanted: range) -> dict[str, Tensor]:
    """Tensors of the members that are wanted, from files that hold some each."""

    def cut(span: range, name: str, leaf: Tensor) -> Tensor:
        start, stop = max(span.start, wanted.start), min(span.stop, wanted.stop)
        return leaf.narrow(_axis(name), start - span.start, stop - start)

    touched = [(span, tensors) for span, tensors in parts if span.start < wanted.stop and wanted.start < span.stop]
    return {
        name: torch.cat([cut(span, name, tensors[name]) for span, tensors in touched], _axis(name))
        for name in touched[0][1]
    }


def _axis(name: str) -> int:
    """Where the member axis is: what steps told is `(step, member)`."""
    return 1 if name.startswith(TOLD) else 0


@dataclass(frozen=True, eq=False)
class Shards:
    """What one of several processes adds to a checkpoint."""

    team: Team
    own: frozenset[str]
    """Names of the tensors that have a member axis."""
    num_members: int
    """How many members are here."""

    def gather(self, temporary: Path, number: int, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """On the first process: write its members, and bring in the files of the others.

        Gives the tensors that all members share, and the names of the files.
        """
        self.team.largest(number)
        seen = self._tell(self._write(temporary, tensors))
        for found in seen:
            there, here = Path(found["folder"]) / found["name"], temporary / found["name"]
            if there != here:
                there.replace(here)
                there.parent.rmdir()
            if here.stat().st_size != found["size"] or _sha256(here) != found["sha256"]:
                raise CheckpointError(f"{here} is not what its process wrote; the ranks need one file system for it")
        rest = {name: leaf for name, leaf in tensors.items() if name not in self.own}
        return rest, [found["name"] for found in seen]

    def add(self, root: Path, tensors: dict[str, Tensor]) -> None:
        """On the other processes: write the members here, and wait until the checkpoint is there."""
        folder = root.absolute() / f"{WRITING}checkpoint-{self.team.largest(0):06d}-{process_tag()}"
        if self.team.writes:
            folder.mkdir()
            self._tell(self._write(folder, tensors))
        else:
            self._tell({})
        self.wait()

    def wait(self) -> None:
        """Until all processes are here."""
        self.team.largest(0)

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> dict[str, object]:
        first = self.team.first
        path = folder / f"members-{first:06d}-{first + self.num_members:06d}.safetensors"
        write_tensors(path, {name: leaf for name, leaf in tensors.items() if name in self.own})
        flush(path)
        return {"folder": str(folder), "name": path.name, "size": path.stat().st_size, "sha256": _sha256(path)}

    def _tell(self, words: dict[str, object]) -> list[dict[str, Any]]:
        """What the processes of the member axis tell of their files, in the order of their members."""
        said = self.team.words(json_text(words, indent=None))
        return [parse_json(Path("what a rank said"), text.encode()) for text in said]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
