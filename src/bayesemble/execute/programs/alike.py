"""Whether two ways to the same numbers came to the same."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_SMALL = 1e-20  # sums of squares below it may lack what single precision takes for zero


def same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all numbers are the same; those that are none count as one."""
    return len(ones) == len(others) and all(
        one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
        for one, other in zip(ones, others, strict=True)
    )


def close(ones: Sequence[Tensor], others: Sequence[Tensor], share: float = 1e-4) -> bool:
    """Whether all numbers are the same up to rounding: the difference of all of them is a small share of their length.

    Where a gradient is nothing but rounding, as that of a bias in front of batch norm, Adam makes a whole step of it.
    """
    if [one.shape for one in ones] != [other.shape for other in others]:
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
    for one, other in zip(ones, others, strict=True):
        here, there = one.to(dtype).flatten(), other.to(dtype).flatten()
        size += float(squared(here))
        gap += float(squared(here - there))
    return size, gap
