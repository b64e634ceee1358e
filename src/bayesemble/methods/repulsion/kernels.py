"""Kernels between members: how alike two of them are, from the distance between them, or from their products.

A kernel sees nothing but squared distances `(member, member)`, so it serves weights and functions, of any size, alike;
the linear one sees their products.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require, setting, validate

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


@dataclass(frozen=True)
class OfDistances(Kernel):
    """k = function(|x - y|^2 / length^2), for a function of one's own that takes and gives tensors elementwise.

    By the median rule length^2 = median(|x - y|^2) / (2 log(n + 1)), as of the RBF kernel, which is the function
    exp(-s / 2); bandwidth 1 hands plain squared distances to the function. The slope comes from autograd.
    """

    function: Callable[[Tensor], Tensor] = setting(
        MISSING, "kernel of squared distances in units of the squared bandwidth", kw_only=True
    )

    def couple(self, squared: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """L = -2 function'(s) / length^2 with s = |x - y|^2 / length^2, and 0 where x = y."""
        if not callable(self.function):
            raise SettingError(
                "the function that the kernel is made of was not saved with the ensemble; make the method anew to "
                "train on"
            )
        with torch.enable_grad():
            scaled = (squared / length**2).detach().requires_grad_()
            kernel = self.function(scaled)
            if not isinstance(kernel, Tensor) or kernel.shape != scaled.shape or not kernel.requires_grad:
                raise SettingError(
                    "a kernel of one's own takes a tensor of squared distances and gives one of the same shape, by "
                    f"operations of torch that have a gradient; it gave {_called(kernel)}"
                )
            slope = torch.autograd.grad(kernel.sum(), scaled)[0]
        return kernel.detach(), torch.where(squared > 0, -2 * slope / length**2, 0.0)

    def _median_length(self, squared: Tensor, log_count: float) -> Tensor:
        return (_median(squared) / (2 * log_count)).sqrt()


@dataclass(frozen=True)
class Linear:
    """k = x . y + offset. No kernel of distances: it depends on where the members are, not on where they are apart.

    With G_i = sum_j grad_1 k(x_i, x_j) = sum_j x_j it is what the released code of repulsive ensembles computes: all
    members are pushed against their own sum. In SVGD, with the offset 1, members rest where their mean and covariance
    are those of a Gaussian posterior.

    Reference: Liu & Wang (2018), "Stein variational gradient descent as moment matching".
    """

    offset: float = setting(0.0, "what is added to the products", least=0)

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Kernel matrix between rows: `(n, dim)` and `(m, dim)` give `(n, m)`."""
        return self.of_products(x @ (x if y is None else y).T)

    def of_products(self, products: Tensor) -> Tensor:
        """The kernel of products x . y."""
        return products + self.offset


KernelLike = str | Kernel | Linear | Callable[[Tensor], Tensor]
"""A name of `KERNELS`, one of the classes above, or a function as `OfDistances` takes it."""

KERNELS = ("rbf", "laplace", "linear")


def resolve(kernel: KernelLike, bandwidth: str | float) -> Kernel | Linear:
    """The kernel that settings of a method describe."""
    given = bandwidth != "median"
    if isinstance(kernel, Kernel | Linear):
        name = type(kernel).__name__
        where = f"{name}(bandwidth={bandwidth!r})" if isinstance(kernel, Kernel) else "a kernel that has one"
        require(not given, f"bandwidth={bandwidth!r} cannot be honoured beside kernel={name}(...): use {where}")
        return kernel
    if kernel == "linear":
        require(not given, f"bandwidth={bandwidth!r} cannot be honoured: the linear kernel has none; leave it out")
        return Linear()
    if not isinstance(kernel, str):
        return OfDistances(bandwidth, function=kernel)
    return (RBF if kernel == "rbf" else Laplace)(bandwidth)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 of the rows, from differences: `(n, dim)` and `(m, dim)` give `(n, m)`."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def distances_of_gram(gram: Tensor) -> Tensor:
    """|x_i - x_j|^2 = B_ii + B_jj - 2 B_ij, from the products B = X X^T of centred rows; what is only rounding is 0."""
    squares = gram.diagonal()
    squared = squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * gram
    return torch.where(squared > _ROUNDING * squared.max(), squared, 0.0).fill_diagonal_(0)


def _called(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _median(values: Tensor) -> Tensor:
    """The true median: the mean of the two middle values if their number is even."""
    ordered = values.flatten().sort().values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
