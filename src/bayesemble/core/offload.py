"""Where the tensors of a run are made: in memory or, for members that do not fit there, on disk.

An `Allocator` is handed through: a bound task has one, methods and executors make in it what grows with the number of
members. `Memory` is the plain one. The tensors of `Disk` lie on memory-mapped safetensors files:

    FOLDER/params.safetensors  buffers.safetensors  first_moment.safetensors  ...  gradients.safetensors

What is written into such a tensor goes to its file; the operating system brings pages in when they are touched and puts
them out when memory is short. Each file holds one group of leaves and can be read at any time with `safetensors`.
Leaves begin at multiples of 64 bytes, as tensors in memory do, so that the same instructions run on them and give the
same bits; entries called `padding/...` fill the gaps.
"""

from __future__ import annotations

import errno
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.types import Leaves

_ALIGNMENT = 64
_MARK = {"made_by": "bayesemble fit(offload=...)"}  # in the header of each file: only such files are ever replaced
_SUFFIX = ".safetensors"
_LARGEST_HEADER = 100_000_000  # the limit of the format
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Allocator(ABC):
    """Where tensors are made: the leaves of members, what is kept beside them, and gradients."""

    on_disk: ClassVar[bool]
    """Whether members must come one by one, as they do not all fit into memory."""

    @abstractmethod
    def zeros_like(self, leaves: Leaves, group: str) -> Leaves:
        """Zeros shaped like leaves; on disk, in a file named after the group."""

    @abstractmethod
    def gradient_space(self, leaves: Leaves) -> Leaves | None:
        """Tensors to write gradients shaped like leaves into, or None if these are new tensors in memory.

        They are the same in every step and hold what the last one left: whoever gets gradients is done with them before
        the next are asked for.
        """

    @abstractmethod
    def settle(self, groups: dict[str, Leaves]) -> dict[str, Leaves]:
        """The same leaves, all here: what is elsewhere is copied, and nothing else is kept."""

    @abstractmethod
    def copy(self, groups: dict[str, Leaves], name: str) -> dict[str, Leaves]:
        """A copy, which on disk takes the place of the one made under that name before."""


class Memory(Allocator):
    """Plain tensors."""

    on_disk = False

    def zeros_like(self, leaves: Leaves, group: str) -> Leaves:
        """Zeros shaped like leaves."""
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}

    def gradient_space(self, leaves: Leaves) -> None:
        """Gradients are new tensors."""

    def settle(self, groups: dict[str, Leaves]) -> dict[str, Leaves]:
        """The leaves as they are."""
        return groups

    def copy(self, groups: dict[str, Leaves], name: str) -> dict[str, Leaves]:
        """A copy of all leaves."""
        return {group: {name: leaf.clone() for name, leaf in leaves.items()} for group, leaves in groups.items()}


MEMORY = Memory()


