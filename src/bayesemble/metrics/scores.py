"""Proper scores and plain errors of a predictive distribution: pure functions of `(Predictive, targets)`."""

from typing import Any

import torch
from torch import Tensor

from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive, match_targets


def accuracy(predictive: ClassPredictive, targets: Any) -> float:
    """Share of rows whose most probable class is the right one. Higher is better; says nothing of confidence."""
    return float((predictive.probs.argmax(-1) == predictive.labels(targets)).double().mean())


def nll(predictive: Predictive, targets: Any) -> float:
    """Mean of -log p(y|x) under the averaged prediction, in nats. Lower is better.

    A proper score: only the true distribution is best. One confidently wrong row can dominate it.
    """
    return float(-predictive.log_prob(targets).double().mean())


def brier(predictive: ClassPredictive, targets: Any) -> float:
    """Mean squared distance of the probabilities from the right answer, sum_c (p_c - [c = y])^2, in [0, 2].

    Lower is better. A proper score that forgives confident errors more than the NLL does.
    """
    right = torch.nn.functional.one_hot(predictive.labels(targets), predictive.probs.shape[-1])
    return float((predictive.probs.double() - right).square().sum(-1).mean())


def rmse(predictive: RealPredictive, targets: Any) -> float:
    """Root mean squared error of the mean, in units of the target. Lower is better; a few large errors dominate."""
    return float(_errors(predictive, targets).square().mean().sqrt())


def coverage(predictive: RealPredictive, targets: Any, level: float = 0.9) -> float:
    """Share of targets inside the central interval of the given level. Best near `level`: above is over-cautious."""
    low, high = predictive.interval(level)
    values = match_targets(targets, predictive.member_mean.shape)
    return float(((values >= low) & (values <= high)).double().mean())


def _errors(predictive: RealPredictive, targets: Any) -> Tensor:
    return predictive.mean.double() - match_targets(targets, predictive.member_mean.shape).double()
