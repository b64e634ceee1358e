"""Density-score estimators: grad log rho at samples x of an unknown density rho, from the samples alone.

Each estimate is a linear combination of the samples, g_i = sum_j A_ij x_j, with a matrix A `(member, member)` whose
rows sum to zero and which depends on the distances between the samples only. So members are never laid end to end:
their products X X^T are summed leaf by leaf, A is found, and each leaf is multiplied by it.

With K_ij = k(x_i, x_j) and G_i = sum_j grad_1 k(x_i, x_j):

    kde    g = G_i / sum_j K_ij                           gradient of the log of a kernel density estimate
    sge    g = (K + eta I)^-1 G                           Stein gradient estimator
    ssge   g = sum over eigenpairs of K + eta I           spectral Stein gradient estimator

Reference: D'Angelo & Fortuin (2021); Li & Turner (2018) for sge; Shi, Sun & Zhu (2018) for ssge.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.methods.repulsion.kernels import RBF, Kernel, squared_distances

ESTIMATORS = ("kde", "sge", "ssge")
_ROUNDING = 1e-9
_NO_VARIANCE = 1e-6  # a variance below this share of the largest is taken for rounding


def kde(x: Tensor, kernel: Kernel | None = None) -> Tensor:
    """Gradient of the log of a kernel density estimate at its own samples; `(member, dim)` gives `(member, dim)`."""
    return _estimate(x, "kde", kernel, eta=1.0)  # it has none


def sge(x: Tensor, kernel: Kernel | None = None, eta: float = 0.01) -> Tensor:
    """Stein gradient estimator, ridge `eta`; `(member, dim)` gives `(member, dim)`."""
    return _estimate(x, "sge", kernel, eta)


def ssge(
    x: Tensor,
    kernel: Kernel | None = None,
    eta: float = 0.01,
    threshold: float | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Spectral Stein gradient estimator, at the samples or `at` other points `(point, dim)`.

    (K + eta I) u_j = lambda_j u_j,   psi_j(z) = sqrt(n)/lambda_j sum_m u_jm k(z, x_m),   beta_j = mean of -grad psi_j,
    g(z) = sum_j beta_j psi_j(z) = k(z, X) [ sum_j u_j u_j^T / lambda_j^2 ] G

    With `threshold`, only the largest eigenvalues that make up this share of their sum, the one that crosses it
    included; None takes all. The bandwidth is that of the samples, for points elsewhere too.
    """
    kernel = kernel or RBF()
    _check(x, eta, threshold)
    squared = squared_distances(x, x)
    length = kernel.length(squared)
    between, coupling = kernel.couple(squared, length)
    across = between if at is None else kernel.couple(squared_distances(at, x), length)[0]
    return across @ (_spectral(between, eta, threshold) @ (laplacian(coupling) @ (x - x.mean(0))))


def score_matrix(
    squared: Tensor, estimator: str, kernel: Kernel, eta: float = 0.01, threshold: float | None = None
) -> Tensor:
    """The matrix A of an estimator, g = A x, from squared distances `(member, member)`."""
    between, coupling = kernel.couple(squared, kernel.length(squared))
    return matrix_of(between, laplacian(coupling), estimator, eta, threshold)


def matrix_of(
    between: Tensor, gradients: Tensor, estimator: str, eta: float = 0.01, threshold: float | None = None
) -> Tensor:
    """The matrix A of an estimator from the kernel K between samples and the matrix that gives its sums G."""
    if estimator == "kde":
        return gradients / between.sum(1, keepdim=True)
    if estimator == "sge":
        return torch.linalg.solve(_ridged(between, eta), gradients)
    return between @ _spectral(between, eta, threshold) @ gradients


def laplacian(coupling: Tensor) -> Tensor:
    """The matrix that gives the sums of kernel gradients: G_i = -sum_j L_ij (x_i - x_j) = (L - diag(L 1)) x."""
    off = coupling - torch.diag(coupling.diagonal())
    return off - torch.diag(off.sum(1))


def calibrate(matrix: Tensor, gram: Tensor, dim: float | Tensor) -> Tensor:
    """Rescale an estimate g = A x so that it keeps Stein's identity.

    Every density on `dim` coordinates has E[(x - E x) . grad log rho(x)] = -dim. Kernel estimates fall short of it by
    a factor that grows with the dimension: with kde and the median rule, about log(n + 1) / (2 dim) of the true score
    is left. One number per step puts it right:

        A <- A * dim / s,   s = -(1/n) sum_i (x_i - mean) . g_i = -trace(A B) / n,   B the products of centred rows
    """
    held = -(matrix * gram).sum() / len(gram)  # B is symmetric
    guides = held > _ROUNDING * matrix.norm() * gram.norm()  # outliers can turn it round: then it is no guide
    rescaled = torch.where(guides, matrix * (dim / torch.where(guides, held, 1.0)), matrix)
    return torch.where(gram.any(), rescaled, 0.0)


