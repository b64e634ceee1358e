"""One writer at a time in a run folder."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import bayesemble as be
from bayesemble.core.files import process_tag
from bayesemble.training.run_folders import run_lock
from bayesemble.training.run_folders.run_lock import LOCK, holding, locked
from helpers import quick_fit, small_mlp, table

HOLD = """
import sys, time
from bayesemble.training.run_folders.run_lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Another process that holds a folder."""
    monkeypatch.setattr(run_lock, "PATIENCE", 0.2)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_refused_by_the_name_of_the_first_until_that_is_dead(holder, tmp_path):
    task, host = be.Task(small_mlp, be.Categorical()), re.escape(process_tag().partition("@")[2])
    words = rf"is being written by process {holder.pid}@{host} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d; wait"
    with pytest.raises(be.CheckpointError, match=words):
        quick_fit(task, table(), checkpoint=tmp_path / "run")
    with pytest.raises(be.CheckpointError, match=words):
        quick_fit(task, table()).save(tmp_path / "run")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).is_file(), "a killed process removes nothing"
    quick_fit(task, table(), checkpoint=tmp_path / "run")
    assert be.load(tmp_path / "run", small_mlp).num_members == 3
    assert not (tmp_path / "run" / LOCK).exists()


def test_who_is_about_to_end_is_waited_for(holder, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "PATIENCE", 30.0)
    threading.Timer(0.3, holder.kill).start()
    with locked(tmp_path / "run"):
        assert holder.wait() == -signal.SIGKILL


def test_readers_need_no_lock(tmp_path):
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=tmp_path)
    with locked(tmp_path):
        assert be.load(tmp_path, small_mlp).num_members == 3


def test_threads_exclude_one_another_and_one_may_enter_again(tmp_path):
    refused = []

    def enter():
        try:
            with locked(tmp_path / "other" / ".." / "run"):
                pass
        except be.CheckpointError as error:
            refused.append(str(error))

    with locked(tmp_path / "run"):
        with locked(tmp_path / "run"):
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
        assert (tmp_path / "run" / LOCK).exists(), "it is held until the outer end"
    assert len(refused) == 1
    assert f"being written by process {process_tag()}" in refused[0]
    enter()
    assert len(refused) == 1


def test_two_fits_in_threads_do_not_share_a_folder(tmp_path):
    task, inside, go, refused = be.Task(small_mlp, be.Categorical()), threading.Event(), threading.Event(), []

    def wait(*_):
        inside.set()
        go.wait(60)

    first = threading.Thread(target=lambda: quick_fit(task, table(), checkpoint=tmp_path, on_epoch=wait))
    first.start()
    inside.wait(60)
    try:
        quick_fit(task, table(), checkpoint=tmp_path, seed=1)
    except be.CheckpointError as error:
        refused.append(error)
    go.set()
    first.join()
    assert len(refused) == 1
    whole = quick_fit(task, table()).state.members.params
    assert all(
        torch.equal(leaf, whole[name]) for name, leaf in be.load(tmp_path, small_mlp).state.members.params.items()
    )


@pytest.mark.parametrize("owner", ["gone", "alive", "elsewhere", "nobody"])
def test_where_there_are_no_locks_the_process_in_the_file_counts(tmp_path, monkeypatch, owner):
    monkeypatch.setattr(run_lock, "fcntl", None)
    monkeypatch.setattr(run_lock, "PATIENCE", 0.0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    host = process_tag().partition("@")[2]
    names = {"gone": f"{child.pid}@{host}", "alive": f"{os.getppid()}@{host}", "elsewhere": f"{child.pid}@moon"}
    text = f"process {names[owner]} since yesterday" if owner in names else ""
    (tmp_path / LOCK).write_text(text)
    if owner in ("gone", "nobody"):
        with locked(tmp_path):
            assert process_tag() in (tmp_path / LOCK).read_text()
        assert not (tmp_path / LOCK).exists()
    else:
        with (
            pytest.raises(be.CheckpointError, match=rf"{names[owner]} since yesterday.*remove .*{LOCK}"),
            locked(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK).read_text() == text


def test_the_lock_is_never_written_through_a_link(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "thesis")
    with pytest.raises(be.CheckpointError, match="cannot be written"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_a_folder_that_was_made_for_nothing_goes(tmp_path):
    with pytest.raises(be.SettingError, match="epochs"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), epochs=0, checkpoint=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "new"):
        (tmp_path / "new" / "mine").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written_to_is_noticed_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    steps = []
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(be.CheckpointError, match=rf"{folder} cannot be written: "):
            quick_fit(
                be.Task(small_mlp, be.Categorical()), table(), checkpoint=folder, on_epoch=lambda *_: steps.append(1)
            )
    assert not steps


def test_a_function_holds_the_folder_that_it_is_given_by_name_or_place(tmp_path):
    @holding("out")
    def held(number, out=None, *, other=1):
        """What it does."""
        return number, out is not None and (Path(out) / LOCK).is_file()

    assert held(1) == held(1, None) == (1, False)
    assert held(2, tmp_path) == held(number=2, out=str(tmp_path)) == (2, True)
    assert held.__doc__ == "What it does."
    with pytest.raises(TypeError, match=r"held\(\) missing 1 required positional argument"):
        held()


def test_a_lock_that_cannot_be_written_is_not_left_behind(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(be.CheckpointError, match="No space left on device"), locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
