"""A run of an adapted network holds what was trained, and is opened with the same frozen weights or not at all."""

import copy

import pytest
import torch
from safetensors import safe_open
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.backbone import describe_backbone, with_backbone

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


@pytest.fixture
def given():
    with seeds.scoped(0):
        return nn.Sequential(
            nn.Linear(3, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )


def adapted(given, **settings):
    return be.adapt(given, "lora", targets="3", rank=2, head="5", **settings)


def fitted(given, epochs=2, **settings):
    task = be.Task(adapted(given, backbone="models/given"), be.Categorical())
    return be.fit(task, be.DeepEnsemble(num_members=3), (X, Y), epochs=epochs, progress=False, **settings)


def tensors_in(folder):
    (path,) = folder.glob("checkpoint-*/state.safetensors")
    with safe_open(path, "pt") as file:
        return set(file.keys()), path.stat().st_size


def test_files_hold_what_was_trained_alone(given, tmp_path):
    ensemble = fitted(given)
    ensemble.save(tmp_path / "adapters")
    ensemble.save(tmp_path / "whole", backbone=True)
    (few, small), (many, large) = tensors_in(tmp_path / "adapters"), tensors_in(tmp_path / "whole")
    assert {"state/buffers/0.weight", "state/buffers/1.running_mean", "state/buffers/3.weight"} == {
        name for name in many - few if not name.endswith(("bias", "1.weight", "var", "tracked"))
    }
    assert {name for name in few if "params" in name} == {name for name in many if "params" in name}
    assert large - small > 4 * 64 * 64


@pytest.mark.parametrize("how", ["network", "factory"])
def test_it_is_loaded_with_the_same_weights(given, tmp_path, how):
    ensemble = fitted(given)
    ensemble.save(tmp_path)
    model = adapted(given) if how == "network" else lambda: adapted(copy.deepcopy(given))
    loaded = be.load(tmp_path, model)
    assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)
    assert loaded.state.members.shared == ensemble.state.members.shared


def test_other_weights_are_refused_in_a_sentence(given, tmp_path):
    fitted(given).save(tmp_path)
    with torch.no_grad():
        given[0].weight[0, 0] += 1e-6
    with pytest.raises(be.CheckpointError, match="holds adapters for models/given, with other weights"):
        be.load(tmp_path, adapted(given))


def test_another_network_is_refused_by_the_leaf_it_lacks(given, tmp_path):
    fitted(given).save(tmp_path)
    with seeds.scoped(0):
        other = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2))
    with pytest.raises(be.CheckpointError, match=r"no frozen leaf '1.bias'"):
        be.load(tmp_path, be.adapt(other, "lora", targets="0", rank=2, head="2"))


def test_a_saved_backbone_needs_none(given, tmp_path):
    ensemble = fitted(given)
    ensemble.save(tmp_path, backbone=True)
    expected = ensemble.predict(X).probs
    with seeds.scoped(5):
        other = nn.Sequential(*(copy.deepcopy(layer) for layer in given))
        other[3].reset_parameters()
    assert torch.equal(be.load(tmp_path, adapted(other)).predict(X).probs, expected)


def test_a_run_is_resumed_to_the_same_bits_with_its_best_state(given, tmp_path):
    keep = {"validation": (X[:6], Y[:6]), "keep_best": True}
    whole = fitted(given, epochs=4, **keep)
    fitted(given, epochs=2, checkpoint=tmp_path, **keep)
    again = fitted(given, epochs=4, checkpoint=tmp_path, resume=True, **keep)
    for name, leaf in whole.state.members.params.items():
        assert torch.equal(leaf, again.state.members.params[name])
    assert torch.equal(whole.predict(X).probs, again.predict(X).probs)


def test_a_run_is_not_resumed_on_other_weights(given, tmp_path):
    fitted(given, epochs=1, checkpoint=tmp_path)
    given[0].weight.data.mul_(2)
    with pytest.raises(be.CheckpointError, match="are not those that the adapters were trained on"):
        fitted(given, epochs=2, checkpoint=tmp_path, resume=True)


def test_networks_that_are_not_adapted_are_saved_whole(given, tmp_path):
    given[0].requires_grad_(False)
    task = be.Task(given, be.Categorical(), start="fresh")
    ensemble = be.fit(task, be.DeepEnsemble(num_members=2), (X, Y), epochs=1, progress=False)
    assert describe_backbone(ensemble.task, ensemble.state) is None
    ensemble.save(tmp_path)
    assert "state/buffers/0.weight" in tensors_in(tmp_path)[0]
    found = checkpoints.read(tmp_path)
    assert with_backbone(found, ensemble.task, "here") is found


def test_the_hash_is_that_of_the_weights_now(given):
    ensemble = fitted(given)
    before = describe_backbone(ensemble.task, ensemble.state)
    assert before == describe_backbone(ensemble.task, ensemble.state)
    assert before["name"] == "models/given"
    with torch.no_grad():
        ensemble.state.members.buffers["0.weight"].add_(1)
    assert describe_backbone(ensemble.task, ensemble.state)["sha256"] != before["sha256"]
