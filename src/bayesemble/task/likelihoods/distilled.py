"""Likelihoods of networks that learn from an ensemble what it says of each row, and how unsure it is: `be.distil`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.types import Leaves
from bayesemble.predictive import DirichletPredictive, NormalPredictive, Predictive
from bayesemble.task.likelihoods.base import (
    Likelihood,
    as_labels,
    drop_single_output,
    held,
    per_row,
    shaped,
    with_heads,
)

_LOG_ALPHA = (-20.0, 16.0)
_LOG_VARIANCE = (-60.0, 60.0)


@dataclass(frozen=True)
class DistilledClasses(Likelihood):
    """A Dirichlet distribution over class probabilities; outputs `(batch, C)` are the logarithms of its parameters a.

    It learns from the members of a teacher, p_m, by maximum likelihood, for which their mean log probabilities are
    enough. With a_0 the sum of a over the classes, the targets are s_c = mean_m log p_mc, `(batch, C)`, and

        mean_m log Dir(p_m | a) = log Gamma(a_0) - sum_c log Gamma(a_c) + sum_c (a_c - 1) s_c

    What is predicted is the average over that distribution: a_c / a_0, the softmax of the outputs. Labels 0..C-1 can be
    scored but not trained on, as they tell nothing of a_0.

    Reference: Malinin, Mlodozeniec & Gales (2020), "Ensemble distribution distillation".
    """

    takes_logits = True

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Mean log probabilities shaped like the outputs, or labels."""
        if not output_shape or output_shape[-1] < 2:
            raise DataError(
                f"a student needs an output for each class, the network gives {output_shape or 'one number'}"
            )
        if targets.is_floating_point() and tuple(targets.shape[1:]) == tuple(output_shape):
            return targets
        if targets.dim() == len(output_shape) + 1 and targets.shape[-1] != 1:
            raise DataError(
                f"the teacher tells of {targets.shape[-1]} classes, and the student has {output_shape[-1]} outputs; it "
                "needs one for each class"
            )
        return as_labels(targets, output_shape[:-1], output_shape[-1], "the network has that many outputs")

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse labels."""
        if not targets.is_floating_point():
            raise SettingError(
                "a student learns from a teacher, not from labels; say be.distil(ensemble, student, data)"
            )

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """The mean log density of the teacher's probabilities, or the log probability of labels."""
        if not targets.is_floating_point():
            return per_row(outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1))
        # Large parameters leave differences of large numbers, for which single precision is too coarse.
        alpha = held(outputs.double(), *_LOG_ALPHA).exp()
        found = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1) + ((alpha - 1) * targets.double()).sum(-1)
        return per_row(found).to(outputs.dtype)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """The Dirichlet distribution of each student."""
        logs = outputs.clamp(*_LOG_ALPHA)
        return DirichletPredictive(weights, logs.log_softmax(-1), precisions=logs.logsumexp(-1).exp())


@dataclass(frozen=True)
class DistilledNumbers(Likelihood):
    """A real number with a mean and both kinds of variance; outputs `(batch, 3 * targets)` are three heads.

    The first third are means, then logarithms of the aleatoric and of the epistemic variance. It learns from what a
    teacher says of them, m, a and e, `(batch, 3 * targets)`: means on the scale of the teacher's own doubt, variances
    by their ratio,

        log p = -(mean - m)^2 / (2 (a + e)) - (log aleatoric - log a)^2 / 2 - (log epistemic - log e)^2 / 2

    Targets `(batch, targets)` of their own can be scored but not trained on, as they tell nothing of the two parts.
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Means and variances of a teacher, shaped like the outputs, or a third as many real numbers."""
        single = with_heads(output_shape, 3, self, "a mean and two heads for variances")
        return targets if tuple(targets.shape[1:]) == tuple(output_shape) else shaped(targets, single)

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse targets that come from no teacher."""
        if targets.dim() < 2 or targets.shape[-1] % 3 or (targets.tensor_split(3, -1)[1] <= 0).any():
            raise SettingError(
                "a student learns means and variances of a teacher, not targets: be.distil(ensemble, student, data)"
            )

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """How close the student comes to the teacher, or the log density of targets."""
        mean, *logs = self._heads(outputs)
        if targets.shape != outputs.shape:
            variance = logs[0].exp() + logs[1].exp()
            away = targets.to(mean.dtype) - mean
            return per_row(-away.square() / (2 * variance) - (2 * math.pi * variance).log() / 2)
        m, aleatoric, epistemic = targets.to(mean.dtype).tensor_split(3, -1)
        found = (mean - m).square() / (aleatoric + epistemic)
        found = found + (logs[0] - aleatoric.log()).square() + (logs[1] - epistemic.log()).square()
        return per_row(-found / 2)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Normals, a part of whose variance is epistemic."""
        mean, *logs = (drop_single_output(head) for head in self._heads(outputs))
        aleatoric, epistemic = (log.exp() for log in logs)
        return NormalPredictive(weights, mean, (aleatoric + epistemic).sqrt(), mean_variance=epistemic)

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, aleatoric, epistemic = outputs.tensor_split(3, -1)
        return mean, held(aleatoric, *_LOG_VARIANCE), held(epistemic, *_LOG_VARIANCE)
