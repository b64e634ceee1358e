"""Predictions of real numbers and counts."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.predictive.base import (
    Predictive,
    as_floats,
    as_weights,
    check_level,
    match_targets,
    sum_outputs,
    unless_kept,
)


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """Mixtures over an ordered target; variance = aleatoric + epistemic by the law of total variance."""

    kind = "numbers"
    _measures: ClassVar = {
        "total": lambda own: own.variance,
        "epistemic": lambda own: own.epistemic,
        "aleatoric": lambda own: own.aleatoric,
    }

    @property
    @abstractmethod
    def member_mean(self) -> Tensor:
        """Means of each member, `(member, row)` or `(member, row, output)`."""

    @property
    @abstractmethod
    def member_variance(self) -> Tensor:
        """Variances of each member, shaped like `member_mean`."""

    @abstractmethod
    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member."""

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """The value below which the target lies with probability `level`, under the mixture."""

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture, `(row,)` or `(row, output)`."""
        return self._average(self.member_mean)

    @property
    def answers(self) -> Tensor:
        """The mean of the mixture."""
        return self.mean

    @property
    @unless_kept
    def aleatoric(self) -> Tensor:
        """Variance inside the members: sum_m w_m var_m."""
        return self._average(self.member_variance)

    @property
    @unless_kept
    def epistemic(self) -> Tensor:
        """Variance between the members: sum_m w_m (mean_m - mean)^2."""
        return self._average((self.member_mean - self.mean).square())

    @property
    def variance(self) -> Tensor:
        """Total variance of the target, observation noise included."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Square root of the total variance."""
        return self.variance.sqrt()

    def member_values(self) -> Tensor:
        """Means of each member."""
        self.need_members("member_values")
        return self.member_mean

    def losses(self, targets: Any) -> Tensor:
        """The squared error of the mean."""
        return (self.mean.double() - match_targets(targets, self.member_mean.shape).double()).square()

    def cdf(self, values: Any) -> Tensor:
        """P(y <= value) under the mixture."""
        return self._average(self.member_cdf(match_targets(values, self.member_mean.shape).to(self.mean.dtype)))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`: its lower and upper end."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _bisect(self, level: float, low: Tensor, high: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            middle = (low + high) / 2
            above = self._average(self.member_cdf(middle)) >= level
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high


@dataclass(frozen=True, eq=False, repr=False)
class LocationScalePredictive(RealPredictive):
    """A mixture of one standard distribution, of mean 0 and variance 1, that each member shifts and stretches.

    y = mean_m + std_m z

    A member may stand for networks in closed form, whose means have a variance of their own: `mean_variance`, a part of
    std_m^2, is epistemic. Then `sample` draws each row and output by itself.
    """

    means: Tensor
    stds: Tensor
    mean_variance: Tensor | None = field(default=None, kw_only=True)
    """What more data would remove of the variance of each member, shaped like `means`; None is 0."""

    @abstractmethod
    def standard_cdf(self, values: Tensor) -> Tensor:
        """P(z <= value) of the standard distribution."""

    @abstractmethod
    def standard_log_prob(self, values: Tensor) -> Tensor:
        """Log density of the standard distribution."""

    @abstractmethod
    def standard_quantile(self, level: float) -> float:
        """The value below which z lies with probability `level`."""

    @abstractmethod
    def standard_sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draws of the standard distribution."""

    @property
    def member_mean(self) -> Tensor:
        """Means of each member."""
        return self.means

    @property
    def member_variance(self) -> Tensor:
        """Variances of each member."""
        return self.stds.square()

    @property
    def std(self) -> Tensor:
        """Square root of the total variance; where that is too large for the number type, by double precision."""
        std = super().std
        if not std.isinf().any():
            return std
        return self.stds[0] if self.kept else self.double().variance.sqrt().to(std.dtype)

    @property
    def aleatoric(self) -> Tensor:
        """Variance inside the members, without that of their own means."""
        if self.kept or self.mean_variance is None:
            return super().aleatoric
        return self._average((self.member_variance - self.mean_variance).clamp_min(0))

    @property
    def epistemic(self) -> Tensor:
        """Variance between the members, and that of their own means."""
        if self.kept or self.mean_variance is None:
            return super().epistemic
        return super().epistemic + self._average(self.mean_variance)

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member."""
        return self.standard_cdf((values - self.means) / self.stds)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density of the targets under each member, `(member, row)`."""
        values = match_targets(targets, self.means.shape, per_member=True).to(self.means.dtype)
        return sum_outputs(self.standard_log_prob((values - self.means) / self.stds) - self.stds.log())

    def quantile(self, level: float) -> Tensor:
        """Quantile of the mixture, by bisection between the members' own quantiles, which enclose it."""
        check_level(level)
        own = self._weighed(self.means + self.stds * self.standard_quantile(level))[1]
        return self._bisect(level, own.amin(0), own.amax(0), steps=60)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw targets, `(num, row)` or `(num, row, output)`."""
        chosen = self._pick_members(num, generator)
        return self.means[chosen] + self.stds[chosen] * self.standard_sample(self.means[chosen].shape, generator)

    def double(self) -> Self:
        """The same in double precision."""
        parts: dict[str, Any] = {name: value.double() for name, value in self._member_fields().items()}
        return replace(self, weights=self.weights.double(), **parts)

    def stretch(self, factor: float) -> Self:
        """The same means, with all standard deviations times a factor."""
        own = None if self.mean_variance is None else factor**2 * self.mean_variance
        return replace(self, stds=factor * self.stds, mean_variance=own)

    def rescale(self, shift: Any, scale: Any) -> Self:
        """Predictions of `shift + scale * y`: back to the original units of a standardised target."""
        shift, scale = (torch.as_tensor(value, dtype=torch.float64).to(self.means) for value in (shift, scale))
        kept = {name: value * scale.square() for name, value in self.kept.items()}
        own = None if self.mean_variance is None else scale.square() * self.mean_variance
        means, stds = shift + scale * self.means, scale.abs() * self.stds
        return replace(self, means=means, stds=stds, mean_variance=own, kept=kept)

    def reduce(self) -> Self:
        """Keep mean and variances; densities and quantiles become those of one distribution with these moments."""
        kept = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        one = torch.ones_like(self.weights[:1])
        moments: dict[str, Any] = {"means": self.mean[None], "stds": self.std[None], "mean_variance": None}
        return replace(self, weights=one, kept=kept, **moments)


@dataclass(frozen=True, eq=False, repr=False)
class NormalPredictive(LocationScalePredictive):
    """A mixture of normal distributions, one per member."""

    def standard_cdf(self, values: Tensor) -> Tensor:
        """Phi(z), the normal distribution function."""
        return torch.special.ndtr(values)

    def standard_log_prob(self, values: Tensor) -> Tensor:
        """-z^2 / 2 - log(2 pi) / 2."""
        return -values.square() / 2 - math.log(2 * math.pi) / 2

    def standard_quantile(self, level: float) -> float:
        """The inverse of Phi."""
        return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))

    def standard_sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Normal draws."""
        return torch.randn(shape, generator=generator, dtype=self.means.dtype)


@dataclass(frozen=True, eq=False, repr=False)
class PoissonPredictive(RealPredictive):
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
        counts = values.floor()
        inside = torch.special.gammaincc(counts.clamp_min(0) + 1, self.rates)
        return torch.where(counts < 0, torch.zeros_like(inside), inside)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability of the counts under each member, `(member, row)`."""
        values = match_targets(targets, self.rates.shape, per_member=True).to(self.rates.dtype)
        return sum_outputs(torch.distributions.Poisson(self.rates, validate_args=False).log_prob(values))

    def quantile(self, level: float) -> Tensor:
        """The smallest count whose cumulative probability reaches `level`."""
        check_level(level)
        largest = self._weighed(self.rates)[1].amax(0)
        # No Poisson quantile at this level lies above: Chebyshev's bound on the widest member, and one to spare.
        high = (largest + (largest / (1 - level)).sqrt() + 1).ceil()
        return self._bisect(level, torch.full_like(high, -1), high, steps=60).floor()

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw counts, `(num, row)` or `(num, row, output)`."""
        return torch.poisson(self.rates[self._pick_members(num, generator)], generator=generator)

    def reduce(self) -> PoissonPredictive:
        """Keep mean and variances; probabilities become those of the Poisson distribution with this mean."""
        kept = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        return PoissonPredictive(torch.ones_like(self.weights[:1]), self.mean[None], kept=kept)


def from_normal(mean: Any, std: Any, weights: Any = None) -> NormalPredictive:
    """Accept the means and standard deviations of any model.

    Shape: `(row,)` of one model, `(member, row)` or `(member, row, output)`; std may be anything that broadcasts.
    """
    means = as_floats(mean, "mean", dims=(1, 2, 3))
    means = means[None] if means.dim() == 1 else means
    stds = as_floats(std, "std", dims=(0, 1, 2, 3)).to(means.dtype)
    try:
        stds = stds.expand(means.shape)
    except RuntimeError:
        raise DataError(f"std of shape {tuple(stds.shape)} does not fit means {tuple(means.shape)}") from None
    if (stds <= 0).any():
        raise DataError(f"standard deviations must be positive, the smallest is {stds.min():g}")
    return NormalPredictive(as_weights(weights, means), means, stds)
