"""Predictions of classes that have an order, such as grades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.predictive.base import check_level
from bayesemble.predictive.classes import ClassPredictive


@dataclass(frozen=True, eq=False, repr=False)
class OrdinalPredictive(ClassPredictive):
    """Probabilities of classes 0 < 1 < ... < C-1; all that classes have, and what the order adds."""

    def cdf(self, values: Any) -> Tensor:
        """P(y <= class) under the mixture, `(row,)`."""
        return self._cumulative.gather(-1, self.labels(values).unsqueeze(-1)).squeeze(-1)

    def quantile(self, level: float) -> Tensor:
        """The lowest class whose cumulative probability reaches `level`, `(row,)`."""
        check_level(level)
        return (self._cumulative[..., :-1] < level).sum(-1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The classes from and to which the target lies, with probability `level` at least."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def _cumulative(self) -> Tensor:
        return torch.cumsum(self.probs, dim=-1)
