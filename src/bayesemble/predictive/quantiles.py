"""Predictions of real numbers by a few of their quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from bayesemble.predictive.reals import RealPredictive


@dataclass(frozen=True, eq=False, repr=False)
class QuantilePredictive(RealPredictive):
    """A mixture of distributions that are known by quantiles q_1 < ... < q_L at the same levels, one per member.

    Between two quantiles the density is constant. Beyond the outermost ones it falls exponentially from there, so that
    it has no jump and the tails hold what the levels leave to them:

        F(y) = t_1 exp((y - q_1) d_1 / t_1)   below q_1,     d_1 = (t_2 - t_1) / (q_2 - q_1),     t: levels
    """

    lowest: Tensor
    """q_1, `(member, row)` or `(member, row, output)`."""
    gaps: Tensor
    """q_2 - q_1, q_3 - q_2, ..., on a last axis; all positive."""
    levels: tuple[float, ...]

    @cached_property
    def member_quantiles(self) -> Tensor:
        """The quantiles of each member, on the last axis."""
        return torch.cat([self.lowest.unsqueeze(-1), self.lowest.unsqueeze(-1) + self.gaps.cumsum(-1)], dim=-1)

    @property
    def member_mean(self) -> Tensor:
        """Means of each member."""
        shares, means, _ = self._pieces()
        return (shares * means).sum(-1)

    @property
    def member_variance(self) -> Tensor:
        """Variances of each member."""
        shares, means, variances = self._pieces()
        away = means - self.member_mean.unsqueeze(-1)
        return (shares * (variances + away.square())).sum(-1)

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member."""
        below, inside, above = self._positions(values)
        piece = self._piece_of(values)
        gap = self._pick(self.gaps, piece)
        start, end = self._tensor(self.levels[:-1])[piece], self._tensor(self.levels[1:])[piece]
        linear = start + (end - start) * (inside / gap).clamp(0, 1)
        low, high = self._tails()
        under = self.levels[0] * torch.exp(below.clamp_max(0) / low)
        over = 1 - (1 - self.levels[-1]) * torch.exp(-above.clamp_min(0) / high)
        return torch.where(below < 0, under, torch.where(above > 0, over, linear))

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density of each value under each member."""
        below, _, above = self._positions(values)
        densities = self._tensor(self.levels).diff() / self.gaps
        low, high = self._tails()
        fall = below.clamp_max(0) / low - above.clamp_min(0) / high
        return self._pick(densities, self._piece_of(values)).log() + fall

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each member, by the inverse of its distribution function."""
        return self._inverse(torch.rand(self.lowest.shape, generator=generator, dtype=self.lowest.dtype))

    def of_moments(self) -> dict[str, Any]:
        """The quantiles of the mixture at the same levels; its moments are kept beside them."""
        found = torch.stack([self.quantile(level) for level in self.levels], dim=-1)[None]
        tiny = torch.finfo(found.dtype).tiny
        return {"lowest": found[..., 0], "gaps": found.diff(dim=-1).clamp_min(tiny)}

    def reduce(self) -> Self:
        """Keep mean, variances and the quantiles of the mixture."""
        mean, reduced = self.mean, super().reduce()
        reduced.kept["mean"] = mean
        return reduced

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        """The members' own quantiles enclose that of the mixture."""
        own = self._weighed(self._inverse(torch.full_like(self.lowest, level)))[1]
        return own.amin(0), own.amax(0)

    def _positions(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distances from the first quantile, from the last one below the value, and from the last."""
        quantiles = self.member_quantiles
        start = self._pick(quantiles[..., :-1], self._piece_of(values))
        return values - quantiles[..., 0], values - start, values - quantiles[..., -1]

    def _piece_of(self, values: Tensor) -> Tensor:
        """Between which quantiles a value lies, as the number of the lower one; at an end, the piece there."""
        return (self.member_quantiles[..., 1:-1] <= values.unsqueeze(-1)).sum(-1)

    @staticmethod
    def _pick(values: Tensor, piece: Tensor) -> Tensor:
        return values.expand(*piece.shape, values.shape[-1]).gather(-1, piece.unsqueeze(-1)).squeeze(-1)

    def _tails(self) -> tuple[Tensor, Tensor]:
        """Mean distances of what lies beyond the outermost quantiles."""
        first, last = self.levels[1] - self.levels[0], self.levels[-1] - self.levels[-2]
        return self.gaps[..., 0] * self.levels[0] / first, self.gaps[..., -1] * (1 - self.levels[-1]) / last

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Shares, means and variances of the pieces, from the lower tail to the upper one, on the last axis."""
        quantiles, (low, high) = self.member_quantiles, self._tails()
        middles = quantiles[..., :-1] + self.gaps / 2
        means = [(quantiles[..., 0] - low).unsqueeze(-1), middles, (quantiles[..., -1] + high).unsqueeze(-1)]
        variances = [low.square().unsqueeze(-1), self.gaps.square() / 12, high.square().unsqueeze(-1)]
        return self._tensor((0.0, *self.levels, 1.0)).diff(), torch.cat(means, -1), torch.cat(variances, -1)

    def _inverse(self, levels: Tensor) -> Tensor:
        """The values with these levels under each member."""
        own = self._tensor(self.levels)
        piece = torch.bucketize(levels, own[1:-1].contiguous(), right=True)
        start, end = own[piece], own[piece + 1]
        inside = ((levels - start) / (end - start)).clamp(0, 1) * self._pick(self.gaps, piece)
        low, high = self._tails()
        under = low * (levels / own[0]).clamp_max(1).log()
        over = -high * ((1 - levels) / (1 - own[-1])).clamp_max(1).log()
        return self._pick(self.member_quantiles[..., :-1], piece) + inside + under + over

    def _tensor(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=self.lowest.dtype)