class Disk(Allocator):
    """A folder of memory-mapped files, each with a group of leaves. It must stay as long as the leaves are used."""

    on_disk = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files: dict[Path, Leaves] = {}
        self._reused: dict[tuple[object, ...], Leaves] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove_old(self.folder)
        except OSError as error:
            raise SettingError(f"offload needs a folder to write to, {folder} is none: {error}") from error

    def zeros_like(self, leaves: Leaves, group: str) -> Leaves:
        """Zeros in a new file; of the leaves given, only shapes and number types count."""
        if not leaves:
            return {}
        path, number = self.folder / f"{group}{_SUFFIX}", 1
        while path in self._files:
            path, number = self.folder / f"{group}-{number + 1}{_SUFFIX}", number + 1
        self._files[path] = _create(path, leaves)
        return dict(self._files[path])

    def gradient_space(self, leaves: Leaves) -> Leaves:
        """The same tensors for all leaves of these names, shapes and number types."""
        return self._reuse(leaves, "gradients")

    def settle(self, groups: dict[str, Leaves]) -> dict[str, Leaves]:
        """The same leaves, all on disk: what is not there yet is copied. Files that hold none of them are removed."""
        settled, held = {}, {address for leaves in self._files.values() for address in _addresses(leaves)}
        for group, leaves in groups.items():
            outside = {name: leaf for name, leaf in leaves.items() if _address(leaf) not in held}
            settled[group] = leaves | _filled(self.zeros_like(outside, group), outside)
        used = {_address(leaf) for leaves in settled.values() for leaf in leaves.values()}
        for path in [path for path, leaves in self._files.items() if not used & _addresses(leaves)]:
            del self._files[path]
            path.unlink(missing_ok=True)
        self._reused.clear()
        return settled

    def copy(self, groups: dict[str, Leaves], name: str) -> dict[str, Leaves]:
        """A copy on disk, which takes the place of the one made under that name before."""
        return {group: _filled(self._reuse(leaves, f"{name}-{group}"), leaves) for group, leaves in groups.items()}

    def _reuse(self, leaves: Leaves, group: str) -> Leaves:
        """The tensors that an earlier call for the same leaves gave, with what they hold now; at first, zeros."""
        key = (group, *((name, leaf.shape, leaf.dtype) for name, leaf in leaves.items()))
        if key not in self._reused:
            self._reused[key] = self.zeros_like(leaves, group)
        return dict(self._reused[key])


def _filled(space: Leaves, leaves: Leaves) -> Leaves:
    for name, leaf in space.items():
        leaf.copy_(leaves[name])
    return space


def _address(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def _addresses(leaves: Leaves) -> set[int]:
    return {_address(leaf) for leaf in leaves.values()}


def _remove_old(folder: Path) -> None:
    """Empty a folder of an earlier run; one that holds anything else is left as it is, and refused."""
    found = sorted(folder.iterdir())
    for path in found:
        if not _is_ours(path):
            raise SettingError(
                f"{folder} holds {path.name}, which was not made by fit(offload=...); choose a new or empty folder"
            )
    for path in found:
        path.unlink()


def _is_ours(path: Path) -> bool:
    if path.suffix != _SUFFIX or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length <= _LARGEST_HEADER else None
        except (ValueError, RecursionError):
            return False
    return isinstance(header, dict) and header.get("__metadata__") == _MARK


def _create(path: Path, like: Leaves) -> Leaves:
    """Write a safetensors file of zeros and map its leaves."""
    header, places, length = _layout(like)
    try:
        with path.open("xb") as file:
            try:
                file.write(header)
                _reserve(file.fileno(), len(header) + length)
            except OSError:
                path.unlink()
                raise
    except OSError as error:
        raise SettingError(f"offload needs {length / 1e9:.2g} GB for {path}: {error}") from error
    whole = torch.from_file(str(path), shared=True, size=len(header) + length, dtype=torch.uint8)[len(header) :]
    # With `data` they are tensors of their own, not views of one: autograd counts the changes of each by itself.
    return {name: whole[slice(*places[name])].view(leaf.dtype).view(leaf.shape).data for name, leaf in like.items()}


def _layout(like: Leaves) -> tuple[bytes, dict[str, tuple[int, int]], int]:
    """The header of a file, where each leaf lies behind it, and the number of bytes behind it."""
    entries: dict[str, object] = {"__metadata__": _MARK}
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name, leaf in like.items():
        if leaf.dtype not in _TYPES:
            raise SettingError(f"offload cannot keep {name!r} on disk: its number type is {leaf.dtype}")
        gap = -end % _ALIGNMENT
        if gap:
            entries[f"padding/{len(places)}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
        begin, end = end + gap, end + gap + leaf.numel() * leaf.element_size()
        entries[name] = {"dtype": _TYPES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [begin, end]}
        places[name] = (begin, end)
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, places, end


def _reserve(handle: int, size: int) -> None:
    """Give a file its size, and its room on disk now: a disk that runs full later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # not every file system can
                raise
    os.truncate(handle, size)
