"""Predictions of real numbers with heavy tails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.settings import require
from bayesemble.predictive.reals import LocationScalePredictive

FEWEST_DEGREES = 3
"""Degrees of freedom below which a Student t distribution has no variance."""


@dataclass(frozen=True, eq=False, repr=False)
class StudentPredictive(LocationScalePredictive):
    """A mixture of Student t distributions, one per member; `stds` are standard deviations, as of a normal.

    With z in standard deviations and r^2 = (n - 2) / n the square of the scale, t = z / r has n degrees of freedom:

        p(t) ~ (1 + t^2 / n)^(-(n + 1) / 2)
    """

    degrees: int

    def __post_init__(self) -> None:
        check_degrees(self.degrees)

    @property
    def _scale(self) -> float:
        return math.sqrt((self.degrees - 2) / self.degrees)

    def standard_cdf(self, values: Tensor) -> Tensor:
        """A finite sum, see `student_cdf`."""
        return student_cdf(values / self._scale, self.degrees)

    def standard_log_prob(self, values: Tensor) -> Tensor:
        """See `standard_log_density`."""
        return standard_log_density(values, self.degrees)

    def standard_quantile(self, level: float) -> float:
        """Quantile of the t distribution, scaled."""
        from scipy.special import stdtrit

        return self._scale * float(stdtrit(self.degrees, level))

    def standard_sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """A normal over the root of a mean of n squares of normals, scaled."""
        normal = torch.randn((1 + self.degrees, *shape), generator=generator, dtype=self.means.dtype)
        return self._scale * normal[0] / normal[1:].square().mean(0).sqrt()


def check_degrees(degrees: int) -> None:
    """Refuse what is not a whole number of degrees of freedom with a finite variance."""
    fits = isinstance(degrees, int) and degrees >= FEWEST_DEGREES
    require(fits, f"degrees of freedom are a whole number from {FEWEST_DEGREES}, got {degrees!r}")


def standard_log_density(values: Tensor, degrees: int) -> Tensor:
    """Log density of a Student t distribution that is scaled to variance 1."""
    n = degrees
    constant = math.lgamma((n + 1) / 2) - math.lgamma(n / 2) - math.log(math.pi * (n - 2)) / 2
    return constant - (n + 1) / 2 * torch.log1p(values.square() / (n - 2))


def student_cdf(values: Tensor, degrees: int) -> Tensor:
    """P(T <= t) of n degrees of freedom, as a finite sum over powers of cos a, where tan a = t / sqrt(n).

        n even:  1/2 + sin a (1 + 1/2 cos^2 a + (1 3)/(2 4) cos^4 a + ... + c cos^(n-2) a) / 2
        n odd:   1/2 + (a + sin a cos a (1 + 2/3 cos^2 a + (2 4)/(3 5) cos^4 a + ... + c cos^(n-3) a)) / pi

    Reference: Abramowitz & Stegun (1964), 26.7.3 and 26.7.4.
    """
    odd = degrees % 2
    values = values.clamp(-1e18, 1e18)  # whose squares still are numbers; beyond, all is 0 or 1
    inverse = torch.rsqrt(degrees + values.square())
    sine, cosine_squared = values * inverse, degrees * inverse.square()
    term = total = torch.ones_like(values)
    for k in range(1 + odd, degrees - 2, 2):
        term = term * cosine_squared * (k / (k + 1))
        total = total + term
    if odd:
        inside = torch.atan(values / math.sqrt(degrees)) + sine * cosine_squared.sqrt() * total
        return 0.5 + inside / math.pi
    return 0.5 + sine * total / 2
