"""A network with adapters of the package peft is taken as it is: members draw their own as that package does."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.task.adapters.peft_models import backbone_name, given_leaves, is_peft
from bayesemble.task.adapters.starts import fresh_leaves, is_adapted


class Config:
    peft_type = "LORA"
    base_model_name_or_path = "hub/base"

    def __init__(self, way):
        self.init_lora_weights = way


class Layer(nn.Module):
    """Made as peft makes a layer, which need not be there for these tests."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(3, 4).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 4, bias=False)})
        self.reset_lora_parameters("default", True)

    def reset_lora_parameters(self, name, way):
        (nn.init.normal_ if way == "gaussian" else nn.init.ones_)(self.lora_A[name].weight)
        nn.init.zeros_(self.lora_B[name].weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Wrapped(nn.Module):
    def __init__(self, way="gaussian"):
        super().__init__()
        self.layer, self.head = Layer(), nn.Linear(4, 2)
        self.peft_config = {"default": Config(way)}

    def forward(self, x):
        return self.head(self.layer(x))


def test_it_is_known_by_the_way_it_is_made():
    model = Wrapped()
    assert is_peft(model)
    assert is_adapted(model)
    assert not is_peft(nn.Linear(2, 2))
    assert backbone_name(model) == "hub/base"
    assert given_leaves(model) == {"head.weight", "head.bias"}
    assert fresh_leaves(model) == {"layer.lora_A.default.weight", "layer.lora_B.default.weight"}


def test_members_begin_as_the_package_begins_and_with_all_else_as_given():
    model = Wrapped()
    members = be.Task(model, be.Categorical()).new_members(3, 0)
    first = members.params["layer.lora_A.default.weight"]
    assert not torch.equal(first[0], first[1])
    assert first.ne(1).all()
    assert members.params["layer.lora_B.default.weight"].eq(0).all()
    assert all(torch.equal(head, model.head.weight) for head in members.params["head.weight"])
    assert members.buffers["layer.base_layer.weight"].data_ptr() == model.layer.base_layer.weight.data_ptr()
    assert model.layer.lora_A["default"].weight.eq(1).all()


def test_a_second_factor_that_was_trained_is_zero_again_if_fresh_ones_are_asked_for():
    model = Wrapped()
    nn.init.ones_(model.layer.lora_B["default"].weight)
    fresh = be.Task(model, be.Categorical(), start="fresh").new_members(2, 0)
    assert fresh.params["layer.lora_B.default.weight"].eq(0).all()
    given = be.Task(model, be.Categorical(), start="given").new_members(2, 0)
    assert given.params["layer.lora_B.default.weight"].eq(1).all()


def test_a_start_that_depends_on_the_backbone_is_refused():
    with pytest.raises(be.ModelError, match="init_lora_weights='pissa', which cannot be drawn anew"):
        be.Task(Wrapped("pissa"), be.Categorical()).new_members(2, 0)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.q_proj(x).relu())


@pytest.mark.parametrize("way", [True, "gaussian"])
def test_the_package_itself(way, generator):
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    base, x = Base(), torch.randn(20, 3, generator=generator)
    with torch.no_grad():
        expected = base(x)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["head"], init_lora_weights=way)
    model = peft.get_peft_model(base, config)
    task = be.Task(model, be.Categorical())
    members = task.new_members(3, 0)
    (name,) = [name for name in members.params if "lora_A" in name]
    assert not torch.equal(members.params[name][0], members.params[name][1])
    for params, buffers in members.split():
        assert torch.equal(task.forward(params, buffers, x), expected)
    ensemble = be.fit(task, be.Repulsive(num_members=3), (x, torch.arange(20) % 2), epochs=2, progress=False)
    assert ensemble.evaluate((x, torch.arange(20) % 2))["nll"] < 1
