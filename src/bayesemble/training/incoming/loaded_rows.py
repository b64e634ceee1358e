"""Rows to predict that come from a loader or a data set, batch by batch, with or without targets beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from bayesemble.core.arrays import as_inputs, check_rows
from bayesemble.core.errors import DataError
from bayesemble.core.types import Inputs
from bayesemble.predictive import Predictive
from bayesemble.task.task import BoundTask
from bayesemble.training.batches import LoaderSource, items_of, loader_of
from bayesemble.training.incoming.mappings import has_rows, inputs_of


def is_loaded(data: Any) -> bool:
    """Whether rows have to be fetched."""
    return isinstance(data, DataLoader | Dataset) or has_rows(data)


def batches_of_inputs(data: Any, task: BoundTask, batch_size: int | None, usual: int) -> Iterator[Inputs]:
    """Inputs in the order of the rows, a batch at a time: `usual` rows of a data set, unless told otherwise."""
    loader = data if isinstance(data, DataLoader) else loader_of(data, batch_size or usual, shuffle=False)
    if loader is data:
        _refuse_other_orders(loader)
        LoaderSource(loader, task.dtype).steps(batch_size)  # refuses batches of another size
    for item in items_of(loader, 0):
        pair = isinstance(item, list | tuple) and len(item) == 2
        given = inputs_of(item, task.targets) if isinstance(item, Mapping) else item[0] if pair else item
        inputs = as_inputs(given, task.dtype)
        check_rows(inputs, None)
        yield inputs


def _refuse_other_orders(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose rows may come in another order than they stand in."""
    plain = type(loader.batch_sampler) in (BatchSampler, type(None)) and isinstance(loader.sampler, SequentialSampler)
    if not plain:
        raise DataError(
            "the DataLoader shuffles or groups its rows, so that nobody would know which prediction is whose; make it "
            "with shuffle=False, or go through it with its targets by `ensemble.predictions(data)`"
        )


def joined(parts: Sequence[Predictive]) -> Predictive:
    """One prediction of all rows, whose outputs must have one shape."""
    shapes = {tuple(part.answers.shape[1:]) for part in parts}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise DataError(
            f"rows of some batches have outputs {one}, of others {other}, which make no one array; pad all rows to one "
            "length, or go batch by batch through `ensemble.predictions(data)`"
        )
    return type(parts[0]).concat(list(parts))
