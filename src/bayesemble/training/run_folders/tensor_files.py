"""Tensors in safetensors files. What is read belongs to whoever reads it: the file may change or vanish afterwards."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from bayesemble.core.errors import CheckpointError

UNNAMED = re.compile(r"\.tmp[A-Za-z0-9_]{6}")
"""What safetensors calls a file until it is whole, and what a killed process leaves of it."""


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors into a new file, with the mode that the umask asks for."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file({name: leaf.detach().cpu().contiguous() for name, leaf in tensors.items()}, path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error  # what it meets on the way is the disk
    path.chmod(mode)  # save_file makes another file, which nobody else may read


def read_tensors(path: Path, content: bytes | None) -> dict[str, Tensor]:
    """Tensors of a file by name, in order: copies from its contents, or (None) views of the file, which must then stay.

    Copies lie in memory as torch lays out its own tensors, so that they are computed on by the same instructions.
    """
    try:
        if content is None:
            return dict(sorted(load_file(path).items()))
        tensors = load(content)
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AssertionError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    del content
    return {name: tensors.pop(name).clone() for name in sorted(tensors)}
