"""Members along training: what is recorded is what training had, and it comes back from files."""

import gc
import os
import subprocess
import sys
import tempfile

import pytest
import torch

import bayesemble as be
from bayesemble.core.files import process_tag
from bayesemble.training.run_folders.recording import Recording
from helpers import norm_mlp, quick_fit, table


def fitted(**options):
    return quick_fit(be.Task(norm_mlp, be.Categorical()), table(24), **({"epochs": 3, "record": "epoch"} | options))


def same(one, other):
    return all(torch.equal(leaf, other[name]) for name, leaf in one.items()) and one.keys() == other.keys()


def test_the_first_recorded_epoch_is_the_start_and_the_last_is_the_ensemble():
    ensemble = fitted()
    assert ensemble.recording.epochs == [0, 1, 2, 3]
    last, start = ensemble.recording.members(3), ensemble.task.new_members(3, ensemble.seed)
    assert same(last.params, ensemble.state.members.params)
    assert same(last.buffers, ensemble.state.members.buffers)
    assert last.shared == ensemble.state.members.shared
    assert same(ensemble.recording.members(0).params, start.params)


def test_an_epoch_in_between_is_what_a_shorter_run_ends_with():
    longer, shorter = fitted(), fitted(epochs=2)
    assert same(longer.recording.members(2).params, shorter.state.members.params)


def test_one_member_along_training():
    recording = fitted().recording
    along = recording.along(1, [1, 3])
    assert along.num_members == 2
    for place, epoch in enumerate((1, 3)):
        for name, leaf in recording.members(epoch).params.items():
            assert torch.equal(along.params[name][place], leaf[1])


def test_it_lies_in_the_run_folder_and_is_found_again(tmp_path):
    fitted(checkpoint=tmp_path / "run", epochs=2)
    resumed = fitted(checkpoint=tmp_path / "run", epochs=3, resume=True)
    assert resumed.recording.epochs == [0, 1, 2, 3]
    assert be.load(tmp_path / "run", norm_mlp).recording.epochs == [0, 1, 2, 3]
    resumed.save(tmp_path / "copy")
    assert same(be.load(tmp_path / "copy", norm_mlp).recording.members(1).params, fitted().recording.members(1).params)


def test_without_recording_there_is_none():
    assert quick_fit(be.Task(norm_mlp, be.Categorical()), table(24)).recording is None


def test_what_was_not_recorded_is_said():
    with pytest.raises(be.CheckpointError, match=r"epoch 7 was not recorded in .*; there are 0, 1, 2, 3"):
        fitted().recording.members(7)
    with pytest.raises(be.SettingError, match="record is 'epoch' or None, not 'step'"):
        fitted(record="step")


def test_a_temporary_folder_goes_with_its_recording():
    ensemble = fitted(epochs=1)
    folder = ensemble.recording.folder
    assert folder.is_dir()
    del ensemble
    gc.collect()
    assert not folder.exists()


def test_what_is_read_is_owned_and_every_damage_is_named(tmp_path):
    recording = fitted(checkpoint=tmp_path, epochs=1).recording
    members, path = recording.members(1), recording.folder / "epoch-000001.safetensors"
    good, kept = path.read_bytes(), {name: leaf.clone() for name, leaf in members.params.items()}
    os.truncate(path, 0)
    assert same(members.params, kept)
    places = [*range(0, len(good), 37), len(good) - 1]
    damaged = [good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :] for place in places]
    for bad in (*damaged, good[:-1], good[: len(good) // 2], b"", good + b"x"):
        path.write_bytes(bad)
        with pytest.raises(be.CheckpointError, match=r"epoch-000001\.safetensors is damaged"):
            recording.members(1)
    path.write_bytes(good)
    assert same(recording.members(1).params, kept)


def test_what_a_killed_run_left_beside_the_epochs_goes_and_nothing_else(tmp_path):
    folder = tmp_path / "recording"
    folder.mkdir()
    (folder / ".tmpa1B2c3").write_bytes(b'..{"__metadata__":{"checksum":"000')
    (folder / ".tmpempty1").touch()
    (folder / ".tmpmine12").write_text("years of work")
    fitted(checkpoint=tmp_path, epochs=1)
    names = {".tmpmine12", "epoch-000000.safetensors", "epoch-000001.safetensors"}
    assert {path.name for path in folder.iterdir()} == names


def test_temporary_folders_of_processes_that_are_gone_are_removed(tmp_path, monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    host = process_tag().partition("@")[2]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = [f"bayesemble-{child.pid}@moon-abcdefgh", f"bayesemble-{process_tag()}-abcdefgh", "bayesemble-mine"]
    kept += [f"bayesemble-{child.pid}@{host}-mine0000", f"bayesemble-{child.pid}@{host}-backup-of-mine"]
    for name in (*kept, f"bayesemble-{child.pid}@{host}-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("thesis.txt" if "mine" in name else "epoch-000001.safetensors")).touch()
    own = Recording()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, own.folder.name}
