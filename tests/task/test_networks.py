import warnings

import pytest
import torch
from torch import nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError
from bayesemble.task.networks import (
    Alternatives,
    check_another,
    check_trainable,
    checked_source,
    dropout_layers,
    new_module,
)

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
        return new_module(source)


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
        new_module(lambda: None)


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
        check_another(new_module(lambda: network), new_module(lambda: network))


def test_proper_factories_and_instances_pass():
    for source in (lambda: nn.Linear(2, 2), made(lambda: nn.Linear(2, 2))):
        check_another(fresh(source), fresh(source))


# --- several architectures ---


def narrow():
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))


def wide():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def alternatives(member, sources=(narrow, wide), seed=1):
    with seeds.scoped(seed):
        return new_module(sources, member=member)


@pytest.mark.parametrize("member", range(5))
def test_members_take_the_architectures_in_turn_and_each_is_what_its_seed_makes_of_it_alone(member, generator):
    module, place = alternatives(member), member % 2
    alone = made((narrow, wide)[place], seed=1)
    assert isinstance(module, Alternatives)
    assert module.architecture.item() == place
    assert torch.equal(values_of(module[place]), values_of(alone))
    x = torch.randn(4, 3, generator=generator)
    assert torch.equal(module.eval()(x), alone.eval()(x))


def test_parameters_that_a_member_does_not_use_are_zero_and_its_gradients_there_too(generator):
    module = alternatives(0)
    assert not values_of(module[1]).any()
    module(torch.randn(4, 3, generator=generator)).sum().backward()
    assert all(parameter.grad is None for parameter in module[1].parameters())
    assert values_of(module[0]).any()


def test_statistics_and_frozen_parameters_of_unused_architectures_are_left_alone():
    def frozen():
        return nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.BatchNorm1d(3), nn.Linear(3, 2))

    module = alternatives(0, (narrow, frozen))
    assert module[1][0].weight.all()
    assert module[1][1].running_var.tolist() == [1] * 3
    assert not module[1][2].weight.any()


def test_a_parameter_that_two_architectures_share_is_kept():
    class Shared(nn.Module):
        def __init__(self, common):
            super().__init__()
            self.common, self.own = common, nn.Linear(2, 2)

    common = made(lambda: nn.Linear(2, 2))
    module = alternatives(1, (lambda: Shared(common), lambda: Shared(common)))
    assert common.weight.all()
    assert not module[0].own.weight.any()
    assert module[1].own.weight.all()


def test_instances_may_be_among_the_architectures():
    original = made(wide)
    module = alternatives(1, (narrow, original), seed=5)
    assert torch.equal(values_of(module[1]), values_of(fresh(original, seed=5)))
    assert module[1] is not original


def test_a_list_of_one_is_that_one():
    assert checked_source([narrow]) is narrow
    assert torch.equal(values_of(fresh([narrow])), values_of(fresh(narrow)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the list of models is empty"),
        ("mlp", "a list of these for several architectures, got str$"),
        ([narrow, 3], "got int in the list"),
        ([narrow, [wide]], "got list in the list"),
    ],
)
def test_what_is_no_source_of_networks_is_refused(source, message):
    with pytest.raises(ModelError, match=message):
        checked_source(source)


def test_a_factory_in_a_list_that_hands_out_one_network_is_refused():
    network = made(narrow)
    with seeds.scoped(0), pytest.raises(ModelError, match="returns the same module each time"):
        check_another(new_module((wide, lambda: network)), new_module((wide, lambda: network)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Flatten, "Flatten has no trainable parameters"),
        (lambda: nn.Linear(3, 2).double(), r"the same number type, got torch\.float32 and torch\.float64"),
    ],
)
def test_architectures_that_cannot_be_trained_together_are_refused(other, message):
    with pytest.raises(ModelError, match=message):
        check_trainable(alternatives(0, (narrow, other)))


@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(1, 3))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_traced_networks_are_refused(make):
    with seeds.scoped(0):
        for source in (lambda: make(nn.Linear(3, 2)), make(nn.Linear(3, 2))):
            with pytest.raises(ModelError, match=r"scripted or traced.*pass the eager module"):
                new_module(source)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_network_that_cannot_be_copied_is_refused():
    with seeds.scoped(0), pytest.raises(ModelError, match=r"Linear cannot be copied .*pass a factory"):
        new_module(nn.utils.weight_norm(nn.Linear(3, 2)))


def test_a_leaf_of_zeros_stays_zero_and_others_are_drawn_anew():
    """The second factor of a low-rank adapter begins with zeros, whatever its layer would draw."""
    with seeds.scoped(0):
        network = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
        nn.init.zeros_(network[1].weight)
        nn.init.zeros_(network[0].weight[0])
        again = new_module(network)
    assert not again[1].weight.any()
    assert again[0].weight.all(), "a leaf with some zeros is no leaf of zeros"


def test_layers_that_drop_nothing_are_no_dropout():
    network = nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.1), nn.Dropout2d(0.2), nn.ReLU())
    assert dropout_layers(network) == [network[1], network[2]]


@pytest.mark.parametrize("given_as", [lambda one: one, lambda one: lambda: one], ids=["instance", "factory"])
def test_a_part_that_is_wrapped_for_several_processes_is_named(given_as):
    class FSDPModule(nn.ReLU):
        """As `fully_shard` makes one, by its name."""

    with pytest.raises(ModelError, match="1 is wrapped by FSDPModule"):
        new_module(given_as(nn.Sequential(nn.Tanh(), FSDPModule())))
