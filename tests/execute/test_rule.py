"""The rule behind "auto": every row by an example, and the numbers it goes by against a count by hand."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.types import Batch
from bayesemble.execute import rule
from bayesemble.execute.rule import RULE, Load, load_of, repays_compiling, row_for
from bayesemble.models import mlp, resnet
from helpers import dropout_mlp, images, norm_convnet, small_mlp, table

LOADS = {
    "one member": (Load(1, 1000, 0, False), be.Loop(draws_by_vmap=True, threads=1, steps="traced")),
    "one large member": (Load(1, 600_000, 0, False), be.Loop(draws_by_vmap=True)),
    "just below two threads": (Load(1, 499_999, 0, False), be.Loop(draws_by_vmap=True, threads=1)),
    "just enough for two threads": (Load(1, 500_000, 0, False), be.Loop(draws_by_vmap=True)),
    "two members": (Load(2, 1000, 0, False), be.Loop(draws_by_vmap=True, threads=1, steps="traced")),
    "two members, convolutions of series": (Load(2, 1000, 0, True), be.Loop(threads=1, steps="traced")),
    "a shallow convnet": (Load(5, 900_000, 5, True), be.Loop()),
    "a deep convnet": (Load(5, 900_000, 6, True), be.Loop(channels_last=True)),
    "a large dense network": (Load(5, 450_001, 0, False), be.Loop(draws_by_vmap=True, threads=1)),
    "small": (Load(3, 1000, 0, False), be.Vmap(threads=1)),
    "small, with convolutions": (Load(3, 1000, 9, True), be.Vmap(threads=1)),
    "many small": (Load(100, 20_000, 0, False), be.Vmap()),
    "as large as vmap takes": (Load(12, 450_000, 0, False), be.Vmap()),
    "more than the cache holds": (Load(100, 100_000, 0, False), be.Vmap(chunk=50)),
    "chunks of about the same size": (Load(41, 450_000, 0, False), be.Vmap(chunk=11)),
    "whole steps in turn": (Load(50, 140_000, 0, False, in_turn=True), be.Vmap(chunk=18)),
    "whole steps in turn of an even number": (Load(10, 300_000, 0, False, in_turn=True), be.Vmap(chunk=6)),
    "whole steps at once": (Load(10, 140_000, 0, False, in_turn=True), be.Vmap()),
}


@pytest.mark.parametrize("name", LOADS)
def test_each_load_has_its_executor(name):
    load, executor = LOADS[name]
    assert row_for(load).executor(load) == executor


def test_every_row_of_the_rule_is_taken_by_an_example():
    assert {row_for(load) for load, _ in LOADS.values()} == set(RULE)


def test_many_steps_of_small_members_repay_compiling():
    small, larger, large = Load(5, 15_000, 0, False), Load(10, 100_000, 0, False), Load(10, 600_001, 0, False)
    assert not repays_compiling(small, 400_000)
    assert repays_compiling(small, 410_000)
    assert not repays_compiling(larger, 124_000)
    assert repays_compiling(larger, 126_000)
    assert repays_compiling(Load(10, 600_000, 0, False), 10**9)
    assert not repays_compiling(large, 10**9)  # whose gradients are taken in chunks
    assert repays_compiling(Load(10, 600_001, 0, False, in_turn=True), 10**9)
    traced = Load(10, 100_000, 0, False, in_turn=True)
    assert not repays_compiling(traced, 333_000)
    assert repays_compiling(traced, 334_000)


class Written(nn.Module):
    """Operations that are no layers count too; another view of the same numbers does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return torch.tanh(self.layer(x)).view(-1, 3, 2).sum(1)


COUNTS = {
    "mlp": (small_mlp, table(), 58, 8 + 8 + 2, 0),
    "operations": (Written, table(), 30, 6 + 6 + 2, 0),
    "resnet": (lambda: resnet(8, 4), images(16), None, None, 7),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 4)), images(), 348, 76, 1),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("rows", [1, 100])
def test_the_numbers_of_a_member_are_its_parameters_and_what_its_layers_give_for_all_rows(name, rows):
    make, (x, y), parameters, activations, convolutions = COUNTS[name]
    task = be.Task(make, be.Categorical()).bind(len(x), x)
    load = load_of(task, task.new_members(4, seed=0), Batch(x, y), rows)
    assert (load.members, load.convolutions, load.convolutional) == (4, convolutions, convolutions > 0)
    if parameters is not None:
        assert load.numbers == parameters + rows * activations


@pytest.mark.parametrize("make", [dropout_mlp, norm_convnet], ids=["dropout", "batch norm"])
def test_counting_changes_neither_members_nor_random_numbers(make):
    x, y = images() if make is norm_convnet else table()
    task = be.Task(make, be.Categorical()).bind(len(x), x)
    members = task.new_members(2, seed=0)
    leaves = members.params | members.buffers
    before, random = {name: leaf.clone() for name, leaf in leaves.items()}, torch.get_rng_state()
    load_of(task, members, Batch(x, y), 10)
    assert all(torch.equal(leaf, before[name]) for name, leaf in leaves.items())
    assert torch.equal(torch.get_rng_state(), random)


def test_rows_of_each_members_own_count_once():
    x, y = table()
    task = be.Task(lambda: mlp(4, [8], 2), be.Categorical()).bind(len(x), x)
    members = task.new_members(2, seed=0)
    own = Batch(torch.stack([x, x]), torch.stack([y, y]), inputs_per_member=True, targets_per_member=True)
    assert own.num_rows == len(x)
    assert load_of(task, members, own, 10) == load_of(task, members, Batch(x, y), 10)


@pytest.mark.parametrize(
    ("executor", "wanted", "rows"),
    [
        (be.Loop(), 18 * 500, 500),
        (be.Vmap(), 18 * 500, 100),
        (be.Vmap(chunk=2), 18 * 500, 250),
        (be.Loop(), 1, 16),
        (be.Loop(), 18 << 20, 1 << 14),
    ],
    ids=str,
)
def test_as_many_rows_are_predicted_in_one_go_as_stay_in_the_cache(executor, wanted, rows, monkeypatch):
    """A row of the network gives 18 numbers: 8, 8 and 2."""
    monkeypatch.setattr(rule, "NUMBERS_PREDICTED_TOGETHER", wanted)
    task = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])
    load = rule.prediction_load(executor, task, task.new_members(5, 0), table()[0][:4])
    assert (load.numbers, load.parameters) == (18, 58)
    assert load.rows_at_a_time == rows
    enough = -(-500_000 // (18 * load.together))
    assert (load.needs_threads(enough), load.needs_threads(enough - 1)) == (True, False)


def test_rows_that_are_predicted_in_one_go_give_more_numbers_than_there_are_parameters():
    assert rule.PredictionLoad(numbers=1000, parameters=25_000_000, together=1).rows_at_a_time == 1 << 14
    assert rule.PredictionLoad(numbers=1000, parameters=2_500_000, together=5).rows_at_a_time == 5000
