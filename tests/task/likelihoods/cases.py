"""What all likelihoods are tried on: outputs of a row, and targets drawn at random."""

from typing import NamedTuple

import torch
from torch import Tensor

import bayesemble as be


class Case(NamedTuple):
    likelihood: be.Likelihood
    outputs: int
    kind: str
    targets: int = 1

    def draw(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        """Targets `(row,)`, or `(row, target)` of several."""
        shape = (rows,) if self.targets == 1 else (rows, self.targets)
        numbers = torch.randn(shape, generator=generator, dtype=dtype)
        if self.kind == "count":
            return torch.poisson(numbers.exp(), generator=generator)
        if self.kind == "grade":
            return numbers.add(1.5).round().clamp(0, 3)
        if self.kind == "time":
            seen = torch.randint(0, 2, shape, generator=generator).to(dtype)
            seen[0] = 1
            return torch.stack([numbers.exp(), seen], dim=-1)
        return numbers


CASES = [
    Case(be.NegativeBinomial(), 2, "count"),
    Case(be.NegativeBinomial(), 4, "count", 2),
    Case(be.ZeroInflatedPoisson(), 2, "count"),
    Case(be.ZeroInflatedPoisson(), 6, "count", 3),
    Case(be.Ordinal(4), 1, "grade"),
    Case(be.Ordinal(4), 2, "grade", 2),
    Case(be.Quantile(), 5, "real"),
    Case(be.Quantile((0.1, 0.8), scale=0.3), 6, "real", 3),
    Case(be.GaussianMixture(2), 6, "real"),
    Case(be.GaussianMixture(3), 15, "real", 2),
    Case(be.MultivariateGaussian(2), 12, "real", 3),
    Case(be.Weibull(), 2, "time"),
    Case(be.LogNormal(), 2, "time"),
]
