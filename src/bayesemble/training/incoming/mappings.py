"""Data that come by name: mappings of columns, batches of a tokenizer, Arrow tables, rows of a `datasets.Dataset`.

One key holds the targets, which the task names: `Task(..., targets="labels")`. All others are inputs, which the network
takes by these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from bayesemble.core.errors import DataError


def with_targets(batch: Mapping[str, Any], key: str | None) -> tuple[dict[str, Any], Any]:
    """Inputs and targets of a batch."""
    if key is None or key not in batch:
        needed = "" if key is None else f", but the task has targets={key!r}"
        raise DataError(
            f"the data are a mapping with {', '.join(map(repr, batch))}{needed}; say which of them are the targets, "
            'such as Task(..., targets="labels"); for batches of another form there is Task(..., unpack=...)'
        )
    return inputs_of(batch, key), batch[key]


def inputs_of(batch: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """A batch without its targets, if it has them."""
    return {name: values for name, values in batch.items() if name != key}


def columns_of(data: Any) -> Mapping[str, Any] | None:
    """The columns by name of a mapping, or of a table or record batch of Arrow; None of anything else."""
    if isinstance(data, Mapping):
        return data
    return {name: _numbers(data.column(name)) for name in data.column_names} if _is_arrow(data) else None


def has_rows(data: Any) -> bool:
    """Whether something that is no torch `Dataset` gives rows by number, as a `datasets.Dataset` does."""
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return by_number and hasattr(data, "column_names") and not (isinstance(data, Mapping) or _is_arrow(data))


def _is_arrow(data: Any) -> bool:
    """Whether data look like a table or record batch of Arrow, whoever has made them."""
    return all(hasattr(data, name) for name in ("column_names", "column", "to_pydict"))


def _numbers(column: Any) -> Any:
    """A column of Arrow as an array; one that has a list in each row, as an array with an axis more."""
    array = np.asarray(column)
    return np.asarray(array.tolist()) if array.dtype == object else array


def stack_rows(rows: Sequence[Any]) -> Any:
    """Put rows into a batch: mappings of numbers by key, all others as torch does it."""
    if not isinstance(rows[0], Mapping):
        return default_collate(list(rows))
    return {key: _stacked(key, [row[key] for row in rows]) for key in rows[0]}


def _stacked(key: str, values: list[Any]) -> Tensor:
    try:
        tensors = [torch.as_tensor(value) for value in values]
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"column {key!r} holds {values[0]!r}, which is no number; leave the column out, for example by "
            f"data.remove_columns([{key!r}])"
        ) from None
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) > 1:
        other = next(shape for shape in shapes if shape != shapes[0])
        raise DataError(
            f"rows of {key!r} have the shapes {shapes[0]} and {other}; pad them to one length, or pass a DataLoader "
            "whose collate_fn pads each batch"
        )
    return torch.stack(tensors)
