"""A run is opened with the network that it was saved with."""

import json
import math
from functools import partial

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.training.run_folders.probe import Probe, _difference, describe_network
from helpers import norm_mlp, quick_fit, table

X, Y = table()


def make(activation=nn.ReLU, dtype=torch.float32):
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 2)).to(dtype)


class Words(nn.Module):
    """Looks words up, and masks some of them."""

    def __init__(self, activation=torch.relu):
        super().__init__()
        self.words, self.out, self.activation = nn.Embedding(5, 4), nn.Linear(4, 2), activation

    def forward(self, words, mask):
        found = self.activation(self.words(words)) * mask[..., None]
        return self.out(found.sum(1))


class Noisy(nn.Linear):
    """Random in prediction too."""

    def forward(self, x):
        return super().forward(x) + torch.randn(len(x), 2)


class AsManyRows(nn.Linear):
    """Runs on an even number of rows but on no two."""

    def forward(self, x):
        assert len(x) > 2
        return super().forward(x)


def saved(network, data=(X, Y), method=None, **options):
    return quick_fit(be.Task(network, be.Categorical()), data, method, **options)


WORDS = ({"words": (X > 0).long() * 4, "mask": X > -1}, Y)


@pytest.mark.parametrize("way", ["save", "checkpoint", "best", "resume"])
def test_another_activation_is_refused(tmp_path, way):
    options = {} if way == "save" else {"checkpoint": tmp_path}
    options |= {"validation": table(seed=1), "keep_best": True} if way == "best" else {}
    fitted = saved(make, epochs=3, **options)
    if way == "save":
        fitted.save(tmp_path)
    words = r"computes something else .* differ by .*was an activation or a layer without weights changed"
    for other in (partial(make, activation) for activation in (nn.Tanh, nn.LeakyReLU, nn.Identity)):
        with pytest.raises(be.CheckpointError, match=words):
            saved(other, epochs=4, resume=True, **options) if way == "resume" else be.load(tmp_path, other)
    assert torch.equal(be.load(tmp_path, make).predict(X).probs, fitted.predict(X).probs)


@pytest.mark.parametrize(
    ("network", "other", "data"),
    [
        (Words, partial(Words, torch.tanh), WORDS),
        (Words, partial(Words, torch.tanh), (tuple(WORDS[0].values()), Y)),
        (partial(make, nn.ReLU, torch.bfloat16), partial(make, nn.Tanh, torch.bfloat16), (X, Y)),
        ([make, norm_mlp], [partial(make, nn.Tanh), norm_mlp], (X, Y)),
        ([norm_mlp, make], [norm_mlp, partial(make, nn.Tanh)], (X, Y)),
    ],
    ids=["dict of whole numbers and truths", "tuple", "bf16", "first architecture", "second architecture"],
)
def test_networks_of_all_kinds(tmp_path, network, other, data):
    saved(network, data).save(tmp_path)
    with pytest.raises(be.CheckpointError, match="computes something else"):
        be.load(tmp_path, other)
    loaded = be.load(tmp_path, network)
    loaded.save(tmp_path / "again")  # a loaded ensemble has no rows, but knows how they look
    with pytest.raises(be.CheckpointError, match="computes something else"):
        be.load(tmp_path / "again", other)
    loaded.keep([1, 2]).save(tmp_path / "fewer")
    be.load(tmp_path / "fewer", network)


@pytest.mark.parametrize("network", [lambda: Noisy(4, 2), lambda: AsManyRows(4, 2)], ids=["random", "raises"])
def test_a_network_of_which_nothing_can_be_told_is_opened_as_it_is(tmp_path, network):
    fitted = saved(network)
    assert fitted.describe()["network"] is None
    fitted.save(tmp_path)
    be.load(tmp_path, network).save(tmp_path)


