"""Which weights have a size: by what networks are made of."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.models import resnet
from helpers import norm_mlp, small_mlp


def rows(*shape):
    return torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))


def sized(make, x):
    return set(be.Task(make, be.Categorical()).bind(len(x), x).sized)


def shapes(make):
    return be.Task(make, be.Categorical()).shapes


def test_convolutions_before_batch_norm_have_none_and_all_else_has():
    def make():
        return resnet(8, 3, width=4)

    found = sized(make, rows(3, 8, 8))
    kernels = {name for name, shape in shapes(make).items() if len(shape) == 4}
    assert len(kernels) == 7
    assert found == shapes(make).keys() - kernels


def test_a_dense_layer_before_batch_norm_has_none():
    x = rows(4)
    assert shapes(norm_mlp).keys() - sized(norm_mlp, x) == {"0.weight"}
    assert sized(small_mlp, x) == set(shapes(small_mlp))


def test_dropout_does_not_hide_it():
    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))

    x = rows(4)
    assert shapes(make).keys() - sized(make, x) == {"0.weight"}


class Residual(nn.Module):
    """A branch that starts at zero, so that its first layer changes nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        return x + self.last(self.first(x).relu())


def test_leaves_of_zeros_have_a_size_and_so_has_what_they_hide():
    assert sized(Residual, rows(4)) == set(shapes(Residual))


@pytest.mark.parametrize("kind", [be.Repulsive, be.Stein])
def test_weights_without_size_do_not_repel_unless_told_to(kind):
    """Their direction is that of a deep ensemble."""
    x = rows(4)
    bound = be.Task(norm_mlp, be.Categorical()).bind(8, x)
    assert bound.select(kind().own_space.select) == bound.sized
    assert bound.select(kind(select="all").own_space.select) == list(bound.shapes)


def test_running_statistics_stay_as_they_are():
    x = rows(4)
    bound = be.Task(norm_mlp, be.Categorical()).bind(8, x)
    before = {name: buffer.clone() for name, buffer in bound.module.named_buffers()}
    _ = bound.sized
    assert all(torch.equal(buffer, before[name]) for name, buffer in bound.module.named_buffers())
