"""Data that come as mappings: columns by name, batches of a tokenizer, rows of a `datasets.Dataset`.

One key holds the targets, which the task names: `Task(..., targets="labels")`. All others are inputs, which the network
takes by these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
            'such as Task(..., targets="labels")'
        )
    return inputs_of(batch, key), batch[key]


def inputs_of(batch: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """A batch without its targets, if it has them."""
    return {name: values for name, values in batch.items() if name != key}


def has_rows(data: Any) -> bool:
    """Whether something that is no torch `Dataset` gives rows by number, as a `datasets.Dataset` does."""
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return by_number and hasattr(data, "column_names") and not isinstance(data, Mapping)


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
