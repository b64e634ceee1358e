"""Rows that a `DataLoader` brings, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs, as_tensor, check_rows, row_weights
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.types import Batch, Inputs, WeightedTargets, map_tensors
from bayesemble.task.task import BoundTask
from bayesemble.training.incoming.mappings import stack_rows
from bayesemble.training.incoming.unpacking import AS_YIELDED, Unpacking
from bayesemble.training.run_folders.fingerprint import Fingerprint, hash_arrays, named

_ROWS_LOOKED_AT = 8  # by the fingerprint of a Dataset


@dataclass(frozen=True, eq=False)
class LoaderSource:
    """Rows from a `DataLoader` that yields `(inputs, targets)`, maybe with weights, or what is unpacked to that."""

    loader: DataLoader[Any]
    dtype: torch.dtype
    unpacking: Unpacking = AS_YIELDED
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
            batch = self.batch(next(iter(self.loader)))
        return map_tensors(lambda leaf: leaf[:num], batch.inputs)

    def steps(self, batch_size: int | None) -> int:
        """Batches per epoch."""
        check_batch_size(self.loader, batch_size)
        return len(self.loader)

    def checked(self, task: BoundTask, training: bool) -> Self:
        """Check the targets of every batch as it comes."""
        return replace(self, task=task, output_shape=task.shape_of(self.example()))

    def check_members(self, num_members: int) -> None:
        """A loader's rows are seen by all members."""

    def to(self, device: torch.device) -> Self:
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
            batch = self.batch(self.loader.collate_fn([dataset[i] for i in chosen]))
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
        return map(self.batch, items_of(self.loader, seed))

    def batch(self, item: Any) -> Batch:
        """A batch of what the loader yields."""
        item = self.unpacking.parts(item, self.weighted)
        inputs, targets = as_inputs(item[0], self.dtype), as_tensor(item[1], "targets", self.dtype)
        check_rows(inputs, targets)
        if self.task is not None:
            likelihood = self.task.likelihood
            targets = likelihood.check_targets(targets, likelihood.shape_beside(targets, self.output_shape))
        inputs, targets = map_tensors(lambda leaf: leaf.to(self.device), inputs), targets.to(self.device)
        if not self.weighted:
            return Batch(inputs, targets)
        weights = row_weights(item[2], len(targets), self.dtype)
        if not weights.any():
            raise DataError("all rows of a batch have the weight 0: there is nothing to learn from it")
        return Batch(inputs, WeightedTargets(targets, weights.to(self.device)))


def check_batch_size(loader: Iterable[Any], batch_size: int | None) -> None:
    """Refuse another number of rows at a time than a loader has, or a stream of batches."""
    own = getattr(loader, "batch_size", None)
    if batch_size in (None, own) or isinstance(getattr(loader, "batch_sampler", None), RowNumbers):
        return
    has = "a stream of batches has their size" if own is None else f"the DataLoader has batches of {own}"
    raise SettingError(f"{has}, batch_size={batch_size} cannot be honoured; leave batch_size out")


def items_of(loader: Iterable[Any], seed: int) -> Iterator[Any]:
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
class RowNumbers(Sampler[list[int]]):
    """Row numbers of batches as arrays have them; the order derives from the stream that it is drawn in."""

    num_rows: int
    size: int | None
    shuffle: bool

    def __len__(self) -> int:
        return len(batch_bounds(self.num_rows, self.size))

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.num_rows) if self.shuffle else torch.arange(self.num_rows)
        for start, stop in batch_bounds(self.num_rows, self.size):
            yield order[start:stop].tolist()


def loader_of(data: Any, batch_size: int | None, shuffle: bool) -> DataLoader[Any]:
    """A loader of rows that are asked for by number."""
    if not len(data):
        raise DataError("the data has no rows; at least one is needed")
    return DataLoader(data, batch_sampler=RowNumbers(len(data), batch_size, shuffle), collate_fn=stack_rows)


def batch_bounds(num_rows: int, batch_size: int | None) -> list[tuple[int, int]]:
    """Where batches start and stop. A last row alone joins the batch before it: batch norm needs two."""
    size = batch_size or num_rows
    starts = list(range(0, num_rows, size))
    if size > 1 and len(starts) > 1 and num_rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_rows], strict=True))
