"""Fingerprints of data: a run goes on with the rows that it began with, or is refused.

Every byte counts: sha256 takes about a second for two gigabytes, less than the look for cells that are not finite, and
once a run. Arrays are gone through in blocks, so that those on disk do not come into memory whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core.errors import CheckpointError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Inputs

Fingerprint = dict[str, Any]
"""What tells data from other data, as JSON holds it: how many rows, and the hash of their contents, if it has one."""

_BLOCK = 1 << 20  # bytes


def hash_arrays(arrays: Mapping[str, Tensor]) -> str:
    """The sha256 of names, number types, shapes and contents, in whatever order the arrays come."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name].detach()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        for block in array.split(how_many_fit(_BLOCK, array[:1].nbytes)):
            digest.update(block.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def named(inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    """All arrays of a data set by name."""
    leaves = pytree.tree_flatten_with_path(inputs)[0]
    return {f"inputs{pytree.keystr(path)}": leaf for path, leaf in leaves} | {"targets": targets}


def check_same(saved: dict[str, Any], here: dict[str, Fingerprint]) -> None:
    """Refuse to go on with other rows than those of the run; validation rows may come or go, but not change."""
    for name in saved.keys() & here.keys():
        if words := _difference(saved[name], here[name]):
            raise CheckpointError(
                f"the {name} data are not those that the run began with: {words}; "
                "choose another folder, or give the same rows in the same order"
            )


def _difference(saved: Any, here: Fingerprint) -> str | None:
    before = saved if isinstance(saved, dict) else {}
    if before.get("rows") != here["rows"]:
        return f"{before.get('rows')} rows then, {here['rows']} now"
    hashes = (before.get("contents"), here["contents"])
    if None in hashes or hashes[0] == hashes[1]:
        return None
    return "the same number of rows, but other contents or another order"
