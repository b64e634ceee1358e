"""The frozen weights of an adapted network, which a run names instead of holding them.

They lie wherever the network came from. What a run has of them is that name, the names of the leaves and a sha256 of
all their numbers, so that loading with other weights is refused.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from torch import Tensor

from bayesemble.core.errors import CheckpointError
from bayesemble.core.members import State
from bayesemble.core.types import Leaves
from bayesemble.task.adapters.starts import backbone_name, is_adapted
from bayesemble.task.per_thread import PerThread
from bayesemble.task.task import BoundTask
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.fingerprint import hash_arrays

_HASHES: weakref.WeakKeyDictionary[PerThread, tuple[tuple[Any, ...], str]] = weakref.WeakKeyDictionary()


def describe_backbone(task: BoundTask, state: State) -> dict[str, Any] | None:
    """What is saved of the backbone of an adapted network; None of a network that is saved whole."""
    names = sorted(state.frozen)
    if not names or not is_adapted(task.module):
        return None
    return {"name": backbone_name(task.module), "sha256": _hash(task, names), "leaves": names}


def with_backbone(found: Checkpoint, task: BoundTask, folder: str) -> Checkpoint:
    """A checkpoint with the frozen leaves that it names, from the network; refused if that has others."""
    saved = found.run.get("backbone")
    if saved is None:
        return found
    here = _frozen_leaves(task)
    missing = [name for name in saved["leaves"] if name not in here]
    if missing:
        raise CheckpointError(f"the network has no frozen leaf {missing[0]!r}; is {folder} a run of this network?")
    if _hash(task, saved["leaves"]) != saved["sha256"]:
        called = f"{saved['name']}, with other weights" if saved["name"] else "another backbone"
        raise CheckpointError(
            f"{folder} holds adapters for {called}: the frozen weights of the network given here are not those that "
            "the adapters were trained on; give the network with these weights"
        )
    leaves = {name: here[name] for name in saved["leaves"]}
    return replace(found, state=_filled(found.state, leaves), best=found.best and _filled(found.best, leaves))


def _filled(state: State, leaves: Leaves) -> State:
    return replace(state, members=replace(state.members, buffers=leaves | state.members.buffers))


def _frozen_leaves(task: BoundTask) -> Leaves:
    module = task.module
    parameters = {name: one.detach() for name, one in module.named_parameters() if not one.requires_grad}
    return parameters | {name: buffer.detach() for name, buffer in module.named_buffers()}


def _hash(task: BoundTask, names: list[str]) -> str:
    """The sha256 of the leaves, worked out again only if one of them was changed."""
    leaves = {name: leaf for name, leaf in _frozen_leaves(task).items() if name in set(names)}
    now = tuple((name, leaf.data_ptr(), _changes(leaf)) for name, leaf in leaves.items())
    known = _HASHES.get(task.network)
    if known is None or known[0] != now:
        known = _HASHES[task.network] = now, hash_arrays({n: leaf.reshape(-1) for n, leaf in leaves.items()})
    return known[1]


def _changes(leaf: Tensor) -> int:
    """How often a tensor was changed in place, as far as torch counts."""
    return 0 if leaf.is_inference() else leaf._version
