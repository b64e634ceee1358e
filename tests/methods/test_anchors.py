"""Anchors and target noise of members."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.types import Batch
from bayesemble.methods.anchors import anchors, with_target_noise


def bound(prior):
    task = be.Task(lambda: nn.Linear(2, 1), be.Gaussian(noise=0.5), prior)
    return task.bind(4, torch.ones(2, 2))


def test_anchors_are_those_of_the_members_whoever_holds_them():
    task = bound(be.NormalPrior(std=1.0))
    whole = anchors(3, task, seed=0)
    last = anchors(1, task, seed=seeds.PartSeed(0, range(2, 3), 3))
    for slot, leaves in whole.items():
        for name, leaf in leaves.items():
            assert torch.equal(leaf[2:], last[slot][name])


def test_noise_is_that_of_the_rows_of_the_batch():
    noise = torch.arange(12.0).reshape(3, 4)
    batch = Batch(torch.ones(2, 2), torch.zeros(2), torch.tensor([3, 1]))
    assert with_target_noise(batch, {"noise": noise}).targets.tolist() == [[3, 1], [7, 5], [11, 9]]
    assert with_target_noise(batch, None) is batch


def test_a_prior_that_cannot_be_drawn_from_is_refused():
    with pytest.raises(SettingError, match="needs a NormalPrior"):
        anchors(2, bound(be.LaplacePrior(scale=1.0)), seed=0)
