"""What becomes of members that are no longer finite; see contract/test_dropped_members.py for every method."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.training.batches import as_source
from bayesemble.training.run_folders import checkpoint
from helpers import norm_mlp, quick_fit, small_mlp, table

TASK = be.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), be.HeteroscedasticGaussian())


def data(of_the_second: float = 1.0) -> be.PerMember:
    """Data of three members, of which the second may have absurd targets in one of its rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 32, 4, generator=generator)
    y = x.sum(-1)
    y[1, 5] *= of_the_second
    return be.PerMember(x, y)


def dropped(**options) -> be.Ensemble:
    with pytest.warns(UserWarning, match="member 1 is no longer finite") as seen:
        ensemble = quick_fit(TASK, data(1e30), epochs=4, on_nonfinite="drop", **options)
    assert [Path(warning.filename).name for warning in seen] == ["helpers.py"], "where fit was called"
    return ensemble


@pytest.mark.parametrize("executor", ["loop", "vmap", be.Vmap(chunk=2)], ids=str)
def test_members_with_data_of_their_own_go_on_as_if_nothing_had_happened(executor):
    plain, found = quick_fit(TASK, data(), epochs=4, executor=executor), dropped(executor=executor)
    for place, leaf in found.state._of_members().items():
        assert torch.equal(leaf[[0, 2]], plain.state._of_members()[place][[0, 2]]), place
    assert found.state.members.weights.tolist() == [0.5, 0.0, 0.5]
    start = TASK.bind(32, table()[0]).new_members(3, seed=0)
    assert all(torch.equal(leaf[1], start.params[name][1]) for name, leaf in found.state.members.params.items())


def test_it_is_told_where_and_the_validation_loss_is_that_of_the_others():
    found = dropped(validation=data(1e30))
    order = torch.cat([batch.rows for batch in as_source(data(), torch.float32).epoch(0, 16, seed=0)])
    step = 1 + int((order == 5).nonzero()) // 16  # the absurd row is in that batch
    assert [row.get("dropped") for row in found.history] == [[{"member": 1, "epoch": 1, "step": step}], *[None] * 3]
    assert all(math.isfinite(row["validation_loss"]) for row in found.history)
    html = found._repr_html_()
    assert "nan" not in html


def test_it_survives_saving_loading_and_resuming(tmp_path):
    expected = dropped()
    with pytest.warns(UserWarning, match="member 1"):
        quick_fit(TASK, data(1e30), epochs=2, on_nonfinite="drop", checkpoint=tmp_path)
    with pytest.raises(be.CheckpointError, match="left member 1 behind; resume it with on_nonfinite='drop'"):
        quick_fit(TASK, data(1e30), epochs=4, checkpoint=tmp_path, resume=True)
    resumed = quick_fit(TASK, data(1e30), epochs=4, on_nonfinite="drop", checkpoint=tmp_path, resume=True)
    for place, leaf in resumed.state._of_members().items():
        assert torch.equal(leaf, expected.state._of_members()[place]), place
    assert [row.get("dropped") for row in resumed.history] == [row.get("dropped") for row in expected.history]
    assert checkpoint.read(tmp_path).run["progress"]["dropped"] == expected.history[0]["dropped"]
    loaded, x = be.load(tmp_path, TASK.model), table()[0]
    assert torch.equal(loaded.predict(x).mean, expected.predict(x).mean)
    assert torch.equal(expected.keep([0, 2]).predict(x).mean, expected.predict(x).mean)


def test_members_on_disk_can_be_left_behind(tmp_path):
    offloaded, plain = dropped(executor=be.Loop(), offload=tmp_path / "disk"), dropped()
    for place, leaf in offloaded.state._of_members().items():
        assert torch.equal(leaf, plain.state._of_members()[place]), place


def test_a_member_that_starts_beyond_the_real_numbers_is_zero_and_weighs_nothing():
    starts = be.Task(small_mlp, be.Categorical()).bind(48, table()[0]).new_members(3, seed=0)
    second_largest = starts.params["0.weight"][:, 0, 0].median()

    def make() -> nn.Module:
        network = small_mlp()
        if network[0].weight[0, 0] > second_largest:
            nn.init.constant_(network[0].bias, math.nan)
        return network

    with pytest.warns(UserWarning, match="no longer finite"):
        found = quick_fit(be.Task(make, be.Categorical()), table(), on_nonfinite="drop")
    assert sorted(found.state.members.weights.tolist()) == [0, 0.5, 0.5]
    assert found.state.finite_members().all()
    assert found.predict(table()[0]).probs.isfinite().all()


