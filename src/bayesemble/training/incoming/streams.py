"""Rows that come one after the other: a stream has no length and no order but its own.

Training counts its batches. Epoch e takes the batches from e S on, with S the steps of an epoch, so that a run which is
resumed begins the stream anew and passes over what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require, whole
from bayesemble.core.types import Batch, Inputs, map_tensors
from bayesemble.training.incoming.loaders import LoaderSource, check_batch_size, items_of
from bayesemble.training.incoming.mappings import stack_rows
from bayesemble.training.incoming.unpacking import Unpacking
from bayesemble.training.run_folders.fingerprint import Fingerprint


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows without a length: an `IterableDataset`, a `DataLoader` of one, or anything that yields batches.

    A stream that ends is begun again. What can be begun again is also resumed, to the same bits if it yields the same
    rows each time: an `IterableDataset`, a `DataLoader`, a list, or a function that returns an iterator. An iterator
    itself, such as a generator, is gone through once.
    """

    batches: Any
    """What yields batches `(inputs, targets)`, or of a form that `Task(unpack=...)` reads; or an `IterableDataset` of
    rows, which `fit(batch_size=...)` puts together; or a function without arguments that returns such."""
    num_data: int | None = None
    """How many rows the likelihood stands for, or the sum of their weights: N in the log joint."""
    steps_per_epoch: int | None = None
    """After how many batches an epoch ends; None is where the stream ends, for predictions and validation."""

    def __post_init__(self) -> None:
        for name in ("num_data", "steps_per_epoch"):
            value = getattr(self, name)
            if value is not None:
                whole(value, f"{name} must be a whole number from 1, got {value!r}")
        usable = callable(self.batches) or isinstance(self.batches, Iterable)
        require(usable, f"a stream is an iterable of batches or a function that makes one, got {self.batches!r}")


def is_stream(data: Any) -> bool:
    """Whether rows come without a length."""
    return isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)


@dataclass
class _Position:
    """How far a stream was gone through, so that the next epoch goes on there."""

    seed: int | None = None
    taken: int = 0
    items: Iterator[Any] = field(default_factory=lambda: iter(()))
    latest: Any = None

    def step_back(self) -> None:
        """Have the latest item come again, which was only looked at."""
        self.items, self.taken = chain([self.latest], self.items), self.taken - 1


class _Once:
    """An iterator, of which the first item can be looked at before it is gone through."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self._used = items, False

    def first(self) -> Any:
        """The first item, which stays."""
        found = next(self._items)
        self._items = chain([found], self._items)
        return found

    def __iter__(self) -> Iterator[Any]:
        if self._used:
            raise DataError(
                "an iterator goes through its batches once, and more of them were needed; give be.Stream a function "
                "that returns a new iterator, such as lambda: read(file)"
            )
        self._used = True
        return self._items


class _Made:
    """What a function makes anew each time it is begun."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


@dataclass(frozen=True, eq=False)
class StreamSource(LoaderSource):
    """Batches of a stream, by their number."""

    stream: Stream = field(default_factory=lambda: Stream(()))
    position: _Position = field(default_factory=_Position)

    @staticmethod
    def of(
        stream: Stream, batch_size: int | None, dtype: torch.dtype, unpacking: Unpacking, weighted: bool
    ) -> StreamSource:
        """A source of the batches of a stream; rows of an `IterableDataset` are put into batches."""
        given = stream.batches
        if isinstance(given, IterableDataset):
            require(batch_size is not None, "an IterableDataset gives rows; say by batch_size how many make a batch")
            given = DataLoader(given, batch_size, collate_fn=stack_rows)
        elif isinstance(given, Iterator):
            given = _Once(given)
        elif not isinstance(given, Iterable):
            given = _Made(given)
        check_batch_size(given, batch_size)
        return StreamSource(given, dtype, unpacking, weighted=weighted, stream=stream)

    def weight_known(self, given: float | None) -> float | None:
        """The sum of the weights is what the stream says that it stands for."""
        return None

    @property
    def num_data(self) -> int:
        """How many rows the likelihood stands for."""
        if self.stream.num_data is None:
            raise DataError("training needs to know how many rows a stream stands for: be.Stream(..., num_data=...)")
        return self.stream.num_data

    def example(self, num: int = 4) -> Inputs:
        """The first few inputs."""
        with seeds.scoped(0):
            item = self.loader.first() if isinstance(self.loader, _Once) else next(iter(self.loader), None)
        if item is None:
            raise DataError("the stream has no batches; at least one is needed")
        return map_tensors(lambda leaf: leaf[:num], self.batch(item).inputs)

    def steps(self, batch_size: int | None) -> int:
        """Batches per epoch."""
        if self.stream.steps_per_epoch is None:
            raise DataError("training needs to know where an epoch ends: be.Stream(..., steps_per_epoch=...)")
        return self.stream.steps_per_epoch

    def fingerprint(self) -> Fingerprint:
        """The number of rows; what they hold, nobody knows beforehand."""
        return {"rows": self.stream.num_data or 0, "contents": None}

    def check_resumable(self) -> None:
        """Refuse what cannot be begun again."""
        if isinstance(self.loader, _Once):
            raise SettingError(
                "an iterator cannot be begun again, so a run on it cannot be resumed; give be.Stream a function that "
                "returns a new one"
            )
        if isinstance(self.loader, DataLoader) and self.loader.generator is not None:
            super().check_resumable()

    def epoch(self, epoch: int, batch_size: int | None, seed: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """The batches of an epoch, by their number in the stream."""
        if rows is not None:
            raise SettingError("bootstrap and own_order need rows that can be taken by index, a stream has none")
        position, steps = self.position, self.steps(batch_size)
        if (position.seed, position.taken) == (seed, epoch * steps + 1):
            position.step_back()
        if (position.seed, position.taken) != (seed, epoch * steps):
            items = islice(self._endless(seed), epoch * steps, None)
            position.seed, position.taken, position.items = seed, epoch * steps, items
        for item in islice(position.items, steps):
            position.taken, position.latest = position.taken + 1, item
            yield self.batch(item)

    def in_order(self, batch_size: int | None) -> Iterator[Batch]:
        """The batches of the first epoch, or of the whole stream if nobody said where that ends."""
        yield from map(self.batch, islice(items_of(self.loader, 0), self.stream.steps_per_epoch))

    def _endless(self, seed: int) -> Iterator[Any]:
        """What the stream yields, begun again whenever it ends; all that it draws derives from the seed."""
        number = 0
        while True:
            empty = True
            for item in items_of(self.loader, seeds.child(seed, "shuffle", number)):
                empty = False
                yield item
            if empty:
                raise DataError("the stream has no batches; at least one is needed")
            number += 1
