"""Leaves on disk, for members that do not fit into memory: tensors on memory-mapped safetensors files.

    FOLDER/params.safetensors  buffers.safetensors  first_moment.safetensors  ...  gradients.safetensors

What is written into such a tensor goes to its file; the operating system brings pages in when they are touched and puts
them out when memory is short. Each file holds one group of leaves and can be read at any time with `safetensors`.
Leaves begin at multiples of 64 bytes, as tensors in memory do, so that the same instructions run on them and give the
same bits; entries called `padding/...` fill the gaps.

Two contexts say what goes to disk: inside `new_leaves(store)` the leaves of new members and zero moments, inside
`gradients(store)` the gradients of all members. Outside of them everything is made in memory.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

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


class Store:
    """A folder of memory-mapped files, each with a group of leaves. It must stay as long as the leaves are used."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files: dict[Path, Leaves] = {}
        self._reused: dict[tuple[object, ...], Leaves] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove_old(self.folder)
        except OSError as error:
            raise SettingError(f"offload needs a folder to write to, {folder} is none: {error}") from error

    def zeros(self, group: str, like: Leaves) -> Leaves:
        """Zeros on disk, in a new file; of the leaves given, only shapes and number types count."""
        if not like:
            return {}
        path, number = self.folder / f"{group}{_SUFFIX}", 1
        while path in self._files:
            path, number = self.folder / f"{group}-{number + 1}{_SUFFIX}", number + 1
        self._files[path] = _create(path, like)
        return dict(self._files[path])

    def reuse(self, group: str, like: Leaves) -> Leaves:
        """The tensors that an earlier call for the same leaves gave, with what they hold now; at first, zeros."""
        key = (group, *((name, leaf.shape, leaf.dtype) for name, leaf in like.items()))
        if key not in self._reused:
            self._reused[key] = self.zeros(group, like)
        return dict(self._reused[key])

    def settle(self, groups: dict[str, Leaves]) -> dict[str, Leaves]:
        """The same leaves, all on disk: what is not there yet is copied. Files that hold none of them are removed."""
        settled, held = {}, {address for leaves in self._files.values() for address in _addresses(leaves)}
        for group, leaves in groups.items():
            outside = {name: leaf for name, leaf in leaves.items() if _address(leaf) not in held}
            settled[group] = leaves | _filled(self.zeros(group, outside), outside)
        used = {_address(leaf) for leaves in settled.values() for leaf in leaves.values()}
        for path in [path for path, leaves in self._files.items() if not used & _addresses(leaves)]:
            del self._files[path]
            path.unlink(missing_ok=True)
        self._reused.clear()
        return settled

    def copy(self, groups: dict[str, Leaves], name: str) -> dict[str, Leaves]:
        """A copy on disk, which takes the place of the one made under that name before."""
        return {group: _filled(self.reuse(f"{name}-{group}", leaves), leaves) for group, leaves in groups.items()}


_NEW_LEAVES: ContextVar[Store | None] = ContextVar("new leaves", default=None)
_GRADIENTS: ContextVar[Store | None] = ContextVar("gradients", default=None)


@contextmanager
def new_leaves(store: Store | None) -> Iterator[None]:
    """Make the leaves of new members and their moments in a store; None is memory."""
    before = _NEW_LEAVES.set(store)
    try:
        yield
    finally:
        _NEW_LEAVES.reset(before)


@contextmanager
def gradients(store: Store | None) -> Iterator[None]:
    """Keep the gradients of all members in a store; None is memory."""
    before = _GRADIENTS.set(store)
    try:
        yield
    finally:
        _GRADIENTS.reset(before)


def new_leaves_on_disk() -> bool:
    """Whether new leaves are made on disk."""
    return _NEW_LEAVES.get() is not None


def zeros_like(leaves: Leaves, group: str) -> Leaves:
    """Zeros shaped like leaves, in memory or where new leaves are made, in a file named after the group."""
    store = _NEW_LEAVES.get()
    if store is None:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    return store.zeros(group, leaves)


def gradient_space(leaves: Leaves) -> Leaves | None:
    """Tensors on disk for gradients shaped like leaves, or None if gradients stay in memory.

    They are the same in every step and hold what the last one left: whoever gets gradients is done with them before
    the next are asked for.
    """
    store = _GRADIENTS.get()
    return None if store is None else store.reuse("gradients", leaves)


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
        except ValueError:
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
