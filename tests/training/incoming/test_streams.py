"""Streams are trained on by the number of their batches: the same bits as arrays, and after a resumption."""

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import bayesemble as be
from bayesemble.core.errors import DataError, Interrupted, SettingError
from bayesemble.training.run_folders import checkpoint
from helpers import TESTS, largest_difference, quick_fit, small_mlp, table, with_tests_on_path

X, Y = table(40)
FIVE = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
"""Batches of eight rows."""


class Rows(IterableDataset):
    """Rows one after the other, with a random number each."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def __iter__(self):
        for x, y in zip(X, Y, strict=True):
            yield x + self.noise * torch.randn(4), y


def task() -> be.Task:
    return be.Task(small_mlp, be.Categorical())


def fitted(batches, epochs: int = 4, steps: int = 5, method=None, **options) -> be.Ensemble:
    data = be.Stream(batches, num_data=40, steps_per_epoch=steps)
    method = method or be.DeepEnsemble(num_members=2)
    return quick_fit(task(), data, method, epochs=epochs, **({"batch_size": None} | options))


def weights(ensemble: be.Ensemble) -> dict[str, Tensor]:
    return ensemble.state.members.params


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        (FIVE, {}),
        (lambda: iter(FIVE), {}),
        (iter(FIVE * 4), {}),
        (Rows(), {"batch_size": 8}),
        (DataLoader(Rows(), batch_size=8), {}),
        ([{"input": x, "labels": y} for x, y in FIVE], {"key": "labels"}),
    ],
    ids=["list", "function", "iterator", "rows", "loader", "mappings"],
)
def test_a_stream_trains_like_the_batches_it_yields(batches, options):
    loader = DataLoader(list(zip(X, Y, strict=True)), batch_size=8)
    expected = quick_fit(task(), loader, be.DeepEnsemble(num_members=2), epochs=4, batch_size=None)
    key = options.pop("key", None)
    if key is None:
        found = fitted(batches, **options)
    else:
        data = be.Stream(batches, num_data=40, steps_per_epoch=5)
        own = be.Task(small_mlp, be.Categorical(), targets=key)
        found = quick_fit(own, data, be.DeepEnsemble(num_members=2), epochs=4, batch_size=None)
    assert largest_difference(weights(found), weights(expected)) == 0


def test_an_epoch_ends_where_it_was_said_and_the_stream_goes_on():
    seen: list[float] = []

    def numbered():
        for number in itertools.count():
            seen.append(number)
            yield FIVE[number % 5]

    found = fitted(numbered, epochs=4, steps=3)
    assert [row["gradients"] for row in found.history] == [6] * 4
    assert seen[-12:] == [*range(12)]
    assert set(seen[:-12]) == {0}, "the first was looked at before"
    other = fitted(FIVE, epochs=4, steps=3)  # begun again after five
    assert largest_difference(weights(found), weights(other)) == 0


@pytest.mark.parametrize("stop", [2, 7, 13])
def test_a_run_goes_on_within_an_epoch_to_the_same_bits(tmp_path, stop):
    whole = fitted(Rows(noise=0.5), epochs=3, batch_size=8, method=be.SWAG(start=0.4, rank=2, snapshots=3))

    class Stop(be.Callback):
        steps = 0

        def on_step(self, *_):
            Stop.steps += 1
            if Stop.steps == stop:
                raise KeyboardInterrupt

    options = {"epochs": 3, "batch_size": 8, "method": be.SWAG(start=0.4, rank=2, snapshots=3)}
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        fitted(Rows(noise=0.5), **options, checkpoint=tmp_path, checkpoint_every="1 steps", callbacks=[Stop()])
    resumed = fitted(Rows(noise=0.5), **options, checkpoint=tmp_path, resume=True)
    assert largest_difference(weights(resumed), weights(whole)) == 0


KILLED = """
import os, signal, sys
import torch
import bayesemble as be
from helpers import quick_fit, small_mlp, table
from training.incoming.test_streams import fitted, Rows

class Die(be.Callback):
    steps = 0

    def on_step(self, *_):
        self.steps += 1
        if self.steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

