"""Several real numbers whose noise goes together: a normal with a low-rank covariance."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import MultivariateNormalPredictive, Predictive
from bayesemble.predictive.multivariate import log_low_rank_normal
from bayesemble.task.likelihoods.base import Likelihood, per_row, shaped, with_heads

_SMALLEST_VARIANCE = 1e-6


@dataclass(frozen=True)
class MultivariateGaussian(Likelihood):
    """Several real numbers with noise that they share in part; the outputs are `(batch, (2 + rank) * targets)`.

    The first heads are the means m, the second go through a softplus to give the variances d of what each target has
    alone (plus 1e-6), and the others are the columns of F:

        y ~ Normal(m(x), diag(d(x)) + F(x) F(x)')

    A rank of one less than there are targets can have any correlations; less is cheaper and needs fewer outputs.

    Reference: Dorta et al. (2018), "Structured uncertainty prediction networks", for covariances as outputs.
    """

    reads_as_is = True

    rank: int = setting(1, "columns of F", least=1)

    def __post_init__(self) -> None:
        validate(self)

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers, at least two for each row."""
        shape = with_heads(output_shape, 2 + self.rank, self, f"a mean, a variance and {self.rank} factors")
        if shape[-1] < 2:
            raise DataError(
                f"MultivariateGaussian is for several targets, the network gives {output_shape[-1]} outputs, which "
                f"rank={self.rank} reads as one target; use HeteroscedasticGaussian() for a single one"
            )
        return shaped(targets, shape)

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of all targets of a row together."""
        means, noise, factors = self._heads(outputs)
        return per_row(log_low_rank_normal(targets.to(outputs.dtype) - means, noise, factors))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals of several numbers."""
        means, noise, factors = self._heads(outputs)
        stds = (noise + factors.square().sum(-1)).sqrt()
        return MultivariateNormalPredictive(weights, means, stds, noise, factors)

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances `(..., target)`, and factors `(..., target, rank)`."""
        means, raw, *columns = outputs.chunk(2 + self.rank, dim=-1)
        return means, F.softplus(raw) + _SMALLEST_VARIANCE, torch.stack(columns, dim=-1)
