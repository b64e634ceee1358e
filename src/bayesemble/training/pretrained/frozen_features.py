"""What frozen parts of a network give for rows of training: once a batch for all members, or once for all epochs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.memory import available_memory
from bayesemble.core.offload import MEMORY, Allocator, Disk
from bayesemble.core.types import Batch, Inputs, Leaves, map_tensors
from bayesemble.task.adapters.frozen_calls import FrozenCalls, Prepared, close, features_of, find_calls
from bayesemble.task.adapters.leaves import in_common, stands_still
from bayesemble.task.task import BoundTask
from bayesemble.training.batches import ArraySource, BatchSource

logger = logging.getLogger("bayesemble")

Cache = bool | str | Path
"""Whether what frozen parts give for all rows is kept: in memory, or in the files of a folder."""

_ROWS_AT_A_TIME = 256


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Runs the frozen parts of a network that give the same for all members."""

    task: BoundTask
    calls: FrozenCalls
    params: Leaves
    buffers: Leaves
    """Leaves of one member, of which only frozen ones matter."""

    @staticmethod
    def of(task: BoundTask, device: torch.device) -> FrozenFeatures | None:
        """Those of a task; None if nothing is frozen, or nothing that is frozen is the same for all members."""
        still = stands_still(task.module)
        if task.train_frozen or task.mixed or task.recomputes or task.example is None or not still:
            return None
        one, other = task.new_member(seed=0), task.new_member(seed=1)
        if in_common(still, one[1], [other[1]]) != still:  # a factory draws them for each member
            return None
        params, buffers = (_moved_to(device, leaves) for leaves in one)
        variants = [params, _shaken(params)]

        def run(variant: int, rows: Inputs, training: bool) -> Tensor:
            own = {name: leaf.clone() if name not in still else leaf for name, leaf in buffers.items()}
            with torch.no_grad(), seeds.TorchStream(variant):
                return task.forward(variants[variant], own, rows, training)

        rows = map_tensors(lambda leaf: leaf.to(device), task.example)
        calls = find_calls(task.module, rows, run)
        if calls is None:
            return None
        logger.info("computed once for all members: %s", calls)
        return FrozenFeatures(task, calls, params, buffers)

    def prepared(self, inputs: Inputs) -> Inputs:
        """The rows with what frozen parts give for them."""
        run = partial(self.task.forward, self.params, self.buffers, inputs)
        with torch.no_grad():
            return Prepared(inputs, features_of(self.task.module, self.calls, run), self.calls)

    def added_to(self, batch: Batch) -> Batch:
        """The batch with what frozen parts give for its rows, unless each member has rows of its own."""
        if batch.inputs_per_member or isinstance(batch.inputs, Prepared):
            return batch
        return replace(batch, inputs=self.prepared(batch.inputs))


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """Batches of another source, with what frozen parts give for them."""

    source: BatchSource
    features: FrozenFeatures

    def epoch(self, epoch: int, batch_size: int | None, seed: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """The batches of an epoch."""
        return map(self.features.added_to, self.source.epoch(epoch, batch_size, seed, rows))

    def in_order(self, batch_size: int | None) -> Iterator[Batch]:
        """The batches as they stand."""
        return map(self.features.added_to, self.source.in_order(batch_size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


def cached(source: BatchSource, features: FrozenFeatures, allocator: Allocator, name: str) -> ArraySource:
    """A source that holds what frozen parts give for each of its rows."""
    if not isinstance(source, ArraySource) or source.per_member:
        raise DataError(
            "cache=True keeps what the frozen part gives for each row, so rows must be the same each time they are "
            "taken by their number: pass arrays, tensors or a TensorDataset, not a DataLoader, a Dataset that may "
            "augment its rows, or data per member; without cache the frozen part runs once a batch"
        )
    parts = [_rows_from(at, source.inputs) for at in _starts(source)]
    first = features.prepared(parts[0]).features
    leaves, form = pytree.tree_flatten(first)
    _check_rows(features, parts[0], leaves, form)
    space = _space([leaf for leaf in leaves if isinstance(leaf, Tensor)], source.num_data, allocator, name)
    for at, part in zip(_starts(source), parts, strict=True):
        own, other_form = pytree.tree_flatten(features.prepared(part).features if at else first)
        tensors = [leaf for leaf in own if isinstance(leaf, Tensor)]
        if other_form != form or any(
            one.shape[1:] != whole.shape[1:] for one, whole in zip(tensors, space, strict=True)
        ):
            raise DataError(
                f"the frozen part gives features of other shapes for rows from {at} on than for the first, so they "
                "cannot be kept together; leave cache out"
            )
        for whole, one in zip(space, tensors, strict=True):
            whole[at : at + len(one)] = one
    filled = iter(space)
    whole_features = [next(filled) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    inputs = Prepared(source.inputs, pytree.tree_unflatten(whole_features, form), features.calls)
    return replace(source, inputs=inputs)


def with_features(
    source: BatchSource, held_out: BatchSource | None, features: FrozenFeatures | None, cache: Cache
) -> tuple[Any, Any]:
    """Sources of batches with what frozen parts give for them, kept for all epochs if that was asked for."""
    if cache is False:
        return source if features is None else FeatureSource(source, features), held_out
    if features is None:
        raise SettingError(
            "cache=True keeps what the frozen part of a network gives, but nothing here is frozen that gives the same "
            "for all members: freeze it, as be.adapt(model, 'head') does, and let it be a module of its own"
        )
    allocator = MEMORY if cache is True else Disk(cache)
    kept = cached(source, features, allocator, "training")
    if isinstance(held_out, ArraySource) and not held_out.per_member:
        held_out = cached(held_out, features, allocator, "validation")
    return kept, held_out


def _rows_from(start: int, inputs: Inputs) -> Inputs:
    return map_tensors(lambda leaf: leaf[start : start + _ROWS_AT_A_TIME], inputs)


def _starts(source: ArraySource) -> range:
    return range(0, source.num_data, _ROWS_AT_A_TIME)


def _check_rows(features: FrozenFeatures, rows: Inputs, leaves: list[Any], form: Any) -> None:
    """Refuse features of a row that depend on the rows beside it."""
    few, other_form = pytree.tree_flatten(features.prepared(map_tensors(lambda leaf: leaf[:3], rows)).features)
    pairs = [(one, whole) for one, whole in zip(few, leaves, strict=False) if isinstance(one, Tensor)]
    if other_form != form or any(one.shape != whole[:3].shape or not close(one, whole[:3]) for one, whole in pairs):
        raise DataError(
            "what the frozen part gives for a row depends on the rows beside it, so it cannot be kept; leave cache out"
        )


def _space(like: list[Tensor], num_rows: int, allocator: Allocator, name: str) -> list[Tensor]:
    """Room for what is given for all rows."""
    wide = {str(place): leaf[:1].expand(num_rows, *leaf.shape[1:]) for place, leaf in enumerate(like)}
    need, free = sum(leaf.numel() * leaf.element_size() for leaf in wide.values()), available_memory()
    if not allocator.on_disk and need > free:
        raise SettingError(
            f"cache=True needs {need / 1e9:.3g} GB for what the frozen part gives for {num_rows:,} rows, "
            f"{free / 1e9:.3g} GB can be had; keep it on disk by cache=FOLDER, or leave cache out"
        )
    return list(allocator.zeros_like(wide, f"features-{name}").values())


def _moved_to(device: torch.device, leaves: Leaves) -> Leaves:
    return {name: leaf.to(device) for name, leaf in leaves.items()}


def _shaken(params: Leaves) -> Leaves:
    """Other values of all leaves, of their own size; zeros are filled too."""
    generator, found = torch.Generator().manual_seed(0), {}
    for name, leaf in params.items():
        noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
        found[name] = leaf + noise * (leaf.std(correction=0) + 0.1)
    return found
