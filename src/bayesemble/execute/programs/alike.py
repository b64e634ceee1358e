"""Whether two ways to the same numbers came to the same."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bayesemble.core.memory import how_many_fit

_SMALL = 1e-20  # sums of squares below it may lack what single precision takes for zero
_AT_A_TIME = 1 << 16  # numbers that are compared in one go, which takes several copies of them


def same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all numbers are the same; those that are none count as one."""
    return _shapes(ones) == _shapes(others) and all(
        bool(((one == other) | ((one != one) & (other != other))).all()) for one, other in _pairs(ones, others)
    )


def close(ones: Sequence[Tensor], others: Sequence[Tensor], share: float = 1e-4) -> bool:
    """Whether all numbers together differ by a small share of their length.

    Where a gradient is nothing but rounding, as that of a bias in front of batch norm, Adam makes a whole step of it.
    """
    if _shapes(ones) != _shapes(others):
        return False
    size, gap = _size_and_gap(ones, others, torch.float32, lambda values: values.dot(values))  # quick, mostly enough
    if not (size > _SMALL and math.isfinite(size + gap)):
        size, gap = _size_and_gap(ones, others, torch.float64, lambda values: values.square().nansum())
    return gap <= share**2 * size


def _size_and_gap(
    ones: Sequence[Tensor], others: Sequence[Tensor], dtype: torch.dtype, squared: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    """The squared length of all numbers, and that of what they differ by."""
    size = gap = 0.0
    for one, other in _pairs(ones, others):
        here, there = one.to(dtype).flatten(), other.to(dtype).flatten()
        size += float(squared(here))
        gap += float(squared(here - there))
    return size, gap


def _shapes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def _pairs(ones: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What is to be compared, a few rows at a time where a tensor is large."""
    for one, other in zip(ones, others, strict=True):
        rows = how_many_fit(_AT_A_TIME, one[:1].numel()) if one.dim() else 1
        parted = one.dim() and rows < len(one)
        yield from zip(one.split(rows), other.split(rows), strict=True) if parted else ((one, other),)