def test_a_gradient_that_is_no_number_is_noticed_though_the_loss_is_finite():
    class Steep(nn.Module):
        """The gradient of 0 * sqrt(0) is not a number, and only some starts are there."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x):
            inside = (self.inner.weight[0, 0] < 0).to(x.dtype)
            return self.inner(x) + 0 * (x[:, :1] * 0 + 1 - inside).abs().sqrt() * self.inner.weight.sum()

    task = be.Task(Steep, be.Categorical())
    starts = task.bind(48, table()[0]).new_members(5, seed=0).params["inner.weight"][:, 0, 0] < 0
    method = be.DeepEnsemble(num_members=5)
    found = quick_fit(task, table(), method, epochs=1, batch_size=None, on_nonfinite="drop")
    assert found.state.finite_members().all()
    assert ((found.state.members.weights == 0) <= starts).all()


@pytest.mark.filterwarnings("ignore:targets are about")
def test_if_all_are_lost_that_is_an_error():
    x, y = table()
    with pytest.raises(be.TrainingError, match="no member is finite any more in epoch 1"):
        quick_fit(TASK, (x, 1e30 * y), on_nonfinite="drop")


def test_the_checkpoint_is_called_intact_where_there_is_one(tmp_path):
    blows_up = {"on_nonfinite": "raise", "epochs": 4, "data": data(1e30)}
    with pytest.raises(be.TrainingError, match=r"loss of member 1 became .*, or check the scale of the inputs$"):
        quick_fit(TASK, **blows_up)
    with pytest.raises(be.TrainingError, match=r"the scale of the inputs$"):
        quick_fit(TASK, **blows_up, checkpoint=tmp_path / "never")
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=1e-3), prior=None)
    method = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=0.03)
    x = table()[0]
    with pytest.raises(be.TrainingError, match=r"The last checkpoint is intact: resume=True .*change=\("):
        quick_fit(task, (x, x.sum(1)), method, epochs=40, checkpoint=tmp_path / "run")


@pytest.mark.filterwarnings("ignore:the loss of member")
def test_after_a_divergence_the_learning_rate_can_be_lowered(tmp_path):
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=0.1), prior=None)
    x = table()[0]
    options = {"data": (x, x.sum(1)), "epochs": 60, "checkpoint": tmp_path}
    with pytest.raises(be.TrainingError):
        quick_fit(task, method=be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=0.05), **options)
    done = checkpoint.read(tmp_path).run["progress"]["epoch"]
    assert done > 1
    lower = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=1e-3)
    with pytest.raises(be.CheckpointError, match="made with method"):
        quick_fit(task, method=lower, resume=True, **options)
    with pytest.raises(be.CheckpointError, match="made with method"):
        quick_fit(task, method=lower, resume=True, change=("clip",), **options)
    fitted = quick_fit(task, method=lower, resume=True, change=("learning_rate", "clip"), **options)
    assert len(fitted.history) == 60
    assert fitted.history[-1]["loss"][0] < fitted.history[done - 1]["loss"][0]
    run = checkpoint.read(tmp_path).run
    assert run["progress"]["changed"] == [{"epoch": done, "setting": "learning_rate", "from": 0.05, "to": 1e-3}]
    assert run["method"]["learning_rate"] == 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"change": ("clip",)}, "pass resume=True with it"),
        ({"change": ("num_members",), "resume": True, "checkpoint": "run"}, "'num_members' cannot change within a run"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite is 'raise' or 'drop', not 'ignore'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options, message):
    with pytest.raises(be.SettingError, match=re.escape(message)):
        quick_fit(TASK, data(), **options)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_last_row_alone_of_a_loader_is_no_batch_for_batch_norm(executor):
    loader = DataLoader(TensorDataset(*table(33)), batch_size=16)
    with pytest.raises(be.DataError, match=r"single row, which batch norm cannot be trained on .*drop_last=True"):
        quick_fit(be.Task(norm_mlp, be.Categorical()), loader, batch_size=None, executor=executor)
    loader = DataLoader(TensorDataset(*table(33)), batch_size=16, drop_last=True)
    quick_fit(be.Task(norm_mlp, be.Categorical()), loader, batch_size=None, executor=executor)


def test_a_loss_that_only_grows_is_warned_of():
    x, y = table()
    method = be.DeepEnsemble(num_members=2, learning_rate=1e3)
    with pytest.warns(UserWarning, match=r"loss of member \d went up in training, from 0.* at the first step to"):
        quick_fit(be.Task(small_mlp, be.Categorical(), prior=None), (x, (y + torch.arange(48)) % 2), method, epochs=8)
