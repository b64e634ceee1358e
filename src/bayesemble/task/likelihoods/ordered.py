"""The likelihood of classes that have an order, such as grades or stages."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import OrdinalPredictive, Predictive
from bayesemble.task.likelihoods.base import Likelihood, as_labels, held, per_row, refuse_constant

_LOG_GAP = (-15.0, 15.0)


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """One of C ordered classes, by cumulative logits; outputs are one score f per target, targets are labels 0..C-1.

    P(y <= k|f) = sigmoid(c_k - f),     c_0 < c_1 < ... < c_{C-2}

    The cut points c are learned with each member, like the noise of a Gaussian: the first one and the logarithms of the
    gaps. They start where all classes are equally probable at f = 0. A larger score means a higher class, and the odds
    of being above any cut change by the same factor exp(f).

    Reference: McCullagh (1980), "Regression models for ordinal data".
    """

    num_classes: int = setting(3, "how many classes there are, 0 the lowest", least=2)

    def __post_init__(self) -> None:
        validate(self)

    def leaves(self, output_shape: tuple[int, ...]) -> Leaves:
        """The first cut point and the logarithms of the gaps between cut points, for each target."""
        steps = torch.arange(1, self.num_classes, dtype=torch.float64) / self.num_classes
        cuts = torch.logit(steps).to(torch.get_default_dtype())
        return {
            "first_cut": cuts[0].expand(output_shape).clone(),
            "log_gaps": cuts.diff().log().expand(*output_shape, self.num_classes - 2).clone(),
        }

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Labels in range, one for each score."""
        return as_labels(targets, output_shape, self.num_classes, f"num_classes is {self.num_classes}")

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse a single class."""
        refuse_constant(targets, "two classes")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of the labels."""
        chosen = self._log_probs(outputs, leaves).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return per_row(chosen)

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """sum_k p_k (d log p_k / df)^2, with d log p_k / df = P(y <= k) + P(y < k) - 1."""
        probs = self._log_probs(outputs, leaves).exp()
        upto = probs.cumsum(-1)
        return (probs * (2 * upto - probs - 1).square()).sum(-1)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Probabilities of the classes, which know their order."""
        own = {name: leaf.unsqueeze(1) for name, leaf in leaves.items()}
        log_probs = self._log_probs(outputs, own)
        single = outputs.dim() > 2 and outputs.shape[-1] == 1
        return OrdinalPredictive(weights, log_probs.squeeze(-2) if single else log_probs)

    def _log_probs(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """log of sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b)), for cut points a < b around f."""
        gaps = held(leaves["log_gaps"], *_LOG_GAP).exp()
        first = leaves["first_cut"].unsqueeze(-1)
        away = torch.cat([first, first + gaps.cumsum(-1)], dim=-1) - outputs.unsqueeze(-1)
        inner = F.logsigmoid(away[..., 1:]) + F.logsigmoid(-away[..., :-1]) + torch.log(-torch.expm1(-gaps))
        return torch.cat([F.logsigmoid(away[..., :1]), inner, F.logsigmoid(-away[..., -1:])], dim=-1)