options = {"checkpoint": sys.argv[1], "checkpoint_every": "2 steps", "resume": True}
fitted(Rows(noise=0.5), epochs=3, batch_size=8, **options, callbacks=[Die()])
"""


def test_a_run_that_is_killed_within_an_epoch_goes_on_in_another_process_to_the_same_bits(tmp_path):
    whole = fitted(Rows(noise=0.5), epochs=3, batch_size=8)
    command = [sys.executable, "-c", KILLED, str(tmp_path), "8"]
    killed = subprocess.run(command, capture_output=True, text=True, env=with_tests_on_path())
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    progress = checkpoint.read(tmp_path).run["progress"]
    assert (progress["epoch"], progress["step"]) in ((1, 1), (1, 2)), "in the middle of the second epoch"
    resumed = fitted(Rows(noise=0.5), epochs=3, batch_size=8, checkpoint=tmp_path, resume=True)
    assert largest_difference(weights(resumed), weights(whole)) == 0
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


def test_what_a_stream_needs_is_asked_for():
    method = be.DeepEnsemble(num_members=2)
    with pytest.raises(DataError, match=r"be.Stream\(data, num_data=..., steps_per_epoch=...\)"):
        quick_fit(task(), Rows(), method, batch_size=8)
    with pytest.raises(DataError, match="how many rows a stream stands for"):
        quick_fit(task(), be.Stream(FIVE, steps_per_epoch=2), method, batch_size=None)
    with pytest.raises(DataError, match="where an epoch ends"):
        quick_fit(task(), be.Stream(FIVE, num_data=40), method, batch_size=None)
    with pytest.raises(SettingError, match="say by batch_size how many"):
        fitted(Rows())
    with pytest.raises(SettingError, match="batch_size=4 cannot be honoured"):
        fitted(FIVE, batch_size=4)
    with pytest.raises(SettingError, match="num_data must be a whole number from 1, got 0"):
        be.Stream(FIVE, num_data=0)
    with pytest.raises(SettingError, match="an iterable of batches or a function"):
        be.Stream(3)
    with pytest.raises(DataError, match="the stream has no batches"):
        fitted([])
    with pytest.raises(SettingError, match="bootstrap and own_order need rows"):
        fitted(FIVE, method=be.DeepEnsemble(num_members=2, bootstrap=True))


def test_an_iterator_is_gone_through_once(tmp_path):
    with pytest.raises(DataError, match="an iterator goes through its batches once"):
        fitted(iter(FIVE), epochs=2)
    fitted(iter(FIVE), epochs=1, checkpoint=tmp_path)
    with pytest.raises(SettingError, match="an iterator cannot be begun again"):
        fitted(iter(FIVE), epochs=2, checkpoint=tmp_path, resume=True)


def test_predictions_come_as_the_rows_do():
    ensemble = quick_fit(task(), (X, Y), be.DeepEnsemble(num_members=2))
    whole = ensemble.predict(X)
    for rows in (Rows(), DataLoader(Rows(), batch_size=8), iter(FIVE), be.Stream(FIVE), X, DataLoader(X, batch_size=8)):
        size = {"batch_size": 8} if isinstance(rows, Rows | Tensor) else {}  # the others have batches of their own
        parts = list(ensemble.predict_iter(rows, **size))
        assert [part.num_rows for part in parts] == [8] * 5
        torch.testing.assert_close(torch.cat([part.probs for part in parts]), whole.probs)
    torch.testing.assert_close(ensemble.predict(Rows()).probs, whole.probs)
    endless = ensemble.predict_iter((FIVE[i % 5] for i in itertools.count()), keep_members=False)
    assert [next(endless).num_rows for _ in range(7)] == [8] * 7
    plain = ensemble.evaluate((X, Y))
    for data in (Rows(), be.Stream(FIVE)):
        options = {"batch_size": 8} if isinstance(data, Rows) else {}
        assert ensemble.evaluate(data, **options)["nll"] == pytest.approx(plain["nll"], rel=1e-6)


def test_a_stream_may_be_what_is_held_out():
    found = quick_fit(task(), (X, Y), be.DeepEnsemble(num_members=2), epochs=2, batch_size=8, validation=Rows())
    plain = quick_fit(task(), (X, Y), be.DeepEnsemble(num_members=2), epochs=2, batch_size=8, validation=(X, Y))
    for one, other in zip(found.history, plain.history, strict=True):
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-6)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_a_million_rows_take_no_more_memory_than_a_few_and_go_on_after_a_kill_within_an_epoch():
    """Two epochs of a million rows each; `python tests/stream_kill.py` has small batches and more kills."""
    command = [sys.executable, str(TESTS / "stream_kill.py"), "--batch", "25000", "--epochs", "2", "--kills", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=with_tests_on_path())
    seen = json.loads(done.stdout)
    assert seen["same bits"]
    assert seen["killed after"][0] >= seen["resumed from"][0] > seen["steps of an epoch"] == 40
    few, *many = seen["grew by MiB"]
    assert max(many) - few < 20, "MiB; the rows of an epoch are 80"
