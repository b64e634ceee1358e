"""What training will take is what it takes."""

import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.diagnostics import plan as plan_module
from bayesemble.diagnostics.plan import Forecast
from bayesemble.models import mlp
from bayesemble.training.stepping import steps
from helpers import dropout_mlp, images, norm_convnet, quick_fit, small_mlp, table

SMALL = be.Task(small_mlp, be.Categorical())
FEW = be.DeepEnsemble(num_members=3)


def allocated(task, method, data, **options) -> int:
    """Bytes that torch holds at the peak of `fit`, beyond those it held before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        quick_fit(task, data, method, **options)
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(np.cumsum(changes))


@pytest.mark.parametrize(
    ("task", "data", "executor"),
    [
        (be.Task(lambda: mlp(50, [64, 64], 10), be.Categorical()), table(200, 50), be.Vmap(steps="eager")),
        (be.Task(norm_convnet, be.Categorical()), images(200), be.Loop(steps="eager")),
    ],
    ids=["dense, vmap", "convolutions, loop"],
)
def test_memory_is_what_fit_allocates(task, data, executor):
    method, options = be.DeepEnsemble(num_members=8), {"batch_size": 64, "executor": executor}
    found, fitted = be.plan(task, method, data, **options), allocated(task, method, data, **options)
    assert 0.75 * fitted < found.memory < 1.3 * fitted
    state = quick_fit(task, data, method, **options).state
    assert found.state_bytes == sum(leaf.nbytes for group in state.groups().values() for leaf in group.values())
    assert found.gradient_bytes == sum(leaf.nbytes for leaf in state.members.params.values())
    assert found.parameters.total == sum(leaf.numel() for leaf in state.members.params.values())


def test_what_a_method_adds_counts():
    found = be.plan(SMALL, be.EMP(components=2, select="output"), table())
    assert (found.parameters.network, found.parameters.total) == (58, 58 + 18)
    assert found.gradient_bytes == 4 * (58 + 18)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        out = self.layer(x)
        return out if out.sum() > 0 else 2 * out


@pytest.mark.parametrize("executor", ["auto", "loop", be.Vmap(chunk=2)], ids=str)
@pytest.mark.parametrize(("model", "data"), [(small_mlp, table()), (norm_convnet, images())], ids=["dense", "images"])
def test_the_executor_is_that_of_fit(model, data, executor):
    task = be.Task(model, be.Categorical())
    found = be.plan(task, FEW, data, batch_size=16, executor=executor)
    fitted = quick_fit(task, data, FEW, executor=executor)
    assert (found.executor, found.reason) == (fitted.executor, fitted.execution)


def test_a_layer_that_vmap_cannot_run_is_named():
    found = be.plan(be.Task(Branching, be.Categorical()), FEW, table())
    assert isinstance(found.executor, be.Loop)
    assert any("vmap cannot run layer (Branching)" in sentence for sentence in found.faster)


def test_a_faster_executor_and_larger_batches_are_told_of():
    found = be.plan(SMALL, be.DeepEnsemble(num_members=20), table(320), batch_size=8, executor=be.Loop(threads=1))
    assert any(sentence.startswith("executor=be.Vmap(threads=1) took ") for sentence in found.faster)
    assert any(sentence.startswith("batch_size=32 took ") for sentence in found.faster)


def test_nothing_is_compiled_for_a_forecast(monkeypatch):
    monkeypatch.setattr(steps, "compiled", lambda _: pytest.fail("a step was compiled"))
    found = be.plan(SMALL, FEW, table(), batch_size=16, executor=be.Vmap(steps="compiled"))
    assert any(sentence.startswith("steps will be compiled") for sentence in found.faster)


def test_a_long_run_is_told_of_the_compiler():
    found = be.plan(SMALL, FEW, table(), batch_size=16, executor=be.Vmap(threads=1), epochs=10_000_000)
    assert any(sentence.startswith("executor=be.Vmap(threads=1, steps='compiled')") for sentence in found.faster)


def test_nothing_that_is_given_changes():
    with scoped(0):
        network, (x, y) = dropout_mlp(), table()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    weights, rows = {name: leaf.clone() for name, leaf in network.state_dict().items()}, (x.clone(), y.clone())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.get_num_threads()
    for data in ((x, y), loader):
        be.plan(be.Task(network, be.Categorical(), start="given", jitter=0.1), FEW, data)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), torch.get_num_threads()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert all(torch.equal(leaf, weights[name]) for name, leaf in network.state_dict().items())
    assert torch.equal(x, rows[0])
    assert torch.equal(y, rows[1])


class Slow(Dataset):
    def __init__(self) -> None:
        self.rows = table()

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, row):
        time.sleep(0.003)
        return self.rows[0][row], self.rows[1][row]


def test_seconds_are_of_steps_with_their_batches():
    found = be.plan(SMALL, FEW, Slow(), batch_size=8, epochs=5)
    assert found.steps == 6
    assert 0.024 < found.step_seconds < 0.2
    assert found.epoch_seconds == 6 * found.step_seconds
    assert found.seconds == 5 * found.epoch_seconds
    assert any("of the time goes into loading rows" in sentence for sentence in found.faster)


def test_a_step_that_memory_is_too_small_for_is_not_tried(monkeypatch):
    taken = []
    monkeypatch.setattr(plan_module, "available_memory", lambda: 1e5)
    monkeypatch.setattr(be.DeepEnsemble, "step", lambda *_: taken.append(1))
    task, data = be.Task(lambda: mlp(4, [64, 64], 2), be.Categorical()), table(1000)
    found = be.plan(task, FEW, data)
    assert (found.step_seconds, found.epoch_seconds, found.seconds, taken) == (None, None, None, [])
    assert "can be had, so no step was tried: take fewer members at a time" in found.faster[0]
    assert "time:" not in str(found)


def test_what_fit_refuses_is_refused():
    with pytest.raises(be.SettingError, match="batch_size must be a whole number"):
        be.plan(SMALL, FEW, table(), batch_size=0)
    with pytest.raises(be.SettingError, match="HMC uses the whole data in every step"):
        be.plan(SMALL, be.HMC(), table(), batch_size=8)
    with pytest.raises(be.SettingError, match="the class DeepEnsemble; call it"):
        be.plan(SMALL, be.DeepEnsemble, table())


def test_in_words_and_in_a_notebook():
    count = be.count_parameters(SMALL, FEW)
    found = Forecast(3, count, 2088, 696, 5_000_000, be.Vmap(), "why", 20, 400, 0.0025, ("a <b> would be faster",))
    assert str(found).splitlines() == [
        "parameters: 58 of a network, 174 of 3 members",
        "memory:     about 5 MB: members and moments 2.09 kB, gradients 696 B, activations 5 MB",
        "executor:   vmap (why)",
        "steps:      400 an epoch",
        "time:       about 1 s an epoch, 20 s for 20 epochs",
        "faster:     a <b> would be faster",
    ]
    assert "a &lt;b&gt; would be faster" in found._repr_html_()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0123, "12.3 ms"), (1, "1 s"), (1.5, "1.5 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h")],
)
def test_times_have_units(seconds, words):
    assert plan_module._duration(seconds) == words
