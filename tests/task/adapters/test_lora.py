"""Low-rank adapters: y = W x + b + scale B (A x), which at the start is what the layer gave before."""

import copy

import pytest
import torch
from torch import nn

from bayesemble.core.errors import ModelError
from bayesemble.task.adapters.lora import LoraLinear, add_lora


def adapted(layer, rank=3, alpha=6.0):
    own = copy.deepcopy(layer)
    own.weight.requires_grad_(False)
    add_lora("layer", own, rank, alpha)
    return own


def test_it_begins_with_what_the_layer_gave_to_the_bit(generator):
    plain, x = nn.Linear(5, 4), torch.randn(7, 5, generator=generator)
    assert torch.equal(adapted(plain)(x), plain(x))


def test_it_gives_what_the_layer_with_the_whole_weight_gives(generator):
    plain, x = nn.Linear(5, 4).double(), torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    layer = adapted(plain)
    nn.init.normal_(layer.lora_B)
    whole = plain.weight + 6.0 / 3 * layer.lora_B @ layer.lora_A
    assert torch.allclose(layer(x), nn.functional.linear(x, whole, plain.bias), atol=1e-12)
    assert torch.allclose(layer.weight, whole, atol=1e-12)


def test_the_factors_alone_have_gradients():
    layer = adapted(nn.Linear(5, 4))
    layer(torch.ones(1, 5)).sum().backward()
    assert layer.lora_B.grad is not None
    assert layer.lora_A.grad is not None
    assert layer._parameters["weight"].grad is None


def test_attention_that_takes_the_weight_itself_meets_the_adapter(generator):
    """nn.MultiheadAttention never calls its output layer: it hands the weight on."""
    attention, x = nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(2, 3, 4, generator=generator)
    before = attention(x, x, x)[0]
    add_lora("out_proj", attention.out_proj, 2, 2.0)
    assert torch.equal(attention(x, x, x)[0], before)
    nn.init.normal_(attention.out_proj.lora_B)
    assert not torch.allclose(attention(x, x, x)[0], before)


def test_the_fast_path_of_a_transformer_layer_meets_the_adapter_too(generator):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 3, 4, generator=generator)
    add_lora("linear1", layer.linear1, 2, 2.0)
    nn.init.normal_(layer.linear1.lora_B)
    with torch.no_grad():
        fast = layer(x)
    assert torch.allclose(fast, layer(x.clone().requires_grad_()), atol=1e-5)


def test_it_is_still_a_dense_layer_and_can_be_copied():
    layer = copy.deepcopy(adapted(nn.Linear(5, 4)))
    assert isinstance(layer, nn.Linear)
    assert isinstance(layer, LoraLinear)
    assert list(layer.state_dict()) == ["weight", "bias", "lora_A", "lora_B"]


def test_a_layer_of_another_kind_is_refused():
    with pytest.raises(ModelError, match=r"needs an nn.Linear, the layer 'body' is a Conv1d"):
        add_lora("body", nn.Conv1d(2, 2, 1), 2, 2.0)
    with pytest.raises(ModelError, match="has an adapter already"):
        add_lora("body", adapted(nn.Linear(2, 2)), 2, 2.0)
    patched = nn.Linear(2, 2)
    patched.forward = torch.tanh  # would hide the adapter
    with pytest.raises(ModelError, match="is a Linear with another forward"):
        add_lora("body", patched, 2, 2.0)
