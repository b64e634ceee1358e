"""Quantile regression: a few quantiles of the target, trained by the pinball loss."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require, setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import Predictive, QuantilePredictive
from bayesemble.task.likelihoods.base import Likelihood, per_row, shaped, with_heads

_SMALLEST_GAP = 1e-6


@dataclass(frozen=True)
class Quantile(Likelihood):
    """A real number of which quantiles are learned, without a belief about its distribution.

    The outputs `(batch, levels * targets)` are a head for each level: the first are the lowest quantiles, the others go
    through a softplus (plus 1e-6) to give the gaps to the next ones, so that quantiles never cross.

    This is no likelihood but a pseudo-likelihood: a loss in place of minus its logarithm,

        log p(y|q) = - 2 / scale * sum_l u_l pinball(y - q_l; t_l),     pinball(d; t) = max(t d, (t - 1) d)

    with u_l the widths of the parts of [0, 1] that the levels t_l stand for, so that the sum is the CRPS by the
    midpoint rule. It is not normalised, and how much it counts beside the prior is up to `scale`: what comes out is a
    Gibbs posterior. Scores such as the NLL are those of `QuantilePredictive`, a proper density between and beyond the
    quantiles, which is not what was trained.

    References: Koenker & Bassett (1978), "Regression quantiles"; Bissiri, Holmes & Walker (2016), "A general framework
    for updating belief distributions".
    """

    levels: tuple[float, ...] = setting(
        (0.05, 0.25, 0.5, 0.75, 0.95), "probabilities of the quantiles, rising", within="(0, 1)"
    )
    scale: float = setting(1.0, "what a CRPS of 1 counts for: log p falls by 1 / scale", above=0)

    def __post_init__(self) -> None:
        if isinstance(self.levels, list):
            object.__setattr__(self, "levels", tuple(self.levels))
        validate(self)
        rising = len(self.levels) > 1 and all(one < other for one, other in pairwise(self.levels))
        require(rising, f"levels are at least two, rising, got {self.levels}")

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers, as many as there are heads for all levels."""
        return shaped(targets, with_heads(output_shape, len(self.levels), self, f"{len(self.levels)} quantiles"))

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Minus the pinball losses, weighted to a CRPS, over the scale."""
        lowest, gaps = self._heads(outputs)
        quantiles = torch.cat([lowest.unsqueeze(-1), lowest.unsqueeze(-1) + gaps.cumsum(-1)], dim=-1)
        levels, widths = (torch.tensor(part, dtype=outputs.dtype, device=outputs.device) for part in self._widths())
        away = targets.to(outputs.dtype).unsqueeze(-1) - quantiles
        pinball = torch.maximum(levels * away, (levels - 1) * away)
        return per_row(-2 / self.scale * (widths * pinball).sum(-1))

    def information(self, outputs: Tensor, leaves: Leaves) -> NoReturn:
        """There is none: the pinball loss is made of straight lines."""
        raise SettingError(
            "the pinball loss of Quantile has no curvature, so no Gaussian can be made from it; use a method that "
            "does not need one, or a likelihood such as HeteroscedasticStudent or GaussianMixture"
        )

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of what the members' quantiles say."""
        lowest, gaps = self._heads(outputs)
        if lowest.dim() > 2 and lowest.shape[-1] == 1:
            lowest, gaps = lowest.squeeze(-1), gaps.squeeze(-2)
        return QuantilePredictive(weights, lowest, gaps, self.levels)

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest quantiles `(..., target)`, and the gaps to the next ones `(..., target, level)`."""
        lowest, *others = outputs.chunk(len(self.levels), dim=-1)
        return lowest, F.softplus(torch.stack(others, dim=-1)) + _SMALLEST_GAP

    def _widths(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The levels, and the widths of what lies closest to each."""
        between = [(one + other) / 2 for one, other in pairwise(self.levels)]
        return self.levels, tuple(end - begin for begin, end in pairwise([0.0, *between, 1.0]))
