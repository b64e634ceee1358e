"""`training/test_ensemble.py` has files that are wrong; here are the members alone."""

from dataclasses import replace

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import CheckpointError
from bayesemble.training.run_folders.saved_members import check_members
from helpers import norm_mlp, table


def bound() -> be.Task:
    return be.Task(norm_mlp, be.Categorical()).bind(48, table()[0])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("0.weight", torch.full((3, 8, 4), torch.nan), "'0.weight' in run is not finite"),
        ("0.weight", torch.zeros(2, 8, 4), r"'0.weight' in run is \(2, 8, 4\), but there are 3 members"),
        ("0.weight", torch.zeros(3, 8, 5), r"parameter '0.weight' is \(8, 5\) torch.float32 in run"),
        ("9.weight", torch.zeros(3, 8, 4), "parameter '9.weight' is not in the network"),
    ],
)
def test_a_leaf_that_is_wrong_is_named(name, value, words):
    task = bound()
    members = task.new_members(3, seed=0)
    check_members(members, task, "run")
    with pytest.raises(CheckpointError, match=words):
        check_members(replace(members, params=members.params | {name: value}), task, "run")


def test_weights_of_members_sum_to_one():
    task = bound()
    members = task.new_members(3, seed=0)
    with pytest.raises(CheckpointError, match="are not non-negative numbers with the sum 1"):
        check_members(replace(members, weights=torch.full((3,), 0.5)), task, "run")
