"""Kernels between members: how alike two of them are, from the distance between them.

A kernel sees nothing but squared distances `(member, member)`, so it serves weights and functions, of any size, alike.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.settings import setting, validate

_SMALLEST_LENGTH, _SMALLEST_SHARE = 1e-6, 1e-3
_ROUNDING = 1e-12

_BANDWIDTH_HELP = '"median" takes it from the distances between the members; a number is a fixed length'


@dataclass(frozen=True)
class Kernel(ABC):
    """k(x, y), a function of the Euclidean distance |x - y| and of one length, the bandwidth.

    The median rule takes the true median of *all* n * n distances of the samples, the n zeros of the diagonal
    included, as the original code of SVGD does. It is no part of any gradient. Where the median is zero (one sample, or
    more than half of them the same) the length is a thousandth of the largest distance, and at least 1e-6.
    """

    bandwidth: str | float = setting("median", _BANDWIDTH_HELP, choices=("median",), above=0)

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Kernel matrix between rows: `(n, dim)` and `(m, dim)` give `(n, m)`; the length is that of `y`."""
        y = x if y is None else y
        return self.couple(squared_distances(x, y), self.length(squared_distances(y, y)))[0]

    def length(self, squared: Tensor) -> Tensor:
        """The bandwidth that suits samples with these squared distances `(n, n)`."""
        if self.bandwidth != "median":
            return torch.as_tensor(float(self.bandwidth), dtype=squared.dtype, device=squared.device)
        smallest = (_SMALLEST_SHARE * squared.detach().max().sqrt()).clamp(min=_SMALLEST_LENGTH)
        return torch.maximum(self._median_length(squared.detach(), math.log(len(squared) + 1)), smallest)

    @abstractmethod
    def couple(self, squared: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Kernel K `(n, m)` and coupling L `(n, m)`, which gives its gradient: grad_x k(x, y) = -L (x - y)."""

    @abstractmethod
    def _median_length(self, squared: Tensor, log_count: float) -> Tensor: ...


class RBF(Kernel):
    """k = exp(-|x - y|^2 / (2 length^2)), by the median rule length^2 = median(|x - y|^2) / (2 log(n + 1)).

    Reference: Liu & Wang (2016); D'Angelo & Fortuin (2021).
    """

    def couple(self, squared: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """L = k / length^2, and 0 where x = y: there it multiplies a difference that is 0, or rounding."""
        kernel = torch.exp(-squared / (2 * length**2))
        return kernel, torch.where(squared > 0, kernel / length**2, 0.0)

    def _median_length(self, squared: Tensor, log_count: float) -> Tensor:
        return (_median(squared) / (2 * log_count)).sqrt()


class Laplace(Kernel):
    """k = exp(-|x - y| / length), by the median rule length = median(|x - y|) / log(n + 1).

    It has a kink at x = y, where its gradient is taken to be 0.
    """

    def couple(self, squared: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """L = k / (length |x - y|), and 0 where x = y."""
        distance = squared.sqrt()
        kernel = torch.exp(-distance / length)
        return kernel, torch.where(squared > 0, kernel / (length * distance), 0.0)

    def _median_length(self, squared: Tensor, log_count: float) -> Tensor:
        return _median(squared.sqrt()) / log_count


KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "laplace": Laplace}


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 of the rows, from differences: `(n, dim)` and `(m, dim)` give `(n, m)`."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def distances_of_gram(gram: Tensor) -> Tensor:
    """|x_i - x_j|^2 = B_ii + B_jj - 2 B_ij, from the products B = X X^T of centred rows; what is only rounding is 0."""
    squares = gram.diagonal()
    squared = squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * gram
    return torch.where(squared > _ROUNDING * squared.max(), squared, 0.0).fill_diagonal_(0)


def _median(values: Tensor) -> Tensor:
    """The true median: the mean of the two middle values if their number is even."""
    ordered = values.flatten().sort().values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
