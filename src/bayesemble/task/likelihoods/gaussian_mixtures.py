"""Mixture-density heads: several normals for each row."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import GaussianMixturePredictive, Predictive
from bayesemble.predictive.gaussian_mixtures import log_normals
from bayesemble.task.likelihoods.base import Likelihood, per_row, shaped

_SMALLEST_VARIANCE = 1e-6


@dataclass(frozen=True)
class GaussianMixture(Likelihood):
    """Real numbers that may lie in several places; the outputs `(batch, K (1 + 2 targets))` are K normals.

    The first K are logits of the components, then come the K means of the first target, of the second and so on, then
    in the same order numbers that go through a softplus to give the variances (plus 1e-6). The targets of a row share
    the component, so that they may depend on one another:

        p(y|f) = sum_k s_k prod_t Normal(y_t; m_tk, v_tk),     s = softmax of the logits

    Reference: Bishop (1994), "Mixture density networks".
    """

    reads_as_is = True

    components: int = setting(3, "normals of each row, K", least=1)

    def __post_init__(self) -> None:
        validate(self)

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers, as many as there are means of a component."""
        num = output_shape[-1] if output_shape else 1
        heads, rest = divmod(num, self.components)
        if rest or heads < 3 or heads % 2 == 0:
            raise DataError(
                f"GaussianMixture({self.components}) needs a logit for each component and a mean and a variance for "
                f"each component and target, {3 * self.components} outputs for one target and {2 * self.components} "
                f"more for each further one; the network gives {num} per row"
            )
        return shaped(targets, (*output_shape[:-1], heads // 2))

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of all targets of a row together."""
        log_shares, centers, stds = self._heads(outputs)
        logs = log_normals(targets.to(outputs.dtype), centers, stds).sum(-2)
        return per_row(torch.logsumexp(log_shares + logs, dim=-1))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of mixtures of normals."""
        log_shares, *parts = self._heads(outputs)
        centers, stds = (part.squeeze(-2) if part.shape[-2] == 1 else part for part in parts)
        return GaussianMixturePredictive(weights, log_shares, centers, stds)

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log shares `(..., component)`, means and standard deviations `(..., target, component)`."""
        logits, rest = outputs[..., : self.components], outputs[..., self.components :]
        means, raw = rest.unflatten(-1, (2, -1, self.components)).unbind(-3)
        return F.log_softmax(logits, dim=-1), means, (F.softplus(raw) + _SMALLEST_VARIANCE).sqrt()
