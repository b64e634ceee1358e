"""Data in: whatever the user has becomes a source of batches, checked before any training.

Arrays and tensors are batched by index, without the overhead of a `DataLoader`. A source may hold rows per member,
`(member, row, ...)`, so that every member trains on data of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs, as_tensor, check_member_count, check_rows
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Batch, Inputs, WeightedTargets, map_tensors, tensors_of
from bayesemble.task.task import BoundTask
from bayesemble.training.incoming.mappings import has_rows, stack_rows, with_targets
from bayesemble.training.run_folders.fingerprint import Fingerprint, hash_arrays, named

_NUMBERS_AT_A_TIME = 1 << 20  # that are gathered from memory
_ROWS_LOOKED_AT = 8  # by the fingerprint of a Dataset


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
        return len(_bounds(self.num_data, batch_size))

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
        bounds = _bounds(self.num_data, batch_size)
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
        for start, stop in _bounds(self.num_data, batch_size):
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
            return Batch(map_tensors(lambda leaf: leaf[:, rows], self.inputs), self.targets[:, rows], rows, True, True)
        own = rows.dim() == 2
        targets = self.targets if self.weights is None else WeightedTargets(self.targets, self.weights)
        return Batch(map_tensors(lambda leaf: leaf[rows], self.inputs), targets[rows], rows, own, own)


@dataclass(frozen=True, eq=False)
class LoaderSource:
    """Rows from a `DataLoader` that yields `(inputs, targets)`, maybe with weights, or mappings with the targets under
    one key."""

    loader: DataLoader[Any]
    dtype: torch.dtype
    key: str | None = None
    """Of the targets."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    task: BoundTask | None = None
    output_shape: tuple[int, ...] = ()
    weighted: bool = False

    def weight_known(self, given: float | None) -> float | None:
        """The sum of the weights, which only a pass through all rows would tell: it has to be given."""
        if self.weighted and given is None:
            raise DataError(
                "the weights of a Dataset or a DataLoader come row by row, but the log joint needs their sum: give it "
                "as Task(num_data=...), or pass arrays (x, y, w)"
            )
        return None

    @property
    def num_data(self) -> int:
        """How many rows an epoch has."""
        try:
            count = len(self.loader.sampler)  # type: ignore[arg-type]
            return len(self.loader) * (self.loader.batch_size or 1) if self.loader.drop_last else count
        except TypeError as error:
            raise DataError("a DataLoader needs a length to train on; give its sampler a __len__") from error

    def example(self, num: int = 4) -> Inputs:
        """The first few inputs."""
        with seeds.scoped(0):
            batch = self._batch(next(iter(self.loader)))
        return map_tensors(lambda leaf: leaf[:num], batch.inputs)

    def steps(self, batch_size: int | None) -> int:
        """Batches per epoch."""
        sampler = self.loader.batch_sampler
        if batch_size is not None and not isinstance(sampler, _Batches) and batch_size != self.loader.batch_size:
            raise SettingError(
                f"the DataLoader has batches of {self.loader.batch_size}, batch_size={batch_size} cannot be honoured; "
                "leave batch_size out"
            )
        return len(self.loader)

    def checked(self, task: BoundTask, training: bool) -> LoaderSource:
        """Check the targets of every batch as it comes."""
        return replace(self, task=task, output_shape=task.shape_of(self.example()))

    def check_members(self, num_members: int) -> None:
        """A loader's rows are seen by all members."""

    def to(self, device: torch.device) -> LoaderSource:
        """Move batches to a device as they come."""
        return replace(self, device=device)

    def fingerprint(self) -> Fingerprint:
        """The number of rows, and what a few of them hold, from the first to the last; None if that differs by chance.

        A `Dataset` that is too odd to be asked for single rows has None too.
        """
        try:
            first, second = self._hash_few(), self._hash_few()
        except Exception:  # whatever is wrong with a row, training on it will say
            return {"rows": self.num_data, "contents": None}
        return {"rows": self.num_data, "contents": first if first == second else None}

    def _hash_few(self) -> str:
        dataset: Any = self.loader.dataset
        last = len(dataset) - 1
        chosen = sorted({last * i // (_ROWS_LOOKED_AT - 1) for i in range(_ROWS_LOOKED_AT)})
        with seeds.scoped(0):
            batch = self._batch(self.loader.collate_fn([dataset[i] for i in chosen]))
        targets = batch.targets
        if isinstance(targets, WeightedTargets):
            return hash_arrays(named(batch.inputs, targets.values) | {"weights": targets.weights})
        return hash_arrays(named(batch.inputs, targets))

    def epoch(self, epoch: int, batch_size: int | None, seed: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """The loader's batches; its shuffling and augmentation are seeded by seed and epoch."""
        if rows is not None:
            raise SettingError(
                "bootstrap and own_order need rows that can be taken by index: pass arrays, tensors or a TensorDataset"
            )
        yield from self._batches(seeds.child(seed, "shuffle", epoch))

    def in_order(self, batch_size: int | None) -> Iterator[Batch]:
        """The loader's batches."""
        yield from self._batches(0)

    def check_resumable(self) -> None:
        """Refuse a loader whose order cannot be repeated from the middle of a run."""
        sampler = getattr(self.loader, "sampler", None)
        if self.loader.generator is not None or getattr(sampler, "generator", None) is not None:
            raise SettingError(
                "a DataLoader with a generator of its own cannot be resumed exactly; make it without one: "
                "its order then derives from the seed of fit"
            )

    def _batches(self, seed: int) -> Iterator[Batch]:
        return map(self._batch, items_of(self.loader, seed))

    def _batch(self, item: Any) -> Batch:
        if isinstance(item, Mapping):
            item = with_targets(item, self.key)
        self._check_item(item)
        inputs, targets = as_inputs(item[0], self.dtype), as_tensor(item[1], "targets", self.dtype)
        check_rows(inputs, targets)
        if self.task is not None:
            likelihood = self.task.likelihood
            targets = likelihood.check_targets(targets, likelihood.shape_beside(targets, self.output_shape))
        inputs, targets = map_tensors(lambda leaf: leaf.to(self.device), inputs), targets.to(self.device)
        if not self.weighted:
            return Batch(inputs, targets)
        weights = _as_weights(item[2], targets, self.dtype)
        if not weights.any():
            raise DataError("all rows of a batch have the weight 0: there is nothing to learn from it")
        return Batch(inputs, WeightedTargets(targets, weights.to(self.device)))

    def _check_item(self, item: Any) -> None:
        wanted = "triples (inputs, targets, weights)" if self.weighted else "pairs (inputs, targets)"
        if not isinstance(item, list | tuple):
            raise DataError(f"a DataLoader must yield {wanted}, it yielded {type(item).__name__}")
        if len(item) != 2 + self.weighted:
            hint = "" if self.weighted or len(item) != 3 else "; if the third are weights of rows, pass weights=True"
            raise DataError(f"a DataLoader must yield {wanted}, it yielded {len(item)} items{hint}")


def items_of(loader: DataLoader[Any], seed: int) -> Iterator[Any]:
    """What a loader yields; all that it draws derives from the seed."""
    stream = seeds.Stream(seed)
    with stream:
        items = iter(loader)
    while True:
        with stream:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


@dataclass(frozen=True)
class _Batches(Sampler[list[int]]):
    """Row numbers of batches as arrays have them; the order derives from the stream that it is drawn in."""

    num_rows: int
    size: int | None
    shuffle: bool

    def __len__(self) -> int:
        return len(_bounds(self.num_rows, self.size))

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.num_rows) if self.shuffle else torch.arange(self.num_rows)
        for start, stop in _bounds(self.num_rows, self.size):
            yield order[start:stop].tolist()


BatchSource = ArraySource | LoaderSource


def as_source(
    data: Any,
    dtype: torch.dtype,
    batch_size: int | None = None,
    shuffle: bool = True,
    targets: str | None = None,
    weights: bool = False,
) -> BatchSource:
    """Turn `(x, y)`, `(x, y, w)`, a mapping, a `Dataset`, a `DataLoader` or `PerMember` data into a source of batches.

    A `Dataset` is put into a `DataLoader`, whose batches `shuffle` and `batch_size` speak of. `targets` is the key of
    the targets in mappings. Whether the last of what a data set or a loader gives are weights, `weights` says.
    """
    if isinstance(data, ArraySource | LoaderSource):
        return data
    if isinstance(data, PerMember):
        return _array_source(data.inputs, data.targets, dtype, per_member=True)
    if isinstance(data, IterableDataset) or (
        isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset)
    ):
        raise DataError("a stream of unknown order cannot be trained on repeatably; use a Dataset with __getitem__")
    if isinstance(data, DataLoader):
        return LoaderSource(data, dtype, targets, weighted=weights)
    if isinstance(data, TensorDataset):
        *inputs, values = data.tensors[:-1] if weights else data.tensors
        own = data.tensors[-1] if weights else None
        return _array_source(inputs[0] if len(inputs) == 1 else tuple(inputs), values, dtype, weights=own)
    if isinstance(data, Dataset) or has_rows(data):
        return LoaderSource(loader_of(data, batch_size, shuffle), dtype, targets, weighted=weights)
    if isinstance(data, Mapping):
        return _array_source(*with_targets(data, targets), dtype)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return _array_source(data[0], data[1], dtype, weights=data[2] if len(data) == 3 else None)
    raise DataError(
        "data must be a pair (x, y), a triple (x, y, weights), a Dataset, a DataLoader, a mapping or "
        f"be.PerMember(x, y), got {type(data).__name__}"
    )


def loader_of(data: Any, batch_size: int | None, shuffle: bool) -> DataLoader[Any]:
    """A loader of rows that are asked for by number."""
    if not len(data):
        raise DataError("the data has no rows; at least one is needed")
    return DataLoader(data, batch_sampler=_Batches(len(data), batch_size, shuffle), collate_fn=stack_rows)


def _array_source(
    inputs: Any, targets: Any, dtype: torch.dtype, per_member: bool = False, weights: Any = None
) -> ArraySource:
    if targets is None:
        raise DataError("the data has no targets; a pair (inputs, targets) was needed")
    tensors, values = as_inputs(inputs, dtype), as_tensor(targets, "targets", dtype)
    check_rows(tensors, values, per_member)
    if weights is None:
        return ArraySource(tensors, values, per_member)
    own = _as_weights(weights, values, dtype)
    counting = own > 0  # the others count for nothing
    if not counting.any():
        raise DataError("all weights are 0: there is nothing to learn from")
    if not counting.all():
        tensors, values, own = map_tensors(lambda leaf: leaf[counting], tensors), values[counting], own[counting]
    return ArraySource(tensors, values, weights=own)


def _as_weights(given: Any, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight for each row, as numbers that are not negative."""
    weights = as_tensor(given, "weights", dtype).to(dtype)
    if weights.dim() == 2 and weights.shape[1] == 1:
        weights = weights.squeeze(1)
    if weights.shape != targets.shape[:1]:
        raise DataError(f"{len(targets)} rows need as many weights, got them in the shape {tuple(weights.shape)}")
    wrong = ~(weights >= 0) | ~weights.isfinite()
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"weights are numbers from 0, that of row {row} is {weights[row].item()}")
    return weights


def _bounds(num_rows: int, batch_size: int | None) -> list[tuple[int, int]]:
    """Where batches start and stop. A last row alone joins the batch before it: batch norm needs two."""
    size = batch_size or num_rows
    starts = list(range(0, num_rows, size))
    if size > 1 and len(starts) > 1 and num_rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_rows], strict=True))
