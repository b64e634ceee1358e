"""What users hand in as data becomes tensors here, and what cannot be used is named with its place."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesemble.core.errors import DataError
from bayesemble.core.types import Inputs, tensors_of

NumpyArray = np.ndarray[Any, Any]


def as_inputs(inputs: Any, dtype: torch.dtype) -> Inputs:
    """Arrays, or tuples or mappings of arrays, as tensors; real numbers in the network's number type."""
    if isinstance(inputs, Tensor):
        return as_tensor(inputs, "inputs", dtype)
    if isinstance(inputs, Dataset | DataLoader):
        raise DataError(
            f"inputs must be arrays or tensors, got a {type(inputs).__name__}; take the inputs out of it, or go "
            "through it with its targets by `ensemble.predictions(data)`"
        )
    if isinstance(inputs, Mapping):
        return {key: as_tensor(value, _input_name(inputs, key), dtype) for key, value in inputs.items()}
    if isinstance(inputs, tuple) or (isinstance(inputs, list) and inputs and isinstance(inputs[0], Tensor)):
        return tuple(as_tensor(value, _input_name(inputs, i), dtype) for i, value in enumerate(inputs))
    return as_tensor(inputs, "inputs", dtype)


def as_tensor(values: Any, name: str, dtype: torch.dtype) -> Tensor:
    """One array of numbers as a tensor; real numbers become `dtype`. Names the first cell that is no number."""
    tensor = numbers(values, name)
    if tensor.dim() == 0:
        raise DataError(f"{name} must be an array with rows, got the single value {tensor.item()}")
    return tensor.to(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor


def numbers(values: Any, name: str) -> Tensor:
    """Anything that holds numbers as a tensor, whatever it is made of; doubles stay doubles."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(_native(values, name))
    if tensor.is_complex():
        raise DataError(f"{name} must be real numbers, got {tensor.dtype}")
    return tensor


def check_rows(inputs: Inputs, targets: Tensor | None, per_member: bool = False) -> None:
    """Refuse empty data, unequal lengths, and cells that are not finite."""
    if isinstance(inputs, Tensor) and targets is None and not per_member and inputs.shape[0]:  # mostly
        check_finite(inputs, "inputs")
        return
    if not tensors_of(inputs):
        raise DataError("there are no inputs; a tensor, or a tuple or dict of tensors, was needed")
    named = {_input_name(inputs, key): leaf for key, leaf in _items(inputs)}
    if targets is not None:
        named["targets"] = targets
    if per_member:
        for name, leaf in named.items():
            if leaf.dim() < 2:
                raise DataError(f"{name} of data per member must be (member, row, ...), got {tuple(leaf.shape)}")
        _check_equal({name: leaf.shape[0] for name, leaf in named.items()}, "members")
    _check_equal({name: leaf.shape[1 if per_member else 0] for name, leaf in named.items()}, "rows")
    for name, leaf in named.items():
        check_finite(leaf, name, per_member)


def row_weights(given: Any, num_rows: int, dtype: torch.dtype) -> Tensor:
    """A weight for each row, `(row,)`, as numbers that are not negative."""
    weights = as_tensor(given, "weights", dtype).to(dtype)
    if weights.dim() == 2 and weights.shape[1] == 1:
        weights = weights.squeeze(1)
    if weights.shape != (num_rows,):
        raise DataError(f"{num_rows} rows need as many weights, got them in the shape {tuple(weights.shape)}")
    wrong = ~(weights >= 0) | ~weights.isfinite()
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"weights are numbers from 0, that of row {row} is {weights[row].item()}")
    return weights


def check_member_count(inputs: Inputs, num_members: int) -> None:
    """Raise if per-member data has a different number of members."""
    found = len(tensors_of(inputs)[0])
    if found != num_members:
        raise DataError(f"the data per member is that of {found} members, but there are {num_members}")


def check_finite(leaf: Tensor, name: str, per_member: bool = False) -> None:
    """Name the first cell that is NaN or infinite."""
    if not leaf.is_floating_point() or math.isfinite(
        leaf.sum().item()
    ):  # quick; a sum may overflow though all are finite
        return
    if not leaf.isfinite().all():
        index = (~leaf.isfinite()).nonzero()[0].tolist()
        where = _position(index, ["member", "row", "column"] if per_member else ["row", "column"])
        raise DataError(
            f"{name} must be finite numbers; {where} holds {leaf[tuple(index)].item()}: remove or fill such cells"
        )


def _items(inputs: Inputs) -> list[tuple[Any, Tensor]]:
    if isinstance(inputs, dict):
        return list(inputs.items())
    return list(enumerate(inputs)) if isinstance(inputs, tuple) else [(None, inputs)]


def _input_name(inputs: Any, key: Any) -> str:
    """What an input is called in messages: by its key or its place, if there are several."""
    return "inputs" if isinstance(inputs, Tensor) else f"input {key!r}"


def _check_equal(sizes: dict[str, int], what: str) -> None:
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"all parts of the data must have the same number of {what}, got {listed}")
    if not next(iter(sizes.values())):
        raise DataError(f"the data has no {what}; at least one is needed")


def _native(values: Any, name: str) -> NumpyArray:
    """An array that torch can take: of native numbers, in memory of its own."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name} must be an array of numbers with rows of equal length: {error}") from None
    if np.ma.is_masked(values):
        raise DataError(f"{name} must be numbers; some cells are masked: remove or fill such cells")
    if array.dtype.kind in "OUS":
        array = _parsed(array, name)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be real numbers, got {array.dtype}; turn dates into days, for example")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch can hardly compute with the wide unsigned types
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # Reversed, read-only and foreign-endian arrays are not torch's: those are copied, but for files mapped into memory.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 for stride in native.strides):
        return native.copy()
    if native.flags.writeable:
        return native
    return np.asarray(_Mapped(native)) if _is_mapped(native) else native.copy()


def _is_mapped(array: Any) -> bool:
    """Whether an array is a file mapped into memory, or a view of one."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


class _Mapped:
    """A read-only file in memory, as an array that torch takes without a copy and a warning.

    Nothing writes into what a user hands in: a network that changes its inputs is refused, on a copy of a few rows.
    """

    def __init__(self, array: NumpyArray) -> None:
        self.array = array  # must stay as long as the new one
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _parsed(array: NumpyArray, name: str) -> NumpyArray:
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError):
        for index, cell in np.ndenumerate(array):
            try:
                float(cell)
            except (ValueError, TypeError):
                words = cell.item() if isinstance(cell, np.generic) else cell
                where = _position(index, ["row", "column"])
                raise DataError(f"{name} must be numbers; {where} holds {words!r}") from None
        raise


def _position(index: Any, axes: list[str]) -> str:
    """Where a cell is, in words; of images only the row is named."""
    if len(index) > len(axes):
        axes = axes[:-1]
    return ", ".join(f"{axis} {index}" for axis, index in zip(axes, index, strict=False))
