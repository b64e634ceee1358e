"""The same cost for every method: gradients and seconds."""

import itertools

import pytest
import torch

import bayesemble as be
from bayesemble.apps.compare.budget import (
    Pace,
    epochs_for_steps,
    gradient_evaluations,
    measure_pace,
    read_plan,
)
from bayesemble.core.files import write_json
from bayesemble.core.seeds import scoped
from helpers import quick_fit, small_mlp, table


@pytest.mark.parametrize(
    ("method", "gradients"),
    [
        (be.DeepEnsemble(num_members=1), 1),
        (be.DeepEnsemble(num_members=5), 5),
        (be.DeepEnsemble(num_members=5, adversarial=0.1), 10),
        (be.Repulsive(num_members=4, sequential=True), 1),
        (be.EMP(num_members=2, training_draws=3), 6),
        (be.SWAG(), 1),
    ],
)
def test_all_methods_get_the_gradients_of_the_ensemble(method, gradients):
    assert method.gradients_per_step == gradients
    epochs = epochs_for_steps(method, epochs=12, members=5)
    assert abs(epochs * gradients - 12 * 5) <= gradients / 2, "but for rounding to whole epochs"


def test_a_single_network_trains_as_many_times_longer_as_there_are_members():
    assert epochs_for_steps(be.DeepEnsemble(num_members=1), 20, 5) == 100
    assert epochs_for_steps(be.DeepEnsemble(num_members=50), 2, 1) == 1, "at least one"


class Counting(torch.nn.Linear):
    """Counts how often it runs forward."""

    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return super().forward(x)


def counting():
    return torch.nn.Sequential(Counting(4, 2))


@pytest.mark.parametrize(
    ("method", "batch_size", "rows"),
    [
        (be.DeepEnsemble(num_members=3), 16, 48),
        (be.DeepEnsemble(num_members=3), 32, 33),  # a last row alone joins the batch before it
        (be.EMP(num_members=2, training_draws=2), 20, 48),
        (be.Repulsive(num_members=2, sequential=True), 16, 48),
        (be.HMC(num_members=2, max_leapfrog=5), None, 48),
    ],
    ids=["members", "one row more", "draws", "sequential", "hmc"],
)
def test_gradients_are_counted_as_the_network_is_called(method, batch_size, rows):
    """In the loop, each gradient of one network is one forward pass; those of a run without epochs are taken off."""
    data, task = table(rows), be.Task(counting, be.Categorical())
    with scoped(0):
        task.bind(rows, data[0])
        calls = []
        for epochs in (2, 6):
            Counting.calls = 0
            ensemble = quick_fit(task, data, method, epochs=epochs, batch_size=batch_size, seed=3)
            calls.append((Counting.calls, gradient_evaluations(ensemble.history)))
    (few, few_counted), (many, many_counted) = calls
    assert many - few == many_counted - few_counted > 0
    if rows == 33:
        assert many_counted == 6 * 3, "one batch in each epoch"


def test_epochs_that_fit_into_seconds():
    ensemble, single, slow = Pace(0.5), Pace(0.1), Pace(0.5, end=4.0)
    seconds = ensemble.seconds(20)
    assert seconds == 10.0
    assert single.epochs(seconds) == 100
    assert slow.epochs(seconds) == 12, "what is done at the end counts"
    assert Pace(0.5, end=60.0).epochs(seconds) == 1, "at least one epoch"


def test_the_pace_is_the_quickest_epoch_after_the_first():
    readings = itertools.accumulate([0.0, 9.0, 3.0, 2.0, 4.0, 5.0])  # start, four epochs, the end
    method = be.DeepEnsemble(num_members=2)
    pace = measure_pace(be.Task(small_mlp, be.Categorical()), method, table(), 16, clock=lambda: next(readings))
    assert pace == Pace(2.0, 5.0)


def test_a_real_clock_gives_real_seconds():
    pace = measure_pace(be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(num_members=2), table(), 16)
    assert 0 < pace.epoch < 1


def test_a_plan_is_read_back_and_belongs_to_its_settings(tmp_path):
    same, path = {"data": "wine", "members": 2}, tmp_path / "plan.json"
    empty = read_plan(path, same)
    assert empty == {"settings": same, "seconds": None, "epochs": {}}
    write_json(path, empty | {"seconds": 1.5, "epochs": {"map": 7}})
    assert read_plan(path, same)["epochs"] == {"map": 7}
    with pytest.raises(be.CheckpointError, match=r"plan of another comparison: members was 2, now it is 3"):
        read_plan(path, same | {"members": 3})
    right = {"settings": same, "seconds": 1.0, "epochs": {"map": 1}}
    write_json(path, right)
    assert read_plan(path, same) == right
    for wrong in (
        {"epochs": {"map": 0}},
        {"epochs": {"map": 1.5}},
        {"epochs": {"map": 7, "swag": -1}},
        {"seconds": "1"},
    ):
        write_json(path, right | wrong)
        with pytest.raises(be.CheckpointError, match=r"does not hold the plan of a comparison"):
            read_plan(path, same)
    for content in ({}, {"settings": {}, "seconds": 1.0, "epochs": {"map": 1}}):
        write_json(path, content)
        with pytest.raises(be.CheckpointError, match=r"does not hold the plan of a comparison"):
            read_plan(path, same)
