"""Predictions of several numbers that depend on one another: normals with a low-rank covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from bayesemble.predictive.base import match_targets, sum_outputs
from bayesemble.predictive.reals import NormalPredictive


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateNormalPredictive(NormalPredictive):
    """A mixture of normals over all outputs of a row together, Normal(mean, diag(noise) + F F'), one per member.

    Densities and draws are those of all outputs together; `stds`, `cdf`, `quantile`, `variance` and its parts are those
    of each output, and `covariance` has what they share.
    """

    noise: Tensor
    """Variances of what each output has alone, shaped like `means`."""
    factors: Tensor
    """F, `(member, row, ..., output, rank)`."""

    @property
    def member_covariance(self) -> Tensor:
        """Covariances of each member, `(member, row, ..., output, output)`."""
        return torch.diag_embed(self.noise) + self.factors @ self.factors.mT

    @property
    def covariance(self) -> Tensor:
        """Covariance of the mixture, `(row, ..., output, output)`: that inside the members and that of their means."""
        away = self.means - self.mean
        return self._average(self.member_covariance + away.unsqueeze(-1) * away.unsqueeze(-2))

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density of all outputs of a row together under each member, `(member, row)`."""
        values = match_targets(targets, self.means.shape, per_member=True).to(self.means.dtype)
        return sum_outputs(log_low_rank_normal(values - self.means, self.noise, self.factors))

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each member."""
        own = torch.randn(self.means.shape, generator=generator, dtype=self.means.dtype)
        shape = (*self.factors.shape[:-2], self.factors.shape[-1], 1)
        common = torch.randn(shape, generator=generator, dtype=self.means.dtype)
        return self.means + self.noise.sqrt() * own + (self.factors @ common).squeeze(-1)

    def stretch(self, factor: float) -> Self:
        """The same means, with all standard deviations times a factor."""
        return replace(super().stretch(factor), noise=factor**2 * self.noise, factors=factor * self.factors)

    def rescale(self, shift: Any, scale: Any) -> Self:
        """Predictions of `shift + scale * y`: back to the original units of a standardised target."""
        size = torch.as_tensor(scale, dtype=torch.float64).to(self.means).expand(self.means.shape[-1:])
        own: dict[str, Any] = {"noise": size.square() * self.noise, "factors": size.unsqueeze(-1) * self.factors}
        return replace(super().rescale(shift, scale), **own)

    def of_moments(self) -> dict[str, Any]:
        """Mean and covariance of the mixture, as the average noise and a factor of as many columns as outputs."""
        noise = self._average(self.noise)
        values, vectors = torch.linalg.eigh(self.covariance - torch.diag_embed(noise))
        factors = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        return super().of_moments() | {"noise": noise[None], "factors": factors[None]}


def log_low_rank_normal(away: Tensor, noise: Tensor, factors: Tensor) -> Tensor:
    """log Normal(away; 0, D + F F'), over the last axis, of rank r at the cost of r x r matrices.

    With M = I + F' D^-1 F and z = M^-1 F' D^-1 x, which is the mean of what the outputs have in common given x,

        x' (D + F F')^-1 x = (x - F z)' D^-1 (x - F z) + z' z,     det(D + F F') = det D det M

    a sum of squares, in which nothing cancels.
    """
    weighted = factors / noise.unsqueeze(-1)
    shared, rank = factors.mT @ weighted, factors.shape[-1]
    # Columns that are alike in all digits leave no more of I than this.
    least = 1 + 8 * rank * torch.finfo(factors.dtype).eps * shared.diagonal(dim1=-2, dim2=-1).sum(-1)
    unit = torch.eye(rank, dtype=factors.dtype, device=factors.device)
    lower = torch.linalg.cholesky_ex(shared + least[..., None, None] * unit)[0]
    half = torch.linalg.solve_triangular(lower, weighted.mT @ away.unsqueeze(-1), upper=False)
    common = torch.linalg.solve_triangular(lower.mT, half, upper=True)
    left = away - (factors @ common).squeeze(-1)
    squares = (left.square() / noise).sum(-1) + common.square().sum((-2, -1))
    log_determinant = noise.log().sum(-1) + 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -(squares + log_determinant + away.shape[-1] * math.log(2 * math.pi)) / 2
