import warnings

import pytest
import torch
from torch import nn

from bayesemble import seeds
from bayesemble.errors import ModelError
from bayesemble.initialise import check_factory, fresh_module

LAYERS = {
    "linear": lambda: nn.Linear(3, 2),
    "bilinear": lambda: nn.Bilinear(3, 2, 4),
    "convolution": lambda: nn.Conv2d(3, 2, 3),
    "transposed convolution": lambda: nn.ConvTranspose2d(3, 2, 3),
    "embedding": lambda: nn.Embedding(5, 3),
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2),
    "gru": lambda: nn.GRU(3, 4),
}
NETWORKS = LAYERS | {
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "transformer layer": lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8),
    "transformer": lambda: nn.Transformer(4, 2, 1, 1, dim_feedforward=8, batch_first=True),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.PReLU(), nn.Linear(8, 2)),
    "layer norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)),
}


def made(make, seed=0):
    with seeds.scoped(seed):
        return make()


def fresh(source, seed=1):
    with seeds.scoped(seed):
        return fresh_module(source)


def values_of(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class Scaled(nn.Module):
    """A network with a parameter of its own, outside any layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


class ScaledWithReset(Scaled):
    def reset_parameters(self):
        nn.init.normal_(self.scale)
        nn.init.zeros_(self.layer.bias)


def test_a_factory_is_called_and_its_network_taken_as_it_is():
    by_hand = made(lambda: nn.Linear(3, 2), seed=1)
    assert torch.equal(values_of(fresh(lambda: nn.Linear(3, 2), seed=1)), values_of(by_hand))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_of_an_instance_is_initialised_anew(name):
    original = made(NETWORKS[name])
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.fill_(7.0)
    values = values_of(fresh(original))
    assert values.isfinite().all()
    assert (values != 7).all()
    assert (values_of(original) == 7).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_seed_decides_what_an_instance_becomes(name):
    original = made(NETWORKS[name])
    assert torch.equal(values_of(fresh(original, seed=1)), values_of(fresh(original, seed=1)))
    assert not torch.equal(values_of(fresh(original, seed=1)), values_of(fresh(original, seed=2)))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_reset_is_a_layer_made_with_the_same_seed(name):
    layer = made(LAYERS[name], seed=5)
    assert torch.equal(values_of(fresh(made(LAYERS[name]), seed=5)), values_of(layer))


def test_running_statistics_are_forgotten(generator):
    original = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    original(torch.randn(8, 3, generator=generator))
    assert original[1].num_batches_tracked == 1
    new = fresh(original)
    assert new[1].running_mean.tolist() == [0] * 4
    assert new[1].running_var.tolist() == [1] * 4
    assert new[1].num_batches_tracked == 0
    assert original[1].running_mean.any()


def test_frozen_layers_keep_their_values():
    original = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    original[0].requires_grad_(False)
    new = fresh(original)
    assert torch.equal(new[0].weight, original[0].weight)
    assert not new[0].weight.requires_grad
    assert not torch.equal(new[1].weight, original[1].weight)


def test_a_frozen_parameter_inside_a_trained_layer_keeps_its_value():
    original = made(lambda: nn.Linear(3, 2))
    original.bias.requires_grad_(False).fill_(7.0)
    new = fresh(original)
    assert new.bias.tolist() == [7, 7]
    assert not new.bias.requires_grad
    assert not torch.equal(new.weight, original.weight)


def with_statistics(norm):
    """A trained layer, and a norm that has seen a batch of sevens."""
    network = nn.Sequential(made(lambda: nn.Linear(3, 4)), norm)
    network[1](torch.full((8, 4), 7.0))
    return network


def test_statistics_of_a_norm_without_parameters_are_forgotten():
    new = fresh(with_statistics(nn.BatchNorm1d(4, affine=False)))
    assert new[1].running_mean.tolist() == [0] * 4
    assert new[1].num_batches_tracked == 0


def test_a_norm_in_which_everything_is_frozen_keeps_its_statistics():
    original = with_statistics(nn.BatchNorm1d(4).requires_grad_(False))
    new = fresh(original)
    assert new[1].running_mean.tolist() == pytest.approx([0.7] * 4)
    assert new[1].num_batches_tracked == 1
    assert torch.equal(new[1].running_var, original[1].running_var)


def test_tied_parameters_stay_tied():
    original = made(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    original[1].weight = original[0].weight
    new = fresh(original)
    assert new[0].weight is new[1].weight
    assert new[0].weight is not original[0].weight


def test_a_parameter_that_nothing_resets_is_named():
    with pytest.raises(ModelError, match=r"nothing re-initialises the parameter 'scale' of Scaled.*pass a factory"):
        fresh(made(Scaled))
    inside = made(lambda: nn.Sequential(nn.Linear(2, 2), Scaled()))
    with pytest.raises(ModelError, match=r"the parameter '1\.scale' of Sequential"):
        fresh(inside)


def test_a_parameter_that_nothing_resets_may_come_from_a_factory_or_be_frozen():
    assert fresh(Scaled).scale.tolist() == [1, 1]
    frozen = made(Scaled)
    frozen.scale.requires_grad_(False)
    assert fresh(frozen).scale.tolist() == [1, 1]


def test_a_network_may_reset_its_own_parameters_and_has_the_last_word_over_its_layers():
    original = made(ScaledWithReset)
    new = fresh(original)
    assert not torch.equal(new.scale, original.scale)
    assert new.layer.bias.tolist() == [0, 0]


def test_a_factory_must_return_a_network():
    with pytest.raises(ModelError, match=r"must return an nn\.Module, it returned NoneType"):
        fresh_module(lambda: None)


def lazy():
    with warnings.catch_warnings(action="ignore"):
        return nn.Sequential(nn.LazyLinear(2))


@pytest.mark.parametrize("source", [lazy, lazy()], ids=["factory", "instance"])
def test_a_lazy_parameter_is_named(source):
    with pytest.raises(ModelError, match=r"'0\.weight' is lazy and has no shape yet"):
        fresh(source)


def test_a_factory_that_hands_out_one_network_again_and_again_is_refused():
    network = made(lambda: nn.Linear(2, 2))
    with pytest.raises(ModelError, match="returns the same module each time, so all members would be one network"):
        check_factory(lambda: network)


def test_proper_factories_and_instances_pass():
    with seeds.scoped(0):
        check_factory(lambda: nn.Linear(2, 2))
        check_factory(nn.Linear(2, 2))
