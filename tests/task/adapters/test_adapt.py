"""What `adapt` trains, freezes and shares, and what it refuses."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.task.adapters.adapt import adaptation_of


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8)
        self.blocks = nn.ModuleList([nn.ModuleDict({"q_proj": nn.Linear(8, 8), "v_proj": nn.Linear(8, 8)})])
        self.classifier = nn.Linear(8, 2)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = x + block["v_proj"](block["q_proj"](x).relu())
        return self.classifier(x)


def trained(module):
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


LORA = {f"blocks.0.{layer}.lora_{factor}" for layer in ("q_proj", "v_proj") for factor in "AB"}
HEAD = {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("lora", {"targets": "q_proj|v_proj", "rank": 2}, LORA),
        ("lora", {"targets": r"blocks\.0\..*", "rank": 2}, LORA),
        ("lora", {"targets": "q_proj|v_proj", "head": "classifier"}, LORA | HEAD),
        ("lora", {"targets": nn.Linear, "head": "classifier"}, LORA | HEAD | {"first.lora_A", "first.lora_B"}),
        ("head", {}, HEAD),
        ("head", {"head": "norm|classifier"}, HEAD | {"norm.weight", "norm.bias"}),
        ("norm", {}, {"norm.weight", "norm.bias"}),
        (
            "bias",
            {"head": "classifier"},
            HEAD | {"first.bias", "norm.bias"} | {n.replace("lora_A", "bias") for n in LORA if n.endswith("A")},
        ),
    ],
)
def test_what_is_trained(kind, settings, expected):
    assert trained(be.adapt(Network(), kind, **settings)) == expected


def test_the_given_network_stays_as_it_is_and_its_weights_are_shared():
    given = Network()
    before = copy.deepcopy(given.state_dict())
    adapted = be.adapt(given, "lora", targets="q_proj|v_proj", head="classifier")
    assert trained(given) == set(before)
    assert list(given.state_dict()) == list(before)
    assert all(torch.equal(given.state_dict()[name], leaf) for name, leaf in before.items())
    for name, parameter in adapted.named_parameters():
        if not name.endswith(("lora_A", "lora_B")):
            assert parameter.data_ptr() == given.get_parameter(name).data_ptr()


def test_tied_weights_stay_tied():
    given = nn.ModuleDict({"in": nn.Embedding(5, 4), "body": nn.Linear(4, 4), "out": nn.Linear(4, 5, bias=False)})
    given["out"].weight = given["in"].weight
    adapted = be.adapt(given, "lora", targets="body", rank=1)
    assert adapted["out"].weight is adapted["in"].weight


def test_the_scale_is_alpha_over_rank():
    assert be.adapt(Network(), "lora", targets="q_proj", rank=4).blocks[0]["q_proj"].lora_scale == 1
    assert be.adapt(Network(), "lora", targets="q_proj", rank=4, alpha=32).blocks[0]["q_proj"].lora_scale == 8


def test_it_knows_where_the_backbone_comes_from():
    given = Network()
    assert adaptation_of(be.adapt(given, "head")).backbone is None
    assert adaptation_of(be.adapt(given, "head", backbone="models/a")).backbone == "models/a"
    given.first.name_or_path = "hub/encoder"
    assert adaptation_of(be.adapt(given, "head")).backbone == "hub/encoder"
    assert adaptation_of(given) is None


@pytest.mark.parametrize(
    ("kind", "settings", "error", "words"),
    [
        ("lota", {}, SettingError, "one of lora, head, norm, bias, not 'lota'"),
        ("lora", {}, SettingError, "lora needs targets="),
        ("lora", {"targets": "k_proj"}, SettingError, "means no nn.Linear of Network.*it has first, blocks.0.q_proj"),
        ("lora", {"targets": "classifier", "head": "classifier"}, SettingError, "outside of its head"),
        ("lora", {"targets": "("}, SettingError, "no regular expression"),
        ("lora", {"targets": 3}, SettingError, "regular expression of names or nn.Linear"),
        ("lora", {"targets": "q_proj", "rank": 0}, SettingError, "rank must be a whole number from 1"),
        ("lora", {"targets": "q_proj", "alpha": 0}, SettingError, "alpha must be above 0"),
        ("head", {"rank": 4}, SettingError, "settings of lora"),
        ("head", {"head": "output"}, SettingError, "is no module of Network; it has first, norm"),
    ],
)
def test_what_cannot_be_honoured_is_refused(kind, settings, error, words):
    with pytest.raises(error, match=words):
        be.adapt(Network(), kind, **settings)


def test_the_page_on_pretrained_networks_runs():
    page = Path(__file__).parents[3] / "docs" / "adapters.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    found: dict = {}
    exec(code.replace("epochs=20", "epochs=2"), found)
    assert found["quick"].num_members == 10
    assert found["ensemble"].predict(found["x"]).epistemic.shape == (200,)


def test_networks_that_cannot_be_adapted_are_refused():
    with pytest.raises(ModelError, match="adapted already"):
        be.adapt(be.adapt(Network(), "head"), "head")
    with pytest.raises(ModelError, match="has no norm to train"):
        be.adapt(nn.Sequential(nn.Linear(2, 2)), "norm")
    with pytest.raises(ModelError, match="needs a network"):
        be.adapt(Network, "head")
