"""What memory training takes at least, and members that are refused before any is made."""

import time

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.methods import size
from bayesemble.methods.size import check_memory, training_bytes
from helpers import norm_mlp, quick_fit, small_mlp, table

SMALL = be.Task(small_mlp, be.Categorical())  # 58 parameters


def test_parameters_gradients_and_moments_of_all_members_count():
    assert training_bytes(SMALL, be.DeepEnsemble(num_members=3)) == 4 * 3 * 58 * (1 + 1 + 2)
    assert training_bytes(SMALL, be.DeepEnsemble(num_members=3, optimizer="sgd", momentum=0)) == 4 * 3 * 58 * 2
    double = be.Task(lambda: small_mlp().double(), be.Categorical())
    assert training_bytes(double, be.DeepEnsemble(num_members=1)) == 8 * 58 * 4


def test_components_count_and_members_that_wait_have_no_moments():
    assert training_bytes(SMALL, be.EMP(components=2, select="output")) == 4 * (58 + 18) * 4
    assert training_bytes(SMALL, be.Repulsive(num_members=5, sequential=True)) == 4 * 58 * (5 + 1 + 2)


def test_buffers_are_of_every_member_and_frozen_parameters_of_all():
    task = be.Task(norm_mlp, be.Categorical())
    own = 4 * (8 + 8) + 8  # two statistics, and a count of batches
    assert training_bytes(task, be.DeepEnsemble(num_members=3)) == 3 * (4 * task.num_parameters * 4 + own)

    def frozen() -> nn.Module:
        network = small_mlp()
        network[0].requires_grad_(False)
        return network

    assert training_bytes(be.Task(frozen, be.Categorical()), be.DeepEnsemble(num_members=3)) == 4 * (3 * 18 * 4 + 40)


@pytest.mark.parametrize(("free", "fits"), [(4 * 3 * 58 * 4, True), (4 * 3 * 58 * 4 - 1, False)])
def test_the_last_byte_decides(monkeypatch, free, fits):
    monkeypatch.setattr(size, "available_memory", lambda: float(free))
    method = be.DeepEnsemble(num_members=3)
    if fits:
        check_memory(SMALL, method)
        quick_fit(SMALL, table(), method)
    else:
        with pytest.raises(be.SettingError, match=r"3 members of 58 parameters need .* train 2 members or fewer"):
            check_memory(SMALL, method)


def test_members_that_cannot_fit_are_refused_before_any_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(size, "available_memory", lambda: 1e9)
    made = []

    def wide() -> nn.Module:
        made.append(time.perf_counter())
        return nn.Sequential(nn.Linear(4, 100_000), nn.Linear(100_000, 2))

    method, task = be.DeepEnsemble(num_members=200), be.Task(wide, be.Categorical())
    with pytest.raises(be.SettingError, match=r"need at least 2\.24 GB .*offload=FOLDER and executor=be\.Loop"):
        quick_fit(task, table(), method)
    assert len(made) < 10
    monkeypatch.setattr(size, "available_memory", lambda: 100.0)
    with pytest.raises(be.SettingError, match="can be had; keep them on disk"):
        quick_fit(SMALL, table())
    on_disk = quick_fit(SMALL, table(), executor=be.Loop(), offload=tmp_path)
    assert torch.isfinite(on_disk.predict(table()[0]).probs).all()
