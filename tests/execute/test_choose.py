import logging
import math
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.members import State
from bayesemble.core.types import Batch
from bayesemble.execute import choose as choose_module
from bayesemble.execute import rule
from bayesemble.execute.choose import choose, vmap_obstacle
from bayesemble.models import mlp
from helpers import (
    all_leaves,
    dropout_mlp,
    images,
    largest_difference,
    norm_convnet,
    quick_fit,
    small_mlp,
    table,
    with_tests_on_path,
)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        out = self.layer(x)
        return out if out.sum() > 0 else 2 * out


def cumulative_norm():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 2))


def sequences():
    x, y = table(24)
    return x[:, None, :].expand(24, 3, 4).contiguous(), y


REFUSED = {
    "lstm": (lambda: Recurrent(nn.LSTM), sequences(), r"'rnn' \(LSTM\)"),
    "gru": (lambda: Recurrent(nn.GRU), sequences(), r"'rnn' \(GRU\)"),
    "data-dependent code": (DataDependent, table(24), r"\(DataDependent\)"),
    "cumulative batch norm": (cumulative_norm, table(24), r"'1' \(BatchNorm1d\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_vmap_names_the_layer_it_cannot_run_and_the_way_out(name):
    make, data, layer = REFUSED[name]
    with pytest.raises(be.ExecutionError, match=rf'vmap cannot run layer {layer}.*use executor="loop"'):
        quick_fit(be.Task(make, be.Categorical()), data, executor="vmap")


@pytest.mark.parametrize("name", REFUSED)
def test_auto_falls_back_to_the_loop_and_says_why(name, caplog):
    make, data, _ = REFUSED[name]
    with caplog.at_level(logging.INFO, "bayesemble"):
        fitted = quick_fit(be.Task(make, be.Categorical()), data, executor="auto")
    assert fitted.executor == be.Loop(threads=1, steps="traced")
    assert "one by one: vmap cannot run layer" in caplog.text
    assert fitted.predict(data[0]).probs.isfinite().all()


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 2)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0].mean(1))


def tokens():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(7, (24, 5), generator=generator), table(24)[1]


