"""Ctrl-C and SIGTERM end training after a whole step, and nothing is lost."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.training.progress import Progress
from bayesemble.training.run_folders import checkpoint
from bayesemble.training.stopping import stop_requests
from helpers import (
    all_leaves,
    dropout_mlp,
    largest_difference,
    norm_mlp,
    quick_fit,
    small_mlp,
    table,
    with_tests_on_path,
)

TASK = be.Task(small_mlp, be.Categorical())


@pytest.fixture
def send_at(monkeypatch):
    """Send signals to this process when a step of training is done; dying of SIGTERM is only noted."""
    monkeypatch.setattr(signal, "raise_signal", lambda number: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    original = Progress.step

    def plan(number: int, *steps: int) -> None:
        taken = iter(range(1, 10**6))

        def step(self, epoch):
            original(self, epoch)
            if next(taken) in steps:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Progress, "step", step)

    yield plan
    for number, handler in before.items():
        signal.signal(number, handler)


def without_seconds(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in history]


def loader(data):
    return DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)


CASES = {
    "arrays": (norm_mlp, be.DeepEnsemble(num_members=2, bootstrap=True, schedule="cosine"), table, "loop"),
    "dropout, vmap": (dropout_mlp, be.DeepEnsemble(num_members=2, optimizer="sgd"), table, "vmap"),
    "loader": (norm_mlp, be.DeepEnsemble(num_members=2), lambda rows: loader(table(rows)), "loop"),
    "forces": (small_mlp, be.Repulsive(num_members=3), table, "loop"),
    "snapshots": (norm_mlp, be.SWAG(num_members=2, start=0.1, rank=2), table, "loop"),
    "components": (norm_mlp, be.ECMP(), table, "loop"),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_within_an_epoch_ends_as_an_undisturbed_one(name, number, tmp_path, send_at):
    model, method, data, executor = CASES[name]
    task, options = be.Task(model, be.Categorical()), {"executor": executor, "epochs": 4, "validation": table(20)}
    options |= {"keep_best": True, "batch_size": None if name == "loader" else 16}
    expected = quick_fit(task, data(60), method, **options)
    for step in (6, 3):  # four steps are an epoch: within the second one, and in the third once it is resumed
        send_at(number, step)
        with pytest.raises(be.Interrupted):
            quick_fit(task, data(60), method, checkpoint=tmp_path, resume=True, checkpoint_every=9, **options)
    standing = checkpoint.read(tmp_path).run["progress"]
    assert (standing["epoch"], standing["step"]) == (2, 1)
    assert len(be.load(tmp_path, model).history) == 2
    send_at(number)
    resumed = quick_fit(task, data(60), method, checkpoint=tmp_path, resume=True, **options)
    assert largest_difference(all_leaves(expected), all_leaves(resumed)) == 0
    for slot, leaves in expected.state.slots.items():
        assert all(torch.equal(leaf, resumed.state.slots[slot][name]) for name, leaf in leaves.items()), slot
    assert [row.keys() for row in resumed.history] == [row.keys() for row in expected.history]
    assert without_seconds(resumed.history) == without_seconds(expected.history)


def test_what_was_recorded_stays_when_a_run_goes_on_within_an_epoch(tmp_path, send_at):
    expected = quick_fit(TASK, table(60), epochs=3, record="epoch")
    send_at(signal.SIGTERM, 5)  # of four in an epoch
    with pytest.raises(KeyboardInterrupt):
        quick_fit(TASK, table(60), epochs=3, record="epoch", checkpoint=tmp_path)
    before = (tmp_path / "recording" / "epoch-000001.safetensors").read_bytes()
    send_at(signal.SIGTERM)
    resumed = quick_fit(TASK, table(60), epochs=3, record="epoch", checkpoint=tmp_path, resume=True)
    assert (tmp_path / "recording" / "epoch-000001.safetensors").read_bytes() == before
    for epoch in range(4):
        one, other = (found.recording.members(epoch).params for found in (expected, resumed))
        assert largest_difference(one, other) == 0


def test_an_end_at_the_last_step_of_an_epoch_comes_after_the_epoch(tmp_path, send_at):
    send_at(signal.SIGINT, 3)
    with pytest.raises(be.Interrupted, match=r"stopped after epoch 1, of 2 epochs.*resume=True goes on from") as stop:
        quick_fit(TASK, table(), checkpoint=tmp_path)
    assert len(stop.value.ensemble.history) == 1
    assert checkpoint.read(tmp_path).run["progress"]["epoch"] == 1


def test_ctrl_c_without_a_checkpoint_hands_back_what_there_is(send_at, tmp_path):
    send_at(signal.SIGINT, 5)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 2 of epoch 2, of 4 epochs") as stop:
        quick_fit(TASK, table(), epochs=4)
    ensemble = stop.value.ensemble
    assert len(ensemble.history) == 1
    states = []
    send_at(signal.SIGINT)
    quick_fit(TASK, table(), epochs=4, batch_size=16, on_epoch=lambda state, row: states.append(state.clone()))
    assert largest_difference(all_leaves(ensemble), states[0].members.params) > 0, "the steps of the next are in it"
    ensemble.save(tmp_path)
    assert torch.equal(be.load(tmp_path, small_mlp).predict(table()[0]).probs, ensemble.predict(table()[0]).probs)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_hands_back_the_best_state_if_that_was_asked_for(send_at):
    seen = []
    send_at(signal.SIGINT, 5)
    with pytest.raises(be.Interrupted) as stop:
        quick_fit(
            TASK, table(), validation=table(20), keep_best=True, on_epoch=lambda state, row: seen.append(state.clone())
        )
    assert largest_difference(all_leaves(stop.value.ensemble), seen[0].members.params) == 0


def test_numbers_that_are_not_finite_are_not_handed_back(send_at):
    task = be.Task(lambda: torch.nn.Linear(4, 1), be.Gaussian(noise=1e-3), prior=None)
    method = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=1e10)
    send_at(signal.SIGINT, 8)
    with pytest.raises(be.Interrupted, match="nothing can be handed back: the loss of member 0 became") as stop:
        quick_fit(task, (table()[0], table()[1].float()), method, batch_size=4)
    assert stop.value.ensemble is None


def test_a_second_ctrl_c_acts_at_once():
    with stop_requests(by_sigterm=False) as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_of_a_user_are_left_alone_and_other_threads_get_no_signals(tmp_path):
    def own(*_):
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        with stop_requests(by_sigterm=True):
            assert signal.getsignal(signal.SIGTERM) is own
        found = []
        thread = threading.Thread(target=lambda: found.append(quick_fit(TASK, table(), checkpoint=tmp_path)))
        thread.start()
        thread.join()
        assert len(found[0].history) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_a_checkpoint_sigterm_is_not_waited_for():
    with stop_requests(by_sigterm=False):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


PROCESS = """
import os, signal, sys
from pathlib import Path
from bayesemble.training.progress import Progress
from helpers import quick_fit, small_mlp, table
import bayesemble as be

