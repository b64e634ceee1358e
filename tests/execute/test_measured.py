"""What was measured is used again for the same fit on the same machine, and is measured again when in doubt."""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch

import bayesemble as be
from bayesemble.core.files import write_json
from bayesemble.core.types import Batch
from bayesemble.execute import choose as choose_module
from bayesemble.execute import measured
from bayesemble.execute.choose import Choice, choose
from bayesemble.methods.deep_ensemble import DeepEnsemble
from helpers import norm_mlp, quick_fit, small_mlp, table


@pytest.fixture
def races(monkeypatch) -> list[int]:
    """Counts how often something is measured; vmap wins."""
    held: list[int] = []

    def fastest(task, state, *_):
        held.append(state.members.num_members)
        return Choice(be.Vmap(chunk=2), "measured: vmap by 2")

    monkeypatch.setattr(choose_module, "_fastest", fastest)
    return held


def fitted(members: int = 3, model=small_mlp, **options) -> be.Ensemble:
    task = be.Task(model, be.Categorical())
    return quick_fit(task, table(), DeepEnsemble(num_members=members), executor="measure", epochs=1, **options)


def test_the_same_fit_is_measured_once_until_it_is_forgotten(races):
    first, second = fitted(), fitted()
    assert races == [3]
    assert second.executor == first.executor == be.Vmap(chunk=2)
    assert first.execution == "measured: vmap by 2"
    assert second.execution == "measured: vmap by 2, in an earlier run"
    be.forget_measured()
    be.forget_measured()
    fitted()
    assert races == [3, 3]


def test_other_members_batches_networks_and_versions_are_measured_apart(races, monkeypatch):
    fitted()
    fitted(members=4)
    fitted(batch_size=12)
    fitted(model=norm_mlp)
    monkeypatch.setattr(torch, "__version__", "2.99")
    fitted()
    assert len(races) == 5


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "unknown"])
def test_a_damaged_file_is_measured_again_with_a_warning(races, damage):
    fitted()
    path = measured.path()
    content = path.read_text()
    if damage == "unknown":
        (digest,) = json.loads(content)["executors"]
        write_json(path, {"executors": {digest: {"executor": {"name": "Rocket"}, "reason": ""}}})
    else:
        path.write_text({"cut": content[:50], "flipped": content.replace("2", "3"), "other": "[1]"}[damage])
    with pytest.warns(UserWarning, match="measured again"):
        fitted()
    assert races == [3, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted()
    assert races == [3, 3]


def test_vmap_is_not_taken_on_trust(races, monkeypatch):
    fitted()
    monkeypatch.setattr(choose_module, "vmap_obstacle", lambda *_: "vmap cannot run it")
    fitted()
    assert races == [3, 3]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_takes_no_files_is_no_obstacle(races, monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("BAYESEMBLE_MEASURED", str(tmp_path / "inside" / "measured.json"))
    fitted()
    fitted()
    assert races == [3, 3]


def test_the_file_lies_in_the_cache_of_the_user(monkeypatch):
    monkeypatch.delenv("BAYESEMBLE_MEASURED")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert measured.path() == Path("/somewhere/bayesemble/measured.json")


def test_only_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(measured, "_MOST", 3)
    for number in range(5):
        measured.remember(str(number), be.Loop(threads=1), "measured")
    assert [measured.recall(str(number)) is None for number in range(5)] == [True, True, False, False, False]
    assert measured.recall("4") == (be.Loop(threads=1), "measured")


def test_who_asks_without_a_method_leaves_no_trace(races):
    x, y = table(16)
    task = be.Task(small_mlp, be.Categorical()).bind(16, x)
    state = DeepEnsemble(num_members=3).init(task, 0)
    choose("measure", task, state, Batch(x, y), lambda _: lambda: None)
    assert not measured.path().exists()
