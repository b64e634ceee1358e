"""Predictions of times until something happens, some of which were not seen to their end: Weibull and log-normal."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import numbers
from bayesemble.predictive.base import match_targets
from bayesemble.predictive.reals import RealPredictive

_SHAPES = (-3.0, 6.0)  # logarithms of Weibull shapes between which the one with given moments is sought


@dataclass(frozen=True, eq=False, repr=False)
class SurvivalPredictive(RealPredictive):
    """A mixture over positive times T; targets are times, or pairs `(row, 2)` of a time and whether it was the event's.

    Where the event was not seen (0), the row is right-censored: all that is known is T > time, and its probability
    under the mixture takes the place of the density.
    """

    @abstractmethod
    def member_log_survival(self, values: Tensor) -> Tensor:
        """log P(T > time) under each member, of positive times."""

    @abstractmethod
    def member_quantile(self, level: float) -> Tensor:
        """The time before which the event happens with probability `level`, under each member."""

    def survival(self, times: Any) -> Tensor:
        """P(T > time) under the mixture, `(row,)`."""
        return 1 - self.cdf(times)

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(T <= time) under each member."""
        happened = -torch.expm1(self.member_log_survival(values.clamp_min(torch.finfo(values.dtype).tiny)))
        return torch.where(values > 0, happened, torch.zeros_like(happened))

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density of times under each member, `(member, row)`; of censored ones the log probability of more."""
        times, seen = self.times(targets)
        return torch.where(seen, self.member_log_density(times), self.member_log_survival(times))

    def times(self, targets: Any) -> tuple[Tensor, Tensor]:
        """Times and whether each was that of the event; times alone were all seen."""
        shape = self.member_mean.shape
        tensor = numbers(targets, "targets")
        if tensor.shape[-1:] == (2,) and tuple(tensor.shape[:-1]) in (tuple(shape), tuple(shape[1:])):
            times, seen = tensor.unbind(-1)
            seen = seen != 0
        else:
            times = match_targets(tensor, shape)
            seen = torch.ones_like(times, dtype=torch.bool)
        return match_targets(times, shape, per_member=True).to(self.member_mean.dtype), seen

    def cdf_around(self, targets: Any) -> tuple[Tensor, Tensor]:
        """The values that F may have at the event: F(time), or all from F(time) to 1 where it was not seen."""
        times, seen = self.times(targets)
        upto = self.cdf(times)
        return upto, torch.where(seen, upto, torch.ones_like(upto))

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        """The members' own quantiles enclose that of the mixture."""
        own = self._weighed(self.member_quantile(level))[1]
        return own.amin(0), own.amax(0)


@dataclass(frozen=True, eq=False, repr=False)
class WeibullPredictive(SurvivalPredictive):
    """A mixture of Weibull distributions, P(T > t) = exp(-(t / scale)^shape), one per member."""

    log_scales: Tensor
    shapes: Tensor

    @property
    def member_mean(self) -> Tensor:
        """Scale times Gamma(1 + 1 / shape)."""
        return torch.exp(self.log_scales + torch.lgamma(1 + 1 / self.shapes))

    @property
    def member_variance(self) -> Tensor:
        """mean^2 (Gamma(1 + 2 / shape) / Gamma(1 + 1 / shape)^2 - 1)."""
        return self.member_mean.square() * torch.expm1(_log_second_moment(self.shapes))

    def member_log_survival(self, values: Tensor) -> Tensor:
        """-(t / scale)^shape."""
        return -torch.exp(self._powers(values))

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density of each time under each member."""
        return log_weibull(self._powers(values), values.log(), self.shapes)

    def member_quantile(self, level: float) -> Tensor:
        """scale (-log(1 - level))^(1 / shape)."""
        return torch.exp(self.log_scales + math.log(-math.log1p(-level)) / self.shapes)

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One time of each member: a power of an exponential draw."""
        drawn = torch.empty_like(self.shapes).exponential_(generator=generator)
        return torch.exp(self.log_scales + drawn.log() / self.shapes)

    def of_moments(self) -> dict[str, Any]:
        """Shape and scale that give mean and variance; the ratio of the two falls as the shape grows."""
        wanted = torch.log1p(self.variance / self.mean.square())
        low, high = (torch.full_like(wanted, end) for end in _SHAPES)
        for _ in range(50):
            middle = (low + high) / 2
            wider = _log_second_moment(middle.exp()) > wanted
            low, high = torch.where(wider, middle, low), torch.where(wider, high, middle)
        shapes = ((low + high) / 2).exp()
        return {"log_scales": (self.mean.log() - torch.lgamma(1 + 1 / shapes))[None], "shapes": shapes[None]}

    def _powers(self, values: Tensor) -> Tensor:
        return self.shapes * (values.log() - self.log_scales)


@dataclass(frozen=True, eq=False, repr=False)
class LogNormalPredictive(SurvivalPredictive):
    """A mixture of log-normal distributions, log T ~ Normal(location, scale^2), one per member."""

    locations: Tensor
    scales: Tensor

    @property
    def member_mean(self) -> Tensor:
        """exp(location + scale^2 / 2)."""
        return torch.exp(self.locations + self.scales.square() / 2)

    @property
    def member_variance(self) -> Tensor:
        """mean^2 (exp(scale^2) - 1)."""
        return self.member_mean.square() * torch.expm1(self.scales.square())

    def member_log_survival(self, values: Tensor) -> Tensor:
        """log Phi((location - log t) / scale)."""
        return log_ndtr((self.locations - values.log()) / self.scales)

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density of each time under each member."""
        return log_lognormal(values.log(), self.locations, self.scales)

    def member_quantile(self, level: float) -> Tensor:
        """exp(location + scale Phi^-1(level))."""
        normal = float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
        return torch.exp(self.locations + self.scales * normal)

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One time of each member."""
        normal = torch.randn(self.scales.shape, generator=generator, dtype=self.scales.dtype)
        return torch.exp(self.locations + self.scales * normal)

    def of_moments(self) -> dict[str, Any]:
        """scale^2 = log(1 + variance / mean^2)."""
        squares = torch.log1p(self.variance / self.mean.square())
        return {"locations": (self.mean.log() - squares / 2)[None], "scales": squares.sqrt()[None]}


def log_weibull(powers: Tensor, log_times: Tensor, shapes: Tensor) -> Tensor:
    """log k - log t + z - exp(z), of powers z = k (log t - log scale)."""
    return shapes.log() - log_times + powers - powers.exp()


def log_lognormal(log_times: Tensor, locations: Tensor, scales: Tensor) -> Tensor:
    """-z^2 / 2 - log t - log scale - log(2 pi) / 2, with z = (log t - location) / scale."""
    standard = (log_times - locations) / scales
    return -standard.square() / 2 - log_times - scales.log() - math.log(2 * math.pi) / 2


def log_ndtr(values: Tensor) -> Tensor:
    """log Phi(z), in operations that vmap knows: by erfcx(u) = exp(u^2) erfc(u) where Phi is small."""
    low, high = values.clamp_max(-1) / -math.sqrt(2), values.clamp_min(-1) / math.sqrt(2)
    small = torch.log(torch.special.erfcx(low) / 2) - low.square()
    return torch.where(values < -1, small, torch.log1p(-torch.erfc(high) / 2))


def _log_second_moment(shapes: Tensor) -> Tensor:
    """log E[T^2] / E[T]^2 of a Weibull distribution."""
    return torch.lgamma(1 + 2 / shapes) - 2 * torch.lgamma(1 + 1 / shapes)
