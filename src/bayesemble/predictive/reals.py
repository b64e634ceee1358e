"""Predictions of real numbers."""

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

_STEPS = 60
_SECTIONS, _SECTION_STEPS = 100, 4  # as exact as 26 halvings, which is all that single precision has


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
    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density, or log probability of a count, of each value under each member: shaped like `member_mean`."""

    @abstractmethod
    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each member, shaped like `member_mean`."""

    @abstractmethod
    def of_moments(self) -> dict[str, Any]:
        """Fields of one distribution of this kind `(1, row, ...)` with the mean and the variance of the mixture."""

    @property
    @unless_kept
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

    def cdf_around(self, targets: Any) -> tuple[Tensor, Tensor]:
        """P(Y < y) and P(Y <= y), the values that F may have at a target: one value, unless F jumps there."""
        upto = self.cdf(targets)
        return upto, upto

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density (probability) of the targets under each member, `(member, row)`."""
        values = match_targets(targets, self.member_mean.shape, per_member=True).to(self.member_mean.dtype)
        return sum_outputs(self.member_log_density(values))

    def quantile(self, level: float) -> Tensor:
        """The value below which the target lies with probability `level`, under the mixture: by bisection."""
        check_level(level)
        return self._bisect(level, *self._quantile_bounds(level))

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw targets, `(num, row)` or `(num, row, output)`."""
        chosen = self._pick_members(num, generator)
        own: dict[str, Any] = {name: value[chosen] for name, value in self._member_fields().items()}
        return replace(self, weights=torch.full((num,), 1 / num), **own).member_sample(generator)

    def reduce(self) -> Self:
        """Keep mean and variances; densities and quantiles become those of one distribution with these moments."""
        kept = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        return replace(self, weights=torch.ones_like(self.weights[:1]), kept=kept, **self.of_moments())

    def double(self) -> Self:
        """The same in double precision."""
        parts: dict[str, Any] = {name: value.double() for name, value in self._member_fields().items()}
        return replace(self, weights=self.weights.double(), **parts)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`: its lower and upper end."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        """Numbers that enclose the quantile, whatever the distribution: Cantelli's inequality, with a little to spare.

        mean - std sqrt((1 - level) / level) <= quantile <= mean + std sqrt(level / (1 - level))
        """
        mean, std = self.mean, 1.001 * self.std + torch.finfo(self.mean.dtype).eps * self.mean.abs()
        return mean - std * math.sqrt((1 - level) / level), mean + std * math.sqrt(level / (1 - level))

    def _bisect(self, level: float, low: Tensor, high: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return self._by_sections(level, low, high)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            above = self._average(self.member_cdf(middle)) >= level
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high

    def _by_sections(self, level: float, low: Tensor, high: Tensor) -> Tensor:
        """The same in few steps, each of many sections, for a file in which every step is written out."""
        shares = torch.linspace(0, 1, _SECTIONS + 1, dtype=low.dtype, device=low.device)
        for _ in range(_SECTION_STEPS):
            edges = low + (high - low) * shares.reshape(-1, *[1] * low.dim())  # (edge, row, ...)
            below = self._average(self.member_cdf(edges.unsqueeze(1)).movedim(1, 0)) < level
            section = (below.sum(0) - 1).clamp(0, _SECTIONS - 1).unsqueeze(0)
            low, high = edges.gather(0, section)[0], edges.gather(0, section + 1)[0]
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
        if torch.compiler.is_exporting() or not std.isinf().any():
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

    def member_log_density(self, values: Tensor) -> Tensor:
        """Log density of each value under each member."""
        return self.standard_log_prob((values - self.means) / self.stds) - self.stds.log()

    def _quantile_bounds(self, level: float) -> tuple[Tensor, Tensor]:
        """The members' own quantiles enclose that of the mixture."""
        own = self._weighed(self.means + self.stds * self.standard_quantile(level))[1]
        return own.amin(0), own.amax(0)

    def member_sample(self, generator: torch.Generator) -> Tensor:
        """One draw of each member."""
        return self.means + self.stds * self.standard_sample(self.means.shape, generator)

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

    def of_moments(self) -> dict[str, Any]:
        """Mean and standard deviation of the mixture."""
        return {"means": self.mean[None], "stds": self.std[None], "mean_variance": None}


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