class PrincipalAxes(NamedTuple):
    """Variances `(direction,)`, ascending, and directions `(member, direction)`; those in which samples do not differ
    have the variance 0 and are 0 themselves, and come first."""

    values: Tensor
    vectors: Tensor

    @property
    def rank(self) -> Tensor:
        """In how many directions samples differ."""
        return (self.values > 0).sum()


def principal_axes(gram: Tensor, dim: int) -> PrincipalAxes:
    """The eigenpairs of the products B of centred samples but for the vector of ones: n - 1, at most `dim` not zero."""
    count = len(gram)
    # The vector of ones, which B sends to zero, is moved out of the way to the end.
    values, vectors = torch.linalg.eigh(gram + 2 * gram.trace() / count)
    values, vectors = values[:-1], vectors[:, :-1]
    differ = values > _NO_VARIANCE * values[-1:].clamp(min=0)
    differ[: max(count - 1 - dim, 0)] = False
    return PrincipalAxes(torch.where(differ, values, 0.0), torch.where(differ, vectors, 0.0))


def effective_dimension(found: PrincipalAxes, dim: int, share: float = 0.5) -> Tensor:
    """How many of the coordinates n samples can stand for, between their rank and `dim`.

    Samples span at most n - 1 directions, and members that follow a posterior settle in its widest ones. Charged with
    the entropy of all `dim` directions, they spread too far there. Each direction that they do not span has at most the
    variance of the narrowest that they do; of this, the `share` is taken:

        effective = r (1 + share (dim - r) lambda_r / sum_k lambda_k),   r = min(n - 1, dim)

    where lambda_1 >= ... >= lambda_r > 0 are eigenvalues of the products B of centred rows.
    """
    values, rank = found.values, found.rank.to(found.values)
    if not len(values):
        return rank
    narrowest = torch.where(values > 0, values, torch.inf).min()
    return torch.where(rank > 0, rank * (1 + share * (dim - rank) * (narrowest / values.sum())), 0.0)


def whitened(found: PrincipalAxes) -> tuple[Tensor, Tensor]:
    """Products of the samples in coordinates in which their spread is the same in all directions, and the way back.

    With B = U diag(lambda) U^T, whitened samples have the products n U U^T, and an estimate A for them is the estimate
    A (n B^+) for the samples themselves: the score is the same whatever units and axes the coordinates have. Directions
    in which the samples do not differ are left out. Gives `(n U U^T, n B^+)`.
    """
    values, vectors = found
    narrowed = vectors / torch.where(values > 0, values, 1.0)
    return len(vectors) * vectors @ vectors.T, len(vectors) * narrowed @ vectors.T


def _estimate(x: Tensor, estimator: str, kernel: Kernel | None, eta: float) -> Tensor:
    _check(x, eta, None)
    # The rows of the matrix sum to zero; centring keeps the rounding of that small.
    return score_matrix(squared_distances(x, x), estimator, kernel or RBF(), eta) @ (x - x.mean(0))


def _spectral(between: Tensor, eta: float, threshold: float | None) -> Tensor:
    """sum_j u_j u_j^T / lambda_j^2 over the eigenpairs that are kept."""
    values, vectors = torch.linalg.eigh(_ridged(between, eta))
    if threshold is not None:
        share = values.flip(0).cumsum(0) / values.sum()
        kept = int((share < threshold).sum()) + 1
        values, vectors = values[-kept:], vectors[:, -kept:]
    return (vectors / values**2) @ vectors.T


def _ridged(between: Tensor, eta: float) -> Tensor:
    return between + eta * torch.eye(len(between), dtype=between.dtype, device=between.device)


def _check(x: Tensor, eta: float, threshold: float | None) -> None:
    if x.dim() != 2:
        raise SettingError(f"samples are a matrix (member, dim), got shape {tuple(x.shape)}")
    require(eta > 0, f"eta is a positive ridge, got {eta}")
    require(threshold is None or 0 < threshold <= 1, f"threshold is a share in (0, 1] or None, got {threshold}")
