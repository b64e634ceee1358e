"""What comes before training; the settings that are refused are in test_fit.py."""

import pytest
import torch

import bayesemble as be
from bayesemble.core import types
from bayesemble.core.seeds import EagerMode
from bayesemble.core.types import tensors_of
from bayesemble.execute.choose import Choice
from bayesemble.training.epochs import train
from bayesemble.training.fit import complete
from bayesemble.training.prepare import prepare
from bayesemble.training.stepping.steps import Steps
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


def test_a_run_that_may_begin_has_taken_no_step_and_trains_to_what_fit_gives():
    ready = prepare(TASK, be.DeepEnsemble(num_members=3), table(), epochs=2, batch_size=16, executor="loop")
    assert ready.plan.total_steps == 6
    assert not ready.run.ensemble.history
    start = ready.run.ensemble.task.new_members(3, seed=0)
    assert largest_difference(ready.run.ensemble.state.members.params, start.params) == 0
    found = complete(ready, train(*ready, progress=False))
    assert largest_difference(all_leaves(found), all_leaves(quick_fit(TASK, table()))) == 0


def test_an_executor_that_was_chosen_before_is_taken_with_its_reason():
    choice = Choice(be.Vmap(threads=1), "few numbers")
    ensemble = prepare(TASK, be.DeepEnsemble(num_members=3), table(), epochs=1, executor=choice).run.ensemble
    assert (ensemble.executor, ensemble.execution) == (choice.executor, choice.reason)
    assert all(torch.isfinite(leaf).all() for leaf in ensemble.state.members.params.values())


# --- devices without float64 ---


class NoFloat64(EagerMode):
    """What a device without float64 would say to operations that give it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tensors_of(found):
            assert leaf.dtype != torch.float64, f"{func} gives float64"
        return found


@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(steps="eager"), be.Vmap()], ids=str)
@pytest.mark.parametrize(
    "method",
    [
        be.DeepEnsemble(num_members=2, clip=1.0, learning_rate=(1e-3, 1e-2)),
        be.DeepEnsemble(num_members=2, optimizer="rmsprop"),
        be.SWAG(rank=2, snapshots=3),
    ],
    ids=["deep", "torch", "swag"],
)
def test_no_step_takes_float64_to_a_device_that_has_none(method, executor, monkeypatch):
    """The CPU plays one: MPS is such a device, and there is none here."""
    monkeypatch.setattr(types, "_WITHOUT_FLOAT64", {"cpu"})
    weights = torch.rand(32, generator=torch.Generator().manual_seed(0)) + 0.5
    x, y = table(32)
    ready = prepare(be.Task(small_mlp, be.Categorical()), method, (x, y, weights), epochs=60, executor=executor)
    state, (ensemble, plan) = ready.run.ensemble.state, (ready.run.ensemble, ready.plan)
    assert all(leaf.dtype != torch.float64 for leaves in state.groups().values() for leaf in leaves.values())
    assert state.members.weights.dtype == torch.float32
    steps = Steps(method, ensemble.task, ensemble.executor, fresh=True)
    batch = next(ready.source.epoch(0, None, 0))
    method.numbers(plan.clock(0, 0))  # rates are drawn once, not on the device
    for step in range(5):
        with NoFloat64():
            state, _ = steps(state, batch, plan.clock(0, step))


def test_a_network_in_float64_is_refused_there(monkeypatch):
    monkeypatch.setattr(types, "_WITHOUT_FLOAT64", {"cpu"})
    with pytest.raises(be.SettingError, match=r"device='cpu' has no float64, in which the network computes"):
        prepare(
            be.Task(lambda: small_mlp().double(), be.Categorical()), be.DeepEnsemble(), table(), epochs=1, device="cpu"
        )


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named_in_a_sentence(device):
    if getattr(torch, device if device == "cuda" else "mps").is_available():
        pytest.skip(f"there is {device} here")
    with pytest.raises(be.SettingError, match=rf"device='{device}' cannot be used here: .* leave it out for the CPU"):
        prepare(be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(), table(), epochs=1, device=device)
