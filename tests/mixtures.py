"""Predictions at random: a few rows of weighted members, or any number of rows, with and without ties."""

import numpy as np
import torch

from bayesemble.predictive import ClassPredictive, Predictive
from helpers import poissons

WEIGHTS = [0.5, 0.125, 0.375]
OF_CLASSES = ("total", "epistemic", "aleatoric", "disagreement", "max_probability", "member_std")
OF_REALS = ("total", "epistemic", "aleatoric")


def random_classes(generator, shape=(3, 6, 4), weights=WEIGHTS):
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1), weights)


def random_normals(generator, shape=(3, 6), weights=WEIGHTS):
    means = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    stds = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    return Predictive.from_normal(means, stds, weights)


def random_poissons(generator):
    return poissons((8 * torch.rand(3, 6, generator=generator, dtype=torch.float64)).tolist(), WEIGHTS)


def certain_classes(choices, num_classes):
    """Members that give probability exactly 1 to one class: choices `(member, row)`."""
    return Predictive.from_probs(np.eye(num_classes)[np.asarray(choices)])


def rows_of_classes(generator, rows, sharpness=1.0):
    logits = sharpness * torch.randn(3, rows, 4, generator=generator, dtype=torch.float64)
    return Predictive.from_probs(logits.softmax(-1))


def rows_of_numbers(generator, rows, scale=1.0):
    means = scale * torch.randn(3, rows, generator=generator, dtype=torch.float64)
    return Predictive.from_normal(means, torch.rand(3, rows, generator=generator, dtype=torch.float64) + 0.5)


def certain_members(generator, rows, members=4):
    """Probabilities of exactly 0 and 1, so that most rows tie with others."""
    return Predictive.from_probs(
        torch.eye(3, dtype=torch.float64)[torch.randint(0, 3, (members, rows), generator=generator)]
    )


def equal_rows(generator, rows):
    """Every row the same: all are equally uncertain."""
    return Predictive.from_probs(np.tile([[[0.5, 0.25, 0.125, 0.125]], [[0.25, 0.25, 0.25, 0.25]]], (1, rows, 1)))


def one_member(generator, rows):
    return Predictive.from_probs(torch.randn(rows, 4, generator=generator, dtype=torch.float64).softmax(-1))


def with_variances(variances):
    return Predictive.from_normal(np.zeros(len(variances)), np.sqrt(variances))


ROW_WEIGHTS = torch.tensor([1, 3, 0, 2, 1, 4])


def repeated(predictive, targets):
    """The rows of a prediction, each as often as `ROW_WEIGHTS` says, and their targets."""
    rows = torch.arange(6).repeat_interleave(ROW_WEIGHTS)
    return predictive.take_rows(rows), torch.as_tensor(targets)[rows]


def random_tokens(generator):
    """Probabilities of labels of which each row has several, `(member, row, token, class)`."""
    logits = 3 * torch.randn(3, 6, 5, 4, generator=generator, dtype=torch.float64)
    return ClassPredictive(torch.tensor(WEIGHTS, dtype=torch.float64), logits.log_softmax(-1))
