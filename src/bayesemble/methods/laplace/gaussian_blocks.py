"""Gaussians whose precision comes in blocks: over all chosen leaves in one line, or over each layer.

A block lays leaves side by side as a matrix `(row, column)`. Its curvature is a Kronecker product `left (x) right`, and
the precision of the prior, the same for all rows, is a number d for each column:

    precision = left (x) right + I (x) diag(d)

With S = diag(d)^-1/2 and the eigenvectors of `left` and of S right S it is diagonal, which gives its determinant for
any multiple of the prior, and draws. A whole matrix is a block of one row without `left`; a diagonal too.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayesemble.core.errors import SettingError
from bayesemble.core.types import Leaves
from bayesemble.task.network_ends import parameters_by_layer
from bayesemble.task.priors import Shapes
from bayesemble.task.select import layers

STRUCTURES = ("full", "kron", "diag")
_WIDE = 8  # bytes of a number in double precision, in which all is worked out
_LIMITS = (1e-12, 1e12)  # of a chosen precision


Precisions = dict[str, float | Tensor] | Tensor
"""Of the prior: a number for each leaf, or for each number of it; or the root S of a covariance S S' of all numbers."""


class Layout(NamedTuple):
    """Leaves side by side as a matrix: each is reshaped to `size` rows."""

    names: tuple[str, ...]
    rows: int

    def columns(self, shapes: Shapes) -> list[int]:
        """How many columns each leaf takes."""
        return [math.prod(shapes[name]) // self.rows for name in self.names]

    def join(self, leaves: Leaves) -> Tensor:
        """Leaves with the same axes in front of their own, two of them, as matrices `(..., row, column)`."""
        parts = [leaves[name].reshape(*leaves[name].shape[:2], self.rows, -1) for name in self.names]
        return torch.cat(parts, dim=3)

    def split(self, matrix: Tensor, shapes: Shapes) -> Leaves:
        """The leaves that a matrix `(row, column)` is made of."""
        parts = matrix.split(self.columns(shapes), dim=1)
        return {name: part.reshape(shapes[name]) for name, part in zip(self.names, parts, strict=True)}


class Block(NamedTuple):
    """The curvature `left (x) right` of a matrix of leaves; without `left` there is one row."""

    layout: Layout
    left: Tensor | None
    right: Tensor
    """`(column, column)`, or a diagonal `(column,)`."""


class Spectrum(NamedTuple):
    """A block in coordinates in which the precision is `values + 1`, or `values + c` under c times the prior."""

    values: Tensor
    """`(row, column)`."""
    left: Tensor | None
    """Columns are what a coordinate means to the rows."""
    right: Tensor
    """Columns are what a coordinate means to the columns; if that is a multiple of one, the multiples."""

    def factors(self, scale: float, temperature: float) -> Leaves:
        """What `deviation` makes draws of: their covariance is temperature / precision."""
        std = (temperature / (self.values + scale)).sqrt()
        if self.right.dim() == 1:
            return {"std": std * self.right}
        return {"std": std, "right": self.right} | ({} if self.left is None else {"left": self.left})


def layouts(structure: str, module: nn.Module, names: list[str]) -> list[Layout]:
    """How the chosen leaves are laid out: all in one line, or weight and bias of each layer side by side."""
    if structure != "kron":
        return [Layout(tuple(names), 1)]
    owners = list(parameters_by_layer(module).values())
    found = []
    for layer, own in layers(module, names).items():
        kind, prefix = module.get_submodule(layer), f"{layer}." if layer else ""
        tied = [name for name in own if sum(name in others for others in owners) > 1]
        plain = isinstance(kind, nn.Linear | nn.Conv2d) and set(own) <= {prefix + "weight", prefix + "bias"}
        if not plain or tied:
            reason = f"shares {tied[0]} with another one" if tied else f"is {type(kind).__name__}"
            raise SettingError(
                "structure='kron' is for layers nn.Linear and nn.Conv2d with parameters of their own; the layer "
                f"{layer!r} {reason}. Leave it out, as with select=(nn.Linear, nn.Conv2d), or take structure='diag'"
            )
        found.append(Layout(tuple(own), len(module.get_parameter(own[0]))))
    return found


def memory(structure: str, plan: list[Layout], shapes: Shapes, num_members: int, itemsize: int) -> int:
    """Bytes that the blocks of a member need while they are worked out, and those of all members afterwards."""
    numbers = []
    for layout in plan:
        width = sum(layout.columns(shapes))
        sides = {"diag": 0, "full": width**2, "kron": width**2 + layout.rows**2}[structure]
        numbers.append(layout.rows * width + sides)
    working = sum(numbers) + 3 * max(numbers)  # the sums over rows, and the parts of an eigendecomposition
    return _WIDE * working + num_members * itemsize * sum(numbers)


def spectrum(block: Block, shapes: Shapes, precisions: Precisions) -> Spectrum:
    """Find the coordinates of a block under a prior with one precision for each leaf or number, or a covariance."""
    inverse = _inverse_roots(block, shapes, precisions)
    if block.right.dim() == 1:
        return Spectrum((block.right * inverse**2).unsqueeze(0), None, inverse)
    values, vectors = torch.linalg.eigh(_scaled(block.right, inverse))
    values, vectors, left = values.clamp_min(0).unsqueeze(0), _times(inverse, vectors), None
    if block.left is not None:
        sizes, left = torch.linalg.eigh(block.left)
        values = sizes.clamp_min(0).unsqueeze(1) * values
    return Spectrum(values, left, vectors)


def _inverse_roots(block: Block, shapes: Shapes, precisions: Precisions) -> Tensor:
    """d^-1/2 of each column; or the root S of a covariance S S' of all columns."""
    if isinstance(precisions, Tensor):
        return precisions.to(block.right)
    stds = [
        torch.as_tensor(precisions[name], dtype=block.right.dtype).to(block.right).pow(-0.5)
        for name in block.layout.names
    ]
    columns = zip(stds, block.layout.columns(shapes), strict=True)
    return torch.cat([std.flatten() if std.dim() else std.expand(count) for std, count in columns])


def _scaled(right: Tensor, inverse: Tensor) -> Tensor:
    """S' right S, of a root S or of the diagonal of one."""
    if inverse.dim() == 1:
        return (right * inverse).mul_(inverse.unsqueeze(1))
    return inverse.T @ right @ inverse


def _times(inverse: Tensor, vectors: Tensor) -> Tensor:
    """S vectors, of a root S or of the diagonal of one."""
    return inverse.unsqueeze(1) * vectors if inverse.dim() == 1 else inverse @ vectors


def pivots(block: Block, shapes: Shapes, precisions: Precisions) -> Spectrum:
    """The same of a whole matrix for this prior and no multiple of it, by S right S + 1 = L (values + 1) L'.

    That takes a tenth of the time; L is triangular with a diagonal of ones, and S L'^-1 says what coordinates mean.
    """
    inverse = _inverse_roots(block, shapes, precisions)
    scaled = _scaled(block.right, inverse)
    scaled.diagonal().add_(1)
    lower, failed = torch.linalg.cholesky_ex(scaled)
    if failed:  # a curvature so large that the prior is lost in its rounding
        return spectrum(block, shapes, precisions)
    sizes = lower.diagonal().clone()
    del scaled  # the matrices may be large
    inverted = torch.linalg.solve_triangular(lower.div_(sizes), torch.eye(len(sizes)).to(lower), upper=False)
    whole = inverted.mul_(inverse).T if inverse.dim() == 1 else inverse @ inverted.T
    return Spectrum((sizes.square() - 1).clamp_min(0).unsqueeze(0), None, whole)


def deviation(factors: Leaves, noise: Tensor) -> Tensor:
    """A draw of the matrix `(row, column)` of a block around its mean, from standard normal numbers of that shape."""
    drawn = factors["std"] * noise
    if "right" in factors:
        drawn = drawn @ factors["right"].T
    return factors["left"] @ drawn if "left" in factors else drawn


def own_variances(factors: Leaves) -> Tensor:
    """The variance of each number of the matrix `(row, column)` of a block."""
    squares = factors["std"].square()
    if "right" in factors:
        squares = squares @ factors["right"].square().T
    return factors["left"].square() @ squares if "left" in factors else squares


def variance(factors: Leaves, slopes: Tensor) -> Tensor:
    """The variance of sum(slopes * deviation), for slopes `(..., row, column)`."""
    if "right" in factors:
        slopes = slopes @ factors["right"]
    if "left" in factors:
        slopes = factors["left"].T @ slopes
    return (slopes * factors["std"]).square().sum((-2, -1))


def best_scale(values: Tensor, size: float) -> float:
    """The multiple c of the prior with the largest evidence: c * size = sum_i v_i / (v_i + c).

    The left side grows with c and the right side falls, so bisection finds the only crossing. `size` is w' D w.
    """
    low, high = (math.log(limit) for limit in _LIMITS)
    for _ in range(100):
        middle = (low + high) / 2
        scale = math.exp(middle)
        determined = float((values / (values + scale)).sum())
        low, high = (middle, high) if determined > scale * size else (low, middle)
    return math.exp((low + high) / 2)


def log_evidence(log_likelihood: float, values: Tensor, size: float, scale: float) -> float:
    """The Laplace approximation of log p(y), under `scale` times the prior, whose size at the mode is `size`."""
    half_logs = float((values + scale).log().sum()) / 2
    return log_likelihood + values.numel() * math.log(scale) / 2 - scale * size / 2 - half_logs
