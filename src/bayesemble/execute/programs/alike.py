"""Whether two ways to the same numbers came to the same."""

from collections.abc import Sequence

from torch import Tensor


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
    size = sum(float(one.double().square().nansum()) for one in ones)
    gap = sum(float((one.double() - other.double()).square().nansum()) for one, other in zip(ones, others, strict=True))
    return gap <= share**2 * size
