"""The largest curvature, against Hessians that are written out."""

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.along_training.stiffness import stiffness
from bayesemble.methods.base import Context
from helpers import norm_mlp, table


def regression() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x * torch.tensor([3.0, 1.0, 0.3]), x[:, :1]


def measured(task: be.Task, x: Tensor, y: Tensor, rows: int, num_members: int = 3) -> Tensor:
    bound = task.bind(len(x), x)
    members = bound.new_members(num_members, 0)
    return stiffness(members, Batch(x[:rows], y[:rows]), Context(bound, be.Vmap(), Clock(0, 1, 0)))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("rows", [12, 6])
def test_it_is_the_largest_eigenvalue_of_the_precision_of_linear_regression(temperature, rows):
    """Rows of a batch stand for all of them."""
    x, y = regression()
    model = lambda: nn.Linear(3, 1, bias=False).double()  # noqa: E731
    found = measured(be.Task(model, be.Gaussian(0.5), be.NormalPrior(0.8), temperature=temperature), x, y, rows)
    seen = x[:rows]
    precision = (12 / rows * seen.T @ seen / 0.5**2 + torch.eye(3, dtype=torch.float64) / 0.8**2) / temperature
    largest = torch.linalg.eigvalsh(precision).max()
    assert (found <= largest * (1 + 1e-9)).all()
    torch.testing.assert_close(found, largest.expand(3), rtol=0.02, atol=0)


def test_a_member_has_the_same_beside_others_and_statistics_stay_as_they_are():
    x, y = table(24)
    task = be.Task(norm_mlp, be.Categorical()).bind(24, x)
    context = Context(task, be.Loop(), Clock(0, 1, 0))
    members = task.new_members(3, 0)
    before = {name: leaf.clone() for name, leaf in members.buffers.items()}
    together = stiffness(members, Batch(x, y), context)
    assert all(torch.equal(leaf, before[name]) for name, leaf in members.buffers.items())
    assert torch.equal(stiffness(members.part(0, 1), Batch(x, y), context), together[:1])


def test_a_flat_log_joint_has_none():
    x, y = regression()
    task = be.Task(lambda: nn.Linear(3, 1, bias=False).double(), be.Gaussian(0.5), prior=None)
    assert measured(task, 0 * x, y, 12).tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_a_member_that_has_none_changes_nothing_for_the_others(value):
    x, y = table(24)
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), be.Categorical(), prior=None)
    bound = task.bind(24, x)
    members, context = bound.new_members(3, 0), Context(bound, be.Loop(), Clock(0, 1, 0))
    alone = stiffness(members, Batch(x, y), context)
    for leaf in members.params.values():
        leaf[1] = value
    found = stiffness(members, Batch(x, y), context)
    assert torch.equal(found[::2], alone[::2])
