"""Predictions of real numbers by several normals for each member, as mixture-density networks give them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.predictive.base import match_targets, sum_outputs
from bayesemble.predictive.reals import RealPredictive


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixturePredictive(RealPredictive):
    """A mixture over members of mixtures of normals, sum_k s_k N(center_k, std_k^2), with components on the last axis.

    Several outputs of a row come from the same component, so they may depend on one another: densities and draws are
    those of all outputs together, `cdf` and `quantile` those of each.
    """

    log_shares: Tensor
    """log s_k, `(member, row, ..., component)`, without an axis of outputs."""
    centers: Tensor
    """`(member, row, ..., component)`, or with an axis of outputs before the components."""
    stds: Tensor
    """Shaped like `centers`."""

    @property
    def shares(self) -> Tensor:
        """s_k in a shape that fits `centers`."""
        return self._logs.exp()

    @property
    def _logs(self) -> Tensor:
        return self.log_shares.unsqueeze(-2) if self._joint else self.log_shares

    @property
    def _joint(self) -> bool:
        return self.centers.dim() > self.log_shares.dim()

    @property
    def member_mean(self) -> Tensor:
        """Means of each member."""
        return (self.shares * self.centers).sum(-1)

    @property
    def member_variance(self) -> Tensor:
        """Variances of each member: inside its components and between them."""
        away = self.centers - self.member_mean.unsqueeze(-1)
        return (self.shares * (self.stds.square() + away.square())).sum(-1)

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member, output by output."""
        standard = (values.unsqueeze(-1) - self.centers) / self.stds
        return (self.shares * torch.special.ndtr(standard)).sum(-1)

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density of each value under each member, output by output."""
        return torch.logsumexp(self._logs + log_normals(values, self.centers, self.stds), dim=-1)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density of all outputs of a row together under each member, `(member, row)`."""
        values = match_targets(targets, self.member_mean.shape, per_member=True).to(self.centers.dtype)
        logs = log_normals(values, self.centers, self.stds)
        return sum_outputs(torch.logsumexp(self.log_shares + (logs.sum(-2) if self._joint else logs), dim=-1))

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each member: a component, the same for all outputs of a row, and its normal."""
        flat = self.log_shares.exp().flatten(0, -2)
        chosen = torch.multinomial(flat, 1, generator=generator).reshape(*self.log_shares.shape[:-1], 1)
        chosen = (chosen.unsqueeze(-2) if self._joint else chosen).expand(*self.centers.shape[:-1], 1)
        center, std = (values.gather(-1, chosen).squeeze(-1) for values in (self.centers, self.stds))
        return center + std * torch.randn(center.shape, generator=generator, dtype=center.dtype)

    def of_moments(self) -> dict[str, Any]:
        """A single component, with outputs that are independent of one another."""
        single = torch.zeros_like(self.log_shares[:1, ..., :1])
        return {"log_shares": single, "centers": self.mean[None, ..., None], "stds": self.std[None, ..., None]}


def log_normals(values: Tensor, centers: Tensor, stds: Tensor) -> Tensor:
    """Log densities of values `(...)` under normals `(..., component)`."""
    standard = (values.unsqueeze(-1) - centers) / stds
    return -standard.square() / 2 - stds.log() - math.log(2 * math.pi) / 2