def test_one_that_ran_and_has_come_to_raise_is_refused_unless_it_may_lack_its_device(tmp_path):
    fitted = saved(lambda: nn.Linear(4, 2))
    fitted.save(tmp_path)
    with pytest.raises(be.CheckpointError, match=r"cannot run any more on rows like those of .* \(AssertionError"):
        be.load(tmp_path, lambda: AsManyRows(4, 2))
    other, probe = saved(lambda: AsManyRows(4, 2)), fitted.describe()["network"] | {"device": "cuda"}
    Probe.from_json(probe).check(other.task, other.state.members, "the run")


def test_dropout_is_off(tmp_path):
    def dropping():
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))

    fitted = saved(dropping, method=be.MCDropout())
    assert fitted.describe()["network"] is not None
    fitted.save(tmp_path)
    be.load(tmp_path, dropping)


def test_no_row_of_the_data_stands_in_it():
    found = [saved(make).describe()["network"]["inputs"], saved(Words, WORDS).describe()["network"]["inputs"]]
    assert found == [
        [{"name": None, "type": "float32", "shape": [4], "largest": None}],
        [
            {"name": "words", "type": "int64", "shape": [4], "largest": 4},
            {"name": "mask", "type": "bool", "shape": [4], "largest": 1},
        ],
    ]


def test_outputs_that_are_not_finite_are_equal_to_such_alone():
    fitted = saved(lambda: nn.Linear(4, 2))
    fitted.state.members.params["bias"][0, 1] = torch.inf
    probe = Probe.from_json(json.loads(json.dumps(fitted.describe()["network"])))
    probe.check(fitted.task, fitted.state.members, "the run")
    assert probe.outputs.isnan().tolist() == [False, True, False, True]
    fitted.state.members.params["bias"][0, 1] = 0.0
    with pytest.raises(be.CheckpointError, match="differ by inf"):
        probe.check(fitted.task, fitted.state.members, "the run")


def test_the_difference_is_a_share_of_the_largest_output():
    before, here = torch.tensor([0.5, -4.0, torch.nan]).double(), torch.tensor([0.5, -3.0, torch.nan]).double()
    assert _difference(before, here) == _difference(here, before) == 0.25
    assert _difference(before, before) == _difference(0 * here, 0 * here) == 0
    assert _difference(before, here[:2]) == math.inf


def test_of_many_outputs_some_are_kept_from_the_first_to_the_last():
    fitted = quick_fit(be.Task(lambda: nn.Linear(4, 500), be.Categorical()), (X, Y), epochs=1)
    found = describe_network(fitted.task, fitted.state.members)["outputs"]
    rows = Probe.from_json(fitted.describe()["network"]).rows
    params, buffers = fitted.state.members.split()[0]
    outputs = fitted.task.forward(params, buffers, rows).flatten()
    assert len(found) == 64
    assert (found[0], found[-1]) == (float(outputs[0]), float(outputs[-1]))


def test_rounding_of_another_machine_is_no_other_network():
    fitted = saved(make)
    network = fitted.describe()["network"]
    for factor, fits in ((1 + 1e-5, True), (1 + 5e-3, False)):
        probe = Probe.from_json(network | {"outputs": [factor * value for value in network["outputs"]]})
        if fits:
            probe.check(fitted.task, fitted.state.members, "the run")
        else:
            with pytest.raises(be.CheckpointError):
                probe.check(fitted.task, fitted.state.members, "the run")
    on_gpu = {"device": "cuda", "outputs": [(1 + 5e-3) * value for value in network["outputs"]]}
    Probe.from_json(network | on_gpu).check(fitted.task, fitted.state.members, "the run")


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": None},
        {"inputs": [{}]},
        {"inputs": [{"name": None, "type": "load", "shape": [4], "largest": None}]},
        {"inputs": [{"name": None, "type": "float32", "shape": [10**9, 10**9], "largest": None}]},
        {"inputs": [{"name": None, "type": "float32", "shape": [-4], "largest": None}]},
        {"inputs": [{"name": None, "type": "int64", "shape": [4], "largest": 10**30}]},
        {"outputs": ["x"]},
        {"outputs": 3},
    ],
)
def test_damage_is_refused(change):
    network = saved(make).describe()["network"]
    with pytest.raises((ValueError, TypeError, KeyError)):
        Probe.from_json(network | change)
