"""Adapters are written as peft reads them: each member loads by itself and gives the same outputs."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.training.pretrained.peft_folders import CONFIG, WEIGHTS, member_folder

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.blocks = nn.ModuleList([nn.ModuleDict({"q": nn.Linear(6, 6), "v": nn.Linear(6, 6)}) for _ in range(2)])
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block["v"](block["q"](x).tanh())
        return self.head(x)


def base():
    with seeds.scoped(0):
        return Base()


def fitted(model, method=None):
    method = method or be.DeepEnsemble(num_members=2, learning_rate=0.05)
    return be.fit(be.Task(model, be.Categorical()), method, (X, Y), epochs=4, progress=False)


def outputs(ensemble, networks):
    return [ensemble.task.forward(params, buffers, X) for params, buffers in networks.split()]


def test_names_and_settings_are_those_of_the_package(tmp_path):
    model = be.adapt(base(), "lora", targets=r"blocks\.\d\.[qv]", rank=2, alpha=4, head="head", backbone="hub/base")
    ensemble = fitted(model)
    ensemble.save_pretrained(tmp_path)
    config = json.loads((member_folder(tmp_path, 1) / CONFIG).read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4)
    assert config["base_model_name_or_path"] == "hub/base"
    assert config["modules_to_save"] == ["head"]
    assert config["target_modules"] == r"blocks\.0\.q|blocks\.0\.v|blocks\.1\.q|blocks\.1\.v"
    leaves = load_file(member_folder(tmp_path, 1) / WEIGHTS)
    layers = [f"base_model.model.blocks.{i}.{name}.lora_{f}.weight" for i in "01" for name in "qv" for f in "AB"]
    assert set(leaves) == {*layers, "base_model.model.head.weight", "base_model.model.head.bias"}
    assert torch.equal(leaves[layers[0]], ensemble.state.members.params["blocks.0.q.lora_A"][1])


@pytest.mark.parametrize("head", [None, "head"])
def test_the_package_loads_each_member_with_the_same_outputs(tmp_path, head):
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    model = be.adapt(base(), "lora", targets="q|v", rank=2, alpha=5, head=head, backbone="here")
    ensemble = fitted(model)
    ensemble.save_pretrained(tmp_path)
    for index, expected in enumerate(outputs(ensemble, ensemble.draw())):
        loaded = peft.PeftModel.from_pretrained(base(), str(member_folder(tmp_path, index))).eval()
        assert torch.allclose(loaded(X), expected, rtol=0, atol=1e-5)
        assert not torch.allclose(base()(X), expected, rtol=0, atol=1e-2)


def test_and_members_that_it_wrapped_itself(tmp_path):
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q", "v"], modules_to_save=["head"])
    ensemble = fitted(peft.get_peft_model(base(), config))
    ensemble.save_pretrained(tmp_path)
    for index, expected in enumerate(outputs(ensemble, ensemble.draw())):
        loaded = peft.PeftModel.from_pretrained(base(), str(member_folder(tmp_path, index))).eval()
        assert torch.allclose(loaded(X), expected, rtol=0, atol=1e-5)


def test_networks_that_are_drawn_are_written_too(tmp_path):
    model = be.adapt(base(), "lora", targets="q", rank=2)
    ensemble = fitted(model, be.Laplace(num_members=1, select="*lora*", structure="diag", predict="samples"))
    ensemble.save_pretrained(tmp_path, num=3)
    first = [load_file(member_folder(tmp_path, index) / WEIGHTS) for index in range(3)]
    name = "base_model.model.blocks.0.q.lora_A.weight"
    assert len({tuple(leaves[name].flatten().tolist()) for leaves in first}) == 3


@pytest.mark.parametrize(
    ("model", "words"),
    [(lambda: be.adapt(base(), "head"), "kind='head'"), (base, "a network that is not adapted")],
)
def test_what_the_package_has_no_file_for_is_refused(model, words, tmp_path):
    with pytest.raises(be.ModelError, match=words):
        fitted(model()).save_pretrained(tmp_path)


def test_statistics_of_members_have_no_place_in_its_files(tmp_path):
    given = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))
    ensemble = fitted(be.adapt(copy.deepcopy(given), "lora", targets="0", rank=2))
    with pytest.raises(be.ModelError, match=r"'1.running_mean' differs from member to member"):
        ensemble.save_pretrained(tmp_path)
