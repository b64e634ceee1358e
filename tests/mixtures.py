"""Predictions at random, of three members with unequal weights."""

import numpy as np
import torch

from bayesemble.predictive import Predictive
from helpers import poissons

WEIGHTS = [0.5, 0.125, 0.375]


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
