"""Activation checkpointing changes nothing but memory: gradients are those of the same network without it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesemble as be
from bayesemble.core.errors import ExecutionError, ModelError
from bayesemble.core.seeds import scoped
from bayesemble.task.recomputation import again, record, recorded
from helpers import all_leaves, largest_difference, quick_fit, table


class Net(nn.Module):
    def __init__(self, saving: bool = False, reentrant: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        width = table()[0].shape[1]
        self.body = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh())
        self.head, self.saving, self.reentrant = nn.Linear(8, 2), saving, reentrant

    def forward(self, x):
        if self.saving:
            return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))
        return self.head(self.body(x))


METHODS = {
    "deep ensemble": be.DeepEnsemble(num_members=3, learning_rate=0.05),
    "adversarial": be.DeepEnsemble(num_members=2, learning_rate=0.05, clip=0.1),
    "weight space": be.Repulsive(num_members=3, learning_rate=0.05),
    "function space": be.Repulsive(num_members=3, learning_rate=0.05, space="function"),
    "implicit": be.ECMP(learning_rate=0.05),
}


@pytest.mark.parametrize("name", METHODS)
def test_training_ends_with_the_weights_of_the_network_without_it(name):
    plain, saving = (
        quick_fit(be.Task(lambda saving=saving: Net(saving), be.Categorical()), table(), METHODS[name], executor="loop")
        for saving in (False, True)
    )
    assert saving.task.recomputes
    assert not plain.task.recomputes
    assert largest_difference(all_leaves(plain), all_leaves(saving)) == 0


def test_dropout_outside_of_it_is_no_obstacle():
    class Late(Net):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    plain, saving = (
        quick_fit(be.Task(lambda saving=saving: Late(saving), be.Categorical()), table(), executor="loop")
        for saving in (False, True)
    )
    assert saving.task.stochastic
    assert largest_difference(all_leaves(plain), all_leaves(saving)) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Net(saving=True, reentrant=True), "use_reentrant=False"),
        (lambda: Net(saving=True, dropout=0.5), "inside activation checkpointing"),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_cannot_be_right_is_refused_by_name(make, words):
    with pytest.raises(ModelError, match=words):
        quick_fit(be.Task(make, be.Categorical()), table(), executor="loop")


def test_vmap_is_refused_and_auto_takes_the_loop():
    task = be.Task(lambda: Net(saving=True), be.Categorical())
    with pytest.raises(ExecutionError, match="vmap cannot run activation checkpointing"):
        quick_fit(task, table(), executor="vmap")
    assert isinstance(quick_fit(task, table(), executor="auto").executor, be.Loop)


def test_leaves_are_in_place_inside_a_block_and_gone_after_it():
    with scoped(0):
        network = nn.Linear(2, 1)
    leaves = {"weight": torch.full((1, 2), 3.0)}
    own = network.weight
    record(network, leaves)  # nobody listens
    with recorded() as placed:
        record(network, leaves)
    with again(placed):
        assert network.weight is leaves["weight"]
    assert network.weight is own
