"""Predictions of counts: mixtures of Poisson, negative binomial and zero-inflated Poisson distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.predictive.base import match_targets
from bayesemble.predictive.reals import RealPredictive

_HALF_LOG_TWO_PI = math.log(2 * math.pi) / 2
_LARGE = 8.0  # from where on the series of Stirling's formula has eleven digits


@dataclass(frozen=True, eq=False, repr=False)
class CountPredictive(RealPredictive):
    """A mixture over 0, 1, 2, ...; quantiles and draws are counts too."""

    def quantile(self, level: float) -> Tensor:
        """The smallest count whose cumulative probability reaches `level`."""
        return super().quantile(level).floor()

    def as_counts(self, targets: Any) -> Tensor:
        """Targets as counts in the shape of the rows, in double precision, or what is wrong with them."""
        values = match_targets(targets, self.member_mean.shape).double()
        wrong = (values < 0) | (values != values.floor())
        if wrong.any():
            index = wrong.nonzero()[0].tolist()
            raise DataError(
                f"targets must be counts 0, 1, 2, ...; row {index[0]} holds {values[tuple(index)].item():g}"
            )
        return values

    def cdf_around(self, targets: Any) -> tuple[Tensor, Tensor]:
        """P(Y < y) and P(Y <= y), between which F jumps."""
        counts = self.as_counts(targets)
        return self.cdf(counts - 1), self.cdf(counts)

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        high = super()._quantile_bounds(level)[1].ceil() + 1
        return torch.full_like(high, -1), high


@dataclass(frozen=True, eq=False, repr=False)
class PoissonPredictive(CountPredictive):
    """A mixture of Poisson distributions, one per member."""

    rates: Tensor

    @property
    def member_mean(self) -> Tensor:
        """Rates of each member."""
        return self.rates

    @property
    def member_variance(self) -> Tensor:
        """Rates of each member: a Poisson variance equals its mean."""
        return self.rates

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member: the regularised upper incomplete gamma function at floor(value) + 1."""
        return _poisson_cdf(values.floor(), self.rates)

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log probability of counts under each member."""
        return torch.distributions.Poisson(self.rates, validate_args=False).log_prob(values)

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One count of each member."""
        return torch.poisson(self.rates, generator=generator)

    def of_moments(self) -> dict[str, Any]:
        """The mean alone: a Poisson distribution has no variance of its own."""
        return {"rates": self.mean[None]}

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        largest = self._weighed(self.rates)[1].amax(0)
        # No Poisson quantile at this level lies above: Chebyshev's bound on the widest member, and one to spare.
        high = (largest + (largest / (1 - level)).sqrt() + 1).ceil()
        return torch.full_like(high, -1), high


@dataclass(frozen=True, eq=False, repr=False)
class NegativeBinomialPredictive(CountPredictive):
    """A mixture of negative binomial distributions with means m, sizes r and variances m + m^2 / r, one per member."""

    means: Tensor
    sizes: Tensor

    @property
    def member_mean(self) -> Tensor:
        """Means of each member."""
        return self.means

    @property
    def member_variance(self) -> Tensor:
        """m + m^2 / r of each member."""
        return self.means + self.means.square() / self.sizes

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= k) under each member: the regularised incomplete beta function I(r, k + 1) at r / (r + m)."""
        from scipy.special import betainc

        counts = values.floor()
        sizes, means = self.sizes.double(), self.means.double()
        upto = betainc(sizes.numpy(), counts.clamp_min(0).double().numpy() + 1, (sizes / (sizes + means)).numpy())
        return torch.where(counts < 0, 0.0, torch.as_tensor(upto)).to(self.means.dtype)

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log probability of counts under each member."""
        return log_negative_binomial(values, self.means.log(), self.sizes.log())

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One count of each member: Poisson, with a rate from a gamma distribution."""
        rates = torch._standard_gamma(self.sizes, generator=generator) * (self.means / self.sizes)
        return torch.poisson(rates, generator=generator)

    def of_moments(self) -> dict[str, Any]:
        """The mean, and the size that gives the variance."""
        beyond = (self.variance - self.mean).clamp_min(1e-9 * self.mean)
        return {"means": self.mean[None], "sizes": (self.mean.square() / beyond)[None]}


@dataclass(frozen=True, eq=False, repr=False)
class ZeroInflatedPoissonPredictive(CountPredictive):
    """A mixture of Poisson distributions that are 0 with a probability of their own, one per member.

    y = 0 with probability sigmoid(zero_logit_m), and otherwise Poisson(rate_m)
    """

    rates: Tensor
    zero_logits: Tensor

    @property
    def member_mean(self) -> Tensor:
        """(1 - p) rate."""
        return torch.sigmoid(-self.zero_logits) * self.rates

    @property
    def member_variance(self) -> Tensor:
        """(1 - p) rate (1 + p rate)."""
        return self.member_mean * (1 + torch.sigmoid(self.zero_logits) * self.rates)

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= k) = p + (1 - p) P(Poisson <= k) under each member."""
        counts = values.floor()
        upto = torch.sigmoid(self.zero_logits) + torch.sigmoid(-self.zero_logits) * _poisson_cdf(counts, self.rates)
        return torch.where(counts < 0, torch.zeros_like(upto), upto)

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log probability of counts under each member."""
        return log_zero_inflated(values, self.rates.log(), self.zero_logits)

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One count of each member."""
        uniform = torch.rand(self.rates.shape, generator=generator, dtype=self.rates.dtype)
        return torch.poisson(self.rates, generator=generator) * (uniform >= torch.sigmoid(self.zero_logits))

    def of_moments(self) -> dict[str, Any]:
        """From mean m and variance v: rate - m = p rate = v / m - 1."""
        beyond = (self.variance / self.mean - 1).clamp_min(1e-9)
        return {"rates": (self.mean + beyond)[None], "zero_logits": (beyond / self.mean).log()[None]}