steps = iter(range(1, 1000))
def step(self, epoch):
    if next(steps) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
Progress.step = step
kind, folder = sys.argv[1:]
if kind == "library":
    try:
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=folder, epochs=4)
    finally:
        print("the process went on")
else:
    rows = "".join(f"{i % 7},{i % 5},{i % 7 + i % 5 + i % 2}\\n" for i in range(80))
    (Path(folder).parent / "rows.csv").write_text("a,b,y\\n" + rows)
    from bayesemble.apps.cli.main import main
    table = str(Path(folder).parent / "rows.csv")
    sys.argv = ["bayesemble", "fit", table, "--target", "y", "--epochs", "4", "--out", folder]
    main()
"""


@pytest.mark.parametrize("kind", ["library", "command line"])
def test_a_process_that_is_told_to_end_saves_and_ends_by_that_signal(kind, tmp_path):
    command = [sys.executable, "-c", PROCESS, kind, str(tmp_path / "run")]
    done = subprocess.run(command, env=with_tests_on_path(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "the process went on" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ended by SIGTERM after step"), done.stderr
    assert "Traceback" not in done.stderr
    assert checkpoint.read(tmp_path / "run").run["progress"]["step"] > 0


def test_children_leave_the_first_signal_to_their_parent():
    """As workers of a DataLoader do: the signals of a terminal or a batch system go to all processes of a group."""
    with stop_requests(by_sigterm=True) as request:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7 if request.signal is None and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