WORKS = {
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)),
        table(24),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)),
        images(24),
    ),
    "attention": (Attention, sequences()),
    "transformer with embedding": (Transformer, tokens()),
    "dropout": (dropout_mlp, table(24)),
    "convolution": (norm_convnet, images(24)),
}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_common_layers_run_under_both_executors_with_the_same_numbers(name):
    make, data = WORKS[name]
    task = be.Task(make, be.Categorical())
    loop, vmap = (quick_fit(task, data, executor=executor) for executor in ("loop", "vmap"))
    torch.testing.assert_close(loop.predict(data[0]).probs, vmap.predict(data[0]).probs, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_dropout_inside_attention_is_refused_under_vmap_and_left_to_the_loop_by_auto():
    task = be.Task(lambda: Transformer(dropout=0.1), be.Categorical())
    with pytest.raises(be.ExecutionError, match='attention with dropout does; use executor="loop"'):
        quick_fit(task, tokens(), executor="vmap")
    assert isinstance(quick_fit(task, tokens(), executor="auto").executor, be.Loop)


def test_auto_leaves_to_the_loop_what_vmap_would_run_member_by_member_with_a_warning():
    """Attention without dropout has the loop's numbers under vmap, but torch has no batching rule for it."""
    task = be.Task(Transformer, be.Categorical())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = quick_fit(task, tokens(), executor="auto")
    assert fitted.executor == be.Loop(threads=1, steps="traced")
    assert re.fullmatch(r"one by one: vmap would run aten::\w*attention\w* member by member", fitted.execution)


def test_steps_are_compiled_where_there_are_many_and_a_compiler(monkeypatch):
    x, y = table()
    task = be.Task(small_mlp, be.Categorical()).bind(len(x), x)
    state = State(task.new_members(3, seed=0))

    def ways(steps: int) -> str:
        return choose("auto", task, state, Batch(x, y), None, steps).executor.steps

    monkeypatch.setenv("CXX", sys.executable)  # there is such a command
    assert ways(10**7) == "compiled"
    assert ways(1000) == "traced"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert ways(10**7) == "traced"


IN_OTHER_PROCESSES = """
import sys, time
import torch
from helpers import dropout_mlp, images, norm_convnet, quick_fit, small_mlp, table
import bayesemble as be
from bayesemble.core.types import Batch
from bayesemble.execute.choose import choose

def no_clock():
    raise AssertionError("the choice went by the clock")

torch.set_num_threads(int(sys.argv[1]))
for make, data in ((small_mlp, table()), (dropout_mlp, table()), (norm_convnet, images())):
    clock = time.perf_counter
    task = be.Task(make, be.Categorical())
    x, y = data
    bound = task.bind(len(x), x)
    method = be.DeepEnsemble(num_members=3)
    time.perf_counter = no_clock
    found = choose("auto", bound, method.init(bound, 0), Batch(x, y), None)
    time.perf_counter = clock
    fitted = quick_fit(task, data, method, executor="auto")
    assert fitted.executor == found.executor
    leaves = fitted.state.members.params.values()
    print(found.executor, found.reason, [leaf.double().sum().item().hex() for leaf in leaves])
"""


def test_auto_is_the_same_in_every_process_whatever_the_clock_and_the_threads():
    commands = [[sys.executable, "-c", IN_OTHER_PROCESSES, str(threads)] for threads in (1, 2)]
    options = {"env": with_tests_on_path(), "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **options) for command in commands]  # at once: each makes the other wait
    first, second = (process.communicate()[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert first == second
    assert first.count("small network and batch") == 3


def test_a_run_is_resumed_with_the_executor_it_was_begun_with(tmp_path, monkeypatch):
    task, options = be.Task(small_mlp, be.Categorical()), {"checkpoint": tmp_path / "run", "resume": True}
    whole = quick_fit(task, table(), executor="auto", epochs=4)
    begun = quick_fit(task, table(), executor="auto", **options)
    monkeypatch.setattr(choose_module, "row_for", lambda load: rule.Row("", lambda _: True, rule.one_by_one))
    for wish in ("auto", "measure"):
        resumed = quick_fit(task, table(), executor=wish, epochs=4, **options)
        assert (resumed.executor, resumed.execution) == (begun.executor, begun.execution)
        assert largest_difference(all_leaves(resumed), all_leaves(whole)) == 0


def stepper_that_takes(seconds):
    """A stand-in for training steps of known length."""
    import time

    def stepper(executor):
        return lambda: time.sleep(seconds[type(executor), getattr(executor, "channels_last", False)])

    return stepper


@pytest.mark.parametrize("quickest", ["loop", "vmap"])
def test_measure_takes_the_quickest_and_states_the_timings(quickest):
    x, y = table(16)
    task = be.Task(small_mlp, be.Categorical()).bind(16, x)
    state = State(task.new_members(3, seed=0))
    seconds = {(be.Loop, False): 0.002, (be.Vmap, False): 0.004 if quickest == "loop" else 0.0005}
    choice = choose("measure", task, state, Batch(x, y), stepper_that_takes(seconds))
    assert str(choice.executor).startswith(quickest)
    assert re.fullmatch(r"measured: loop with draws by vmap [\d.]+ ms, vmap [\d.]+ ms.* a step", choice.reason)


@pytest.mark.parametrize(
    ("lengths", "rounds", "best"),
    [([0.3, 0.02, 0.01], 21, 0.01), ([0.9], 3, 0.9), ([3.0, 0.9], 3, 0.9), ([6.0], 1, 6.0), ([0.01, 0.02], 21, 0.02)],
    ids=["all rounds", "two rounds will do", "warm-up", "one step", "the warm-up is not the best"],
)
def test_candidates_are_timed_in_turn_until_enough_is_known(monkeypatch, lengths, rounds, best):
    """By a clock that only the steps of the two candidates move; the last length goes on."""
    now, calls = 0.0, []

    def stepper(executor):
        def step():
            nonlocal now
            done = calls.count(executor)
            calls.append(executor)
            now += lengths[min(done, len(lengths) - 1)]

        return step

    monkeypatch.setattr(choose_module, "time", SimpleNamespace(perf_counter=lambda: now))
    found = choose_module._time([be.Loop(), be.Vmap()], stepper)
    assert calls == [be.Loop(), be.Vmap()] * rounds
    assert found == {be.Loop(): pytest.approx(best), be.Vmap(): pytest.approx(best)}


def test_measure_takes_channels_last_where_it_is_quickest():
    x, y = images(8)
    task = be.Task(norm_convnet, be.Categorical()).bind(8, x)
    seconds = {(be.Loop, False): 0.004, (be.Loop, True): 0.001, (be.Vmap, False): 0.006}
    choice = choose("measure", task, State(task.new_members(2, seed=0)), Batch(x, y), stepper_that_takes(seconds))
    assert choice.executor == be.Loop(channels_last=True)


@pytest.mark.parametrize(
    ("one", "other", "largest", "close"),
    [
        ([10.0, 0.0], [10.0, 0.00099], 0.0, True),  # to 1e-4 of the largest number
        ([10.0, 0.0], [10.0, 0.00102], 0.0, False),
        ([10.0, 1.0], [10.0, 1.0019], 0.0, True),  # and to 1e-3 of each
        ([10.0, 1.0], [10.0, 1.0022], 0.0, False),
        ([0.0], [0.9e-6], 0.0, True),
        ([0.0], [1.1e-6], 0.0, False),
        ([0.0], [0.9e-5], 1.0, True),
        ([0.0], [1.1e-5], 1.0, False),
        ([math.nan, math.inf], [math.nan, math.inf], 0.0, True),
        ([math.nan], [1.0], 0.0, False),
        ([1.0], [1.0, 1.0], 0.0, False),
    ],
)
def test_how_close_numbers_of_two_executors_have_to_be(one, other, largest, close):
    assert choose_module._close(torch.tensor(one).double(), torch.tensor(other).double(), largest) == close


def test_the_size_of_numbers_is_that_of_the_finite_ones():
    assert choose_module._size(torch.tensor([1.0, -3.0, math.inf, math.nan])) == 3
    assert choose_module._size(torch.tensor([math.nan])) == 0
    assert choose_module._size(torch.tensor([2.0, -4.0])) == 4
    assert choose_module._size(torch.zeros(0)) == 0


def test_draws_go_side_by_side_where_there_are_two_and_that_was_asked_for():
    task = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])

    def function(params, buffers, inputs, _):
        return task.forward(params, buffers, inputs)

    def chosen(executor, num):
        return choose_module.for_draws(executor, function, task.new_members(num, 0), table()[0])

    wish = be.Loop(draws_by_vmap=True, threads=1)
    assert chosen(wish, 2) == be.Vmap(chunk=choose_module._NETWORKS_PREDICTING_TOGETHER, threads=1)
    assert chosen(wish, 1) == wish
    for other in (be.Loop(), be.Vmap(chunk=3)):
        assert chosen(other, 2) == other


def test_an_unknown_executor_is_refused():
    with pytest.raises(be.SettingError, match='"auto", "measure", "loop", "vmap" or an object'):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), executor="fast")


