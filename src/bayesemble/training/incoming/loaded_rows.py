"""Rows to predict, batch by batch: of arrays, a data set, a loader or a stream, with or without targets beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from bayesemble.core.arrays import as_inputs, check_rows
from bayesemble.core.errors import DataError
from bayesemble.core.types import Inputs
from bayesemble.predictive import Predictive
from bayesemble.task.task import BoundTask
from bayesemble.training.incoming.loaders import check_batch_size, items_of, loader_of
from bayesemble.training.incoming.mappings import has_rows, stack_rows
from bayesemble.training.incoming.streams import Stream, StreamSource, is_stream
from bayesemble.training.incoming.unpacking import AS_YIELDED, Unpacking


def is_loaded(data: Any) -> bool:
    """Whether rows have to be fetched."""
    if isinstance(data, Tensor):  # mostly
        return False
    return isinstance(data, DataLoader | Dataset | Stream | Iterator) or has_rows(data)


def rows_at_hand(data: Any, task: BoundTask) -> Inputs:
    """Inputs that came whole, as tensors."""
    return as_inputs(data if isinstance(data, Tensor) else Unpacking.of(task).whole(data), task.dtype)


def batches_of_inputs(data: Any, task: BoundTask, batch_size: int | None, usual: int) -> Iterator[Inputs]:
    """Inputs in the order of the rows, a batch at a time: `usual` rows, unless told otherwise."""
    unpacking = Unpacking.of(task)
    if not is_loaded(data):
        inputs = rows_at_hand(data, task)
        check_rows(inputs, None)
        yield from split_rows(inputs, batch_size or usual)
        return
    for item in items_of(_loader(data, task, batch_size, usual), 0):
        inputs = as_inputs(unpacking.inputs(item), task.dtype)
        check_rows(inputs, None)
        yield inputs


def _loader(data: Any, task: BoundTask, batch_size: int | None, usual: int) -> Iterable[Any]:
    """What yields batches."""
    if isinstance(data, Stream | Iterator):
        stream = data if isinstance(data, Stream) else Stream(data)
        size = batch_size or (usual if isinstance(stream.batches, IterableDataset) else None)
        return StreamSource.of(stream, size, task.dtype, AS_YIELDED, weighted=False).loader
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size or usual, collate_fn=stack_rows)
    if not isinstance(data, DataLoader):
        return loader_of(data, batch_size or usual, shuffle=False)
    if not is_stream(data):
        _refuse_other_orders(data)
    check_batch_size(data, batch_size)
    return data


def split_rows(inputs: Inputs, batch_size: int | None, axis: int = 0) -> list[Inputs]:
    """Views of `batch_size` rows each, of nested inputs; None is all rows."""
    if batch_size is None:
        return [inputs]
    if isinstance(inputs, Tensor):
        return list(inputs.split(batch_size, dim=axis))
    leaves, structure = pytree.tree_flatten(inputs)
    pieces = zip(*(leaf.split(batch_size, dim=axis) for leaf in leaves), strict=True)
    return [pytree.tree_unflatten(piece, structure) for piece in pieces]


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
            "length, or go batch by batch through `ensemble.predict_iter(data)`"
        )
    return type(parts[0]).concat(list(parts))