def _poisson_cdf(counts: Tensor, rates: Tensor) -> Tensor:
    inside = torch.special.gammaincc(counts.clamp_min(0) + 1, rates)
    return torch.where(counts < 0, torch.zeros_like(inside), inside)


def log_poisson(counts: Tensor, log_rates: Tensor) -> Tensor:
    """y log m - m - log y!, in a form that keeps its digits for large counts.

    Stirling's formula for log y! leaves differences of m and y + 1 instead of large numbers that cancel:

        y log(m / (y + 1)) - (m - y - 1) - log(2 pi (y + 1)) / 2 - remainder(y + 1)
    """
    above = log_rates.exp() - (counts + 1)
    shares = counts * _log_ratio(above, counts + 1, log_rates, torch.log1p(counts))
    return shares - above - torch.log1p(counts) / 2 - _HALF_LOG_TWO_PI - stirling_remainder(counts + 1)


def log_negative_binomial(counts: Tensor, log_means: Tensor, log_sizes: Tensor) -> Tensor:
    """log Gamma(y + r) / (Gamma(r) y!) + r log(r / (r + m)) + y log(m / (r + m)), with its digits for large numbers.

    By Stirling's formula it is, with remainders R,

        r log((r + y) / (r + m)) + y log((r + y) m / ((r + m) (y + 1))) - log(1 + y / r) / 2 - log(2 pi (y + 1)) / 2 + 1
        + R(r + y) - R(r) - R(y + 1)

    Both ratios are taken from how far they are from 1, which is small where the logarithm is multiplied by much.
    """
    means, sizes = log_means.exp(), log_sizes.exp()
    together = sizes + counts
    above, below = torch.log(together), torch.logaddexp(log_sizes, log_means)
    ratios = sizes * _log_ratio(counts - means, sizes + means, above, below)
    difference = sizes * (means - (counts + 1)) - means
    logs = above + log_means, below + torch.log1p(counts)
    ratios = ratios + counts * _log_ratio(difference, (sizes + means) * (counts + 1), *logs)
    constants = 1 - _HALF_LOG_TWO_PI - (torch.log1p(counts / sizes) + torch.log1p(counts)) / 2
    remainders = stirling_remainder(together) - stirling_remainder(sizes) - stirling_remainder(counts + 1)
    return ratios + constants + remainders


def log_zero_inflated(counts: Tensor, log_rates: Tensor, zero_logits: Tensor) -> Tensor:
    """log of p [y = 0] + (1 - p) Poisson(y), with p = sigmoid(zero_logits)."""
    inside = F.logsigmoid(-zero_logits) + log_poisson(counts, log_rates)
    return torch.where(counts == 0, torch.logaddexp(F.logsigmoid(zero_logits), inside), inside)


def _log_ratio(difference: Tensor, below: Tensor, log_above: Tensor, log_below: Tensor) -> Tensor:
    """log(above / below), from the difference of the two where they are close."""
    near = difference.abs() < below / 2
    change = torch.where(near, difference, 0.0) / torch.where(near, below, 1.0)
    return torch.where(near, torch.log1p(change), log_above - log_below)


def stirling_remainder(values: Tensor) -> Tensor:
    """log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2, which is about 1 / (12 z) for large z."""
    large = values > _LARGE
    inverse = torch.where(large, values, _LARGE).reciprocal()
    square = inverse.square()
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    small = torch.where(large, 1.0, values)
    direct = torch.lgamma(small) - (small - 0.5) * small.log() + small - _HALF_LOG_TWO_PI
    return torch.where(large, series, direct)
