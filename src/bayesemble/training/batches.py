"""Data in: whatever the user has becomes a source of batches, checked before any training.

Arrays and tensors are batched by index, without the overhead of a `DataLoader`. A source may hold rows per member,
`(member, row, ...)`, so that every member trains on data of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs, as_tensor, check_member_count, check_rows, row_weights
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Batch, Inputs, WeightedTargets, map_tensors, tensors_of
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.incoming.loaders import LoaderSource, batch_bounds, loader_of
from bayesemble.training.incoming.mappings import columns_of, has_rows, with_targets
from bayesemble.training.incoming.streams import Stream, StreamSource, is_stream
from bayesemble.training.incoming.unpacking import AS_YIELDED, Unpacking
from bayesemble.training.run_folders.fingerprint import Fingerprint, hash_arrays, named

_NUMBERS_AT_A_TIME = 1 << 18  # that are gathered from memory: more would cost memory, and save nothing


@dataclass(frozen=True, eq=False)
class PerMember:
    """Data of which every member has its own: inputs `(member, row, ...)`, targets `(member, row, ...)`.

    For cross-validation, say, member i gets the training part of fold i.
    """

    inputs: Any
    targets: Any = None


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Rows in memory, taken by index."""

    inputs: Inputs
    targets: Tensor
    per_member: bool = False
    weights: Tensor | None = None
    """What each row counts for, all positive; None if all count alike."""

    def weight_known(self, given: float | None) -> float | None:
        """The sum of the weights, if rows have any."""
        if self.weights is None:
            return None
        total = float(self.weights.double().sum())
        return int(total) if total.is_integer() else total

    @property
    def num_data(self) -> int:
        """How many rows each member sees."""
        return tensors_of(self.inputs)[0].shape[1 if self.per_member else 0]

    def example(self, num: int = 4) -> Inputs:
        """The first few inputs, as one member sees them."""
        return map_tensors(lambda leaf: (leaf[0] if self.per_member else leaf)[:num], self.inputs)

    def steps(self, batch_size: int | None) -> int:
        """Batches per epoch."""
        return len(batch_bounds(self.num_data, batch_size))

    def checked(self, task: BoundTask, training: bool) -> ArraySource:
        """Targets as the likelihood wants them; refuse those that it cannot use."""
        flat = self.targets.flatten(0, 1) if self.per_member else self.targets
        shape = task.shape_of(self.example())
        targets = task.likelihood.check_targets(flat, shape if training else task.likelihood.shape_beside(flat, shape))
        if training:
            task.likelihood.check_training_targets(targets)
        whole = (*self.targets.shape[:2], *targets.shape[1:]) if self.per_member else targets.shape
        return replace(self, targets=targets.reshape(whole))

    def check_members(self, num_members: int) -> None:
        """Raise if per-member data has a different number of members."""
        if self.per_member:
            check_member_count(self.inputs, num_members)

    def to(self, device: torch.device) -> ArraySource:
        """Move all rows to a device."""
        return replace(
            self,
            inputs=map_tensors(lambda leaf: leaf.to(device), self.inputs),
            targets=self.targets.to(device),
            weights=None if self.weights is None else self.weights.to(device),
        )

    def fingerprint(self) -> Fingerprint:
        """What tells these rows from others, and from the same in another order."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"rows": self.num_data, "contents": hash_arrays(named(self.inputs, self.targets) | weights)}

    def epoch(self, epoch: int, batch_size: int | None, seed: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """All rows in a random order that depends only on seed and epoch.

        With `rows` `(member, row)`, member i sees the rows that `rows[i]` names, as a bootstrap wants it.
        """
        order = torch.randperm(self.num_data, generator=seeds.generator(seed, "shuffle", epoch))
        bounds = batch_bounds(self.num_data, batch_size)
        if self.per_member or rows is not None:
            for start, stop in bounds:
                yield self._take(order[start:stop] if rows is None else rows[:, order[start:stop]])
            return
        many = self._batches_at_a_time(bounds[0][1])
        for part in (bounds[first : first + many] for first in range(0, len(bounds), many)):
            begin, end = part[0][0], part[-1][1]
            block = self._take(order[begin:end])
            yield from block.parts([stop - start for start, stop in part]) if len(part) > 1 else (block,)

    def in_order(self, batch_size: int | None) -> Iterator[Batch]:
        """All rows as they stand."""
        for start, stop in batch_bounds(self.num_data, batch_size):
            yield self._take(torch.arange(start, stop))

    def _batches_at_a_time(self, size: int) -> int:
        """How many batches are gathered in one go, of which they are then views: many, if they are small."""
        row = sum(leaf[0].numel() for leaf in (*tensors_of(self.inputs), self.targets))
        return how_many_fit(_NUMBERS_AT_A_TIME, row * size)

    def _take(self, rows: Tensor) -> Batch:
        if self.per_member:
            if rows.dim() == 2:
                raise SettingError(
                    "data per member cannot be resampled per member as well; turn bootstrap and own_order off"
                )
            inputs = map_tensors(lambda leaf: leaf.index_select(1, rows), self.inputs)
            return Batch(inputs, self.targets.index_select(1, rows), rows, True, True)
        own = rows.dim() == 2
        targets = self.targets if self.weights is None else WeightedTargets(self.targets, self.weights)
        inputs = map_tensors(lambda leaf: leaf[rows] if own else leaf.index_select(0, rows), self.inputs)  # is quicker
        return Batch(inputs, targets[rows], rows, own, own)


BatchSource = ArraySource | LoaderSource


def source_for(
    task: Task, data: Any, batch_size: int | None = None, *, shuffle: bool = True, weights: bool = False
) -> BatchSource:
    """A source of batches as a task reads them: see `as_source`."""
    return as_source(data, task.dtype, batch_size, shuffle, Unpacking.of(task), weights)


def as_source(
    data: Any,
    dtype: torch.dtype,
    batch_size: int | None = None,
    shuffle: bool = True,
    unpacking: Unpacking = AS_YIELDED,
    weights: bool = False,
) -> BatchSource:
    """Turn `(x, y)`, `(x, y, w)`, a mapping, a `Dataset`, a `DataLoader`, `Stream` or `PerMember` data into a source of
    batches.

    A `Dataset` is put into a `DataLoader`, whose batches `shuffle` and `batch_size` speak of. `unpacking` says what the
    targets are in mappings and in batches of any form; `weights`, whether the last of what is given are weights.
    """
    if isinstance(data, ArraySource | LoaderSource):
        return data
    if isinstance(data, PerMember):
        return _array_source(data.inputs, data.targets, dtype, per_member=True)
    if is_stream(data):
        if shuffle:
            raise DataError(
                "a stream does not say how many rows there are nor where an epoch ends; say it by "
                "be.Stream(data, num_data=..., steps_per_epoch=...)"
            )
        data = Stream(data)
    if isinstance(data, Stream):
        size = batch_size if shuffle or isinstance(data.batches, IterableDataset) else None  # others have their own
        return StreamSource.of(data, size, dtype, unpacking, weights)
    if isinstance(data, DataLoader):
        return LoaderSource(data, dtype, unpacking, weighted=weights)
    if isinstance(data, TensorDataset) and unpacking.function is None:
        *inputs, values = data.tensors[:-1] if weights else data.tensors
        own = data.tensors[-1] if weights else None
        return _array_source(inputs[0] if len(inputs) == 1 else tuple(inputs), values, dtype, weights=own)
    if isinstance(data, Dataset) or has_rows(data):
        return LoaderSource(loader_of(data, batch_size, shuffle), dtype, unpacking, weighted=weights)
    columns = columns_of(data)
    if columns is not None:
        unpacking.whole(data)  # refuses what would need to be unpacked
        return _array_source(*with_targets(columns, unpacking.key), dtype)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return _array_source(data[0], data[1], dtype, weights=data[2] if len(data) == 3 else None)
    raise DataError(
        "data must be a pair (x, y), a triple (x, y, weights), a Dataset, a DataLoader, a mapping, be.Stream(data) or "
        f"be.PerMember(x, y), got {type(data).__name__}"
    )


def _array_source(
    inputs: Any, targets: Any, dtype: torch.dtype, per_member: bool = False, weights: Any = None
) -> ArraySource:
    if targets is None:
        raise DataError("the data has no targets; a pair (inputs, targets) was needed")
    tensors, values = as_inputs(inputs, dtype), as_tensor(targets, "targets", dtype)
    check_rows(tensors, values, per_member)
    if weights is None:
        return ArraySource(tensors, values, per_member)
    own = row_weights(weights, len(values), dtype)
    counting = own > 0  # the others count for nothing
    if not counting.any():
        raise DataError("all weights are 0: there is nothing to learn from")
    if not counting.all():
        tensors, values, own = map_tensors(lambda leaf: leaf[counting], tensors), values[counting], own[counting]
    return ArraySource(tensors, values, weights=own)
