"""Outputs from a record are those of the network itself, to the last bit, and a network that must run, runs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.seeds import EagerMode
from bayesemble.execute.programs import outputs
from helpers import images, norm_convnet, norm_mlp, quick_fit, small_mlp, table

EXECUTORS = [be.Loop(), be.Loop(channels_last=True), be.Vmap(), be.Vmap(chunk=2)]


def plain_outputs(ensemble: be.Ensemble, x: Tensor, num: int | None = None) -> Tensor:
    """What each network gives, run by itself."""
    found = []
    for part in ensemble.networks(num):
        for params, buffers in part.split():
            with torch.no_grad():
                found.append(ensemble.task.forward(params, buffers, x))
    return torch.stack(found)


def programs_of(ensemble: be.Ensemble, num: int | None = None) -> list:
    return [one for known in ensemble.predictor(num)._recorded.values() for one in known._programs.values()]


def recorded(ensemble: be.Ensemble, num: int | None = None) -> bool:
    return any(isinstance(one, outputs._Program) for one in programs_of(ensemble, num))


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
@pytest.mark.parametrize("model", [norm_mlp, norm_convnet], ids=lambda model: model.__name__)
@pytest.mark.parametrize(
    "method", [be.DeepEnsemble(num_members=3), be.ECMP(select="output", draws=5)], ids=lambda m: type(m).__name__
)
def test_bits_are_those_of_the_executor(method, model, executor):
    x, y = images() if model is norm_convnet else table()
    ensemble = quick_fit(be.Task(model, be.Categorical()), (x, y), method, executor=executor)
    for rows in (x[:8], x[8:16], x[16:24], x[:3], x[24:32]):
        drawn = torch.cat(
            [
                executor.outputs(lambda p, b, i, _: ensemble.task.forward(p, b, i), part, rows, False)
                for part in ensemble.networks()
            ]
        )
        assert torch.equal(ensemble.predict(rows).log_probs, drawn.log_softmax(-1))
    assert recorded(ensemble)


class Convolutions(EagerMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


class InPlace(nn.Module):
    """As many have it: activations in place, functions between the layers, a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = torch.relu_(self.one(x))
        hidden = self.two(shortcut)
        hidden += shortcut
        hidden = nn.functional.relu(hidden, inplace=True)
        return self.head(hidden.mean((2, 3)))


@pytest.mark.parametrize("model", [InPlace, norm_convnet], ids=lambda model: model.__name__)
def test_a_trunk_that_draws_share_runs_once_for_all(model):
    x, y = images()
    ensemble = quick_fit(be.Task(model, be.Categorical()), (x, y), be.ECMP(select="output"), executor="loop")
    ensemble.predict(x[:8], num_draws=150)
    with Convolutions() as one:
        plain_outputs(ensemble, x[8:16], 1)
    with Convolutions() as all_draws:
        found = ensemble.predict(x[8:16], num_draws=150)
    assert all_draws.count == one.count > 0
    torch.testing.assert_close(found.log_probs, plain_outputs(ensemble, x[8:16], 150).log_softmax(-1), rtol=0, atol=0)


def test_a_frozen_trunk_that_members_share_runs_once_for_all():
    def model() -> nn.Module:
        network = InPlace()
        for layer in (network.one, network.two):
            nn.init.constant_(layer.weight, 0.1)
            nn.init.zeros_(layer.bias)
            layer.requires_grad_(False)
        return network

    x, y = images()
    ensemble = quick_fit(be.Task(model, be.Categorical()), (x, y), be.DeepEnsemble(num_members=4), executor="loop")
    expected = plain_outputs(ensemble, x[:8]).log_softmax(-1)
    ensemble.predict(x[8:16])
    with Convolutions() as counted:
        assert torch.equal(ensemble.predict(x[:8]).log_probs, expected)
    assert counted.count == 2


class ByNumpy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.from_numpy(np.sign(x.detach().numpy().sum(1, keepdims=True)))


