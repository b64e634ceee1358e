"""What frozen parts of a network give for rows of training: once a batch for all members, or once for all epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.memory import available_memory
from bayesemble.core.offload import MEMORY, Allocator, Disk
from bayesemble.core.types import Batch, Inputs, Leaves, map_tensors, tensors_of
from bayesemble.task.adapters.frozen_calls import FrozenCalls, OtherCallsError, Prepared, close, features_of, find_calls
from bayesemble.task.adapters.leaves import in_common, stands_still
from bayesemble.task.task import BoundTask
from bayesemble.training.batches import ArraySource, BatchSource

logger = logging.getLogger("bayesemble")

Cache = bool | str | Path
"""Whether what frozen parts give for all rows is kept: in memory, or in the files of a folder."""

_ROWS_AT_A_TIME = 256
_PASSES_BEFORE_LOOKING = 512  # of a row through a network; finding frozen parts costs less


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
        still = _still_leaves(task)
        if not still:
            return None
        one, other = task.new_member(seed=0), task.new_member(seed=1)
        if in_common(still, one[1], [other[1]]) != still:  # a factory draws them for each member
            return None
        params, buffers = (_moved_to(device, leaves) for leaves in one)
        calls = _calls(task, params, buffers, still)
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
        """The batch with what frozen parts give for its rows; as it is if each member has its own, or calls differ."""
        if batch.inputs_per_member or isinstance(batch.inputs, Prepared):
            return batch
        try:
            return replace(batch, inputs=self.prepared(batch.inputs))
        except OtherCallsError:
            return batch


class FrozenInPrediction:
    """What frozen parts give for rows to predict, once for all networks that come one by one.

    Outputs are the same to the bit. To find such parts takes passes of a few rows, so that it waits until many rows
    were predicted. Rows of other shapes than those of the example that parts are found on go through each network.
    """

    def __init__(self, task: BoundTask) -> None:
        self._task, self._still, self._passes = task, _still_leaves(task), 0
        self._calls: FrozenCalls | None = None
        self._looked = not self._still

    def of(self, inputs: Inputs) -> Callable[[Members], Inputs]:
        """A function that gives the rows as a network is to be called with."""
        alike = bool(self._still) and _kind(inputs) == _kind(self._task.example)
        before: tuple[list[Tensor], Inputs] | None = None

        def rows(network: Members) -> Inputs:
            nonlocal before
            params, buffers = network.split()[0]
            calls = self._find(params, buffers, inputs) if alike else None
            if calls is None:
                return inputs
            own = [leaf for name, leaf in (params | buffers).items() if name in self._still]
            if before is None or not _same_memory(own, before[0]):
                try:
                    before = own, FrozenFeatures(self._task, calls, params, buffers).prepared(inputs)
                except OtherCallsError:
                    before = own, inputs
            return before[1]

        return rows

    def _find(self, params: Leaves, buffers: Leaves, inputs: Inputs) -> FrozenCalls | None:
        self._passes += len(tensors_of(inputs)[0])
        if not self._looked and self._passes >= _PASSES_BEFORE_LOOKING:
            self._calls, self._looked = _calls(self._task, params, buffers, self._still), True
        return self._calls


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


def _still_leaves(task: BoundTask) -> set[str]:
    """Names of the leaves that stand still, of a task whose frozen parts may be run apart from the rest."""
    apart = not (task.train_frozen or task.mixed or task.recomputes or task.example is None)
    return stands_still(task.module) if apart else set()


def _calls(task: BoundTask, params: Leaves, buffers: Leaves, still: set[str]) -> FrozenCalls | None:
    """Calls of frozen parts that give the same for these trained leaves and for others, on the example of the task."""
    variants, device = [params, _shaken(params)], (params | buffers)[next(iter(still))].device

    def run(variant: int, rows: Inputs, training: bool) -> Tensor:
        own = {name: leaf.clone() if name not in still else leaf for name, leaf in buffers.items()}
        with torch.no_grad(), seeds.TorchStream(variant):
            return task.forward(variants[variant], own, rows, training)

    assert task.example is not None
    return find_calls(task.module, map_tensors(lambda leaf: leaf.to(device), task.example), run)


def _kind(inputs: Any) -> Any:
    """The form of rows, and the shapes and types of what one of them has."""
    leaves, form = pytree.tree_flatten(inputs)
    return form, [(leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _same_memory(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(a.data_ptr() == b.data_ptr() and a.stride() == b.stride() for a, b in zip(some, others, strict=True))


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