def test_probing_leaves_the_members_as_they_are():
    x, y = table(16)
    task = be.Task(small_mlp, be.Categorical()).bind(16, x)
    members = task.new_members(2, seed=0)
    before = State(members).clone().members
    assert vmap_obstacle(task, members, Batch(x, y)) is None
    assert all(torch.equal(members.params[name], before.params[name]) for name in members.params)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_that_batch_norm_enlarges_does_not_count_against_vmap(seed):
    """Columns that are nearly the same: the few rows that are compared differ little in all of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 40, 1, generator=generator) + 1e-3 * torch.randn(2, 40, 16, generator=generator)
    y = torch.randn(2, 40, 2, generator=generator)
    task = be.Task(lambda: mlp(16, [50], 2, norm=True, input_norm=True, norm_scale=0.2), be.Gaussian(0.7), prior=None)
    method, options = be.DeepEnsemble(num_members=2), {"epochs": 1, "batch_size": 20}
    fitted = quick_fit(task, be.PerMember(x, y), method, executor="vmap", **options)
    assert isinstance(fitted.executor, be.Vmap)
    assert np.isfinite(fitted.history[0]["loss"]).all()


def test_gradients_that_are_zero_but_for_rounding_do_not_count_against_vmap():
    """A bias in front of batch norm has no effect; what autograd finds there is the rounding of the other gradients."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 100, 6, generator=generator), torch.randn(2, 100, 1, generator=generator)
    task = be.Task(lambda: mlp(6, [50], 1, norm=True), be.Gaussian(0.02))
    fitted, alone = (
        quick_fit(task, be.PerMember(x, y), be.DeepEnsemble(num_members=2), executor=kind, epochs=1, batch_size=None)
        for kind in ("vmap", "loop")
    )
    assert isinstance(fitted.executor, be.Vmap)
    assert fitted.history[0]["loss"] == pytest.approx(alone.history[0]["loss"], rel=1e-5)


@pytest.mark.filterwarnings("ignore:targets are about")
def test_an_infinite_loss_on_the_first_batch_is_told_as_one_whatever_the_executor():
    """Both executors give the same infinities, so vmap is not to blame."""
    x, y = torch.zeros(3, 16, 4), torch.ones(3, 16)
    y[1] = 1e30
    task = be.Task(lambda: nn.Linear(4, 2), be.HeteroscedasticGaussian())
    for executor in ("loop", "vmap"):
        with pytest.raises(be.TrainingError, match="the loss of member 1 became inf in epoch 1, step 1"):
            quick_fit(task, be.PerMember(x, y), executor=executor)