class ByList(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.tensor([[1.0 if row[0] > 0 else -1.0] for row in x.tolist()])


class ByNumber(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if float(x.detach().sum()) > 0 else -1.0)


class Counting(nn.Linear):
    """The numbers of its calls go into what it gives."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("layer", [ByNumpy, ByList, ByNumber], ids=lambda layer: layer.__name__)
def test_networks_that_look_at_numbers_are_not_recorded(layer):
    x, y = table(64)
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 3), layer(3, 2)), be.Categorical())
    trained = quick_fit(task, (x, y), be.DeepEnsemble(num_members=2), executor=be.Loop(steps="eager"))
    ensemble = replace(trained, executor=be.Loop())
    for rows in x.split(8):
        assert torch.equal(ensemble.predict(rows).log_probs, plain_outputs(ensemble, rows).log_softmax(-1))
    assert not recorded(ensemble)


def test_a_network_that_counts_its_calls_is_not_recorded():
    x, y = table(64)
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 3), Counting(3, 2)), be.Categorical())
    trained = quick_fit(task, (x, y), be.DeepEnsemble(num_members=3), executor=be.Loop(steps="eager"))
    ensemble = replace(trained, executor=be.Loop())
    for rows in x.split(8):
        before = ensemble.task.module[1].calls
        found = ensemble.predict(rows).log_probs
        assert ensemble.task.module[1].calls == before + 3
        ensemble.task.module[1].calls = before
        assert torch.equal(found, plain_outputs(ensemble, rows).log_softmax(-1))


def test_settings_that_somebody_changes_in_a_layer_count():
    ensemble, x = (
        quick_fit(
            be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2)), be.Categorical()),
            table(),
        ),
        table()[0],
    )
    for slope in (0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1):
        ensemble.task.module[1].negative_slope = slope
        torch.testing.assert_close(ensemble.predict(x).log_probs, plain_outputs(ensemble, x).log_softmax(-1))
    assert recorded(ensemble)


def test_hooks_are_called():
    ensemble, x, heard = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0], []
    for _ in range(3):
        ensemble.predict(x)
    hook = next(ensemble.task.module.children()).register_forward_hook(lambda *_: heard.append(1))
    ensemble.predict(x)
    assert heard
    hook.remove()
    heard.clear()
    ensemble.predict(x)
    assert not heard


def test_lower_precision_of_a_block_holds_for_the_block():
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0]
    alone = [ensemble.predict(x).log_probs for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [ensemble.predict(x).log_probs for _ in range(3)]
    assert all(torch.equal(one, inside[0]) for one in inside)
    assert not torch.equal(inside[0], alone[0])
    assert torch.equal(ensemble.predict(x).log_probs, alone[0])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right)


def test_one_tensor_given_twice_is_not_taken_for_two():
    x, y = table()
    ensemble = quick_fit(be.Task(TwoInputs, be.Categorical()), ((x, x + 1), y))
    for other in (x, x, x, x + 2, x + 3, x + 4, x):
        expected = plain_outputs(ensemble, (x, other)).log_softmax(-1)
        torch.testing.assert_close(ensemble.predict((x, other)).log_probs, expected)
    assert recorded(ensemble)


def test_rows_that_lie_otherwise_in_memory_are_another_kind():
    x, y = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y))
    turned = x.T.contiguous().T
    for rows in (x, x, x, turned, turned, turned, x.double(), x[::2], x[::2], x[::2]):
        expected = plain_outputs(ensemble, rows.float()).log_softmax(-1)
        torch.testing.assert_close(ensemble.predict(rows).log_probs, expected)


def test_few_programs_are_kept(monkeypatch):
    monkeypatch.setattr(outputs, "_MOST_PROGRAMS", 3)
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0]
    for _ in range(3):
        for rows in range(1, 7):
            torch.testing.assert_close(
                ensemble.predict(x[:rows]).log_probs, plain_outputs(ensemble, x[:rows]).log_softmax(-1)
            )
    assert len(programs_of(ensemble)) == 3


def test_what_takes_much_memory_is_not_recorded(monkeypatch):
    monkeypatch.setattr(outputs, "_BYTES_RECORDED", 100)
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0]
    for _ in range(4):
        torch.testing.assert_close(ensemble.predict(x).log_probs, plain_outputs(ensemble, x).log_softmax(-1))
    assert not recorded(ensemble)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_threads_get_the_bits_of_one_thread(executor):
    x, y = images()
    ensemble = quick_fit(
        be.Task(norm_convnet, be.Categorical()), (x, y), be.ECMP(select="output", draws=4), executor=executor
    )
    alone = [replace(ensemble).predict(x[4 * i :][:4]).log_probs for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: ensemble.predict(x[4 * (i % 8) :][:4]).log_probs, range(64)))
    assert all(torch.equal(one, alone[index % 8]) for index, one in enumerate(found))


def test_rows_of_large_data_are_recorded_as_others_are(monkeypatch):
    """A batch is a view of all rows, whose memory does not count."""
    monkeypatch.setattr(outputs, "_BYTES_RECORDED", 4 * 6000)
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    x = table(4000)[0]
    found = ensemble.predict(x, batch_size=40).log_probs
    torch.testing.assert_close(found, plain_outputs(ensemble, x).log_softmax(-1))
    assert recorded(ensemble)
