"""Which leaves of a given network members keep, which they draw anew, and what they begin with."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.task.starts.weights import as_patterns, begun, reinitialised, renewed, shake
from helpers import norm_mlp, quick_fit, small_mlp, table


def given(make=norm_mlp) -> nn.Module:
    """A network none of whose leaves is what a fresh one has."""
    with scoped(7), torch.no_grad():
        network = make()
        for leaf in [*network.parameters(), *network.buffers()]:
            if leaf.is_floating_point():
                leaf.uniform_(2, 3)
    return network


def test_leaves_that_are_named_are_drawn_anew_and_all_others_stay():
    network = given()
    with scoped(0):
        one, other = renewed(network, ("3.*",)), renewed(network, ("3.*",))
    for name, leaf in network.state_dict().items():
        if name.startswith("3."):
            assert not torch.equal(one.state_dict()[name], other.state_dict()[name])
            assert one.state_dict()[name].abs().max() < 1, "as its layer draws it"
        else:
            assert torch.equal(one.state_dict()[name], leaf)


def test_statistics_go_with_the_layer_that_is_named():
    network = given()
    with scoped(0):
        fresh = renewed(network, ("1.*",))
    assert torch.equal(fresh[1].running_mean, torch.zeros(8))
    assert torch.equal(fresh[0].weight, network[0].weight)


def test_one_leaf_of_a_layer_may_be_drawn_anew():
    network = given(small_mlp)
    with scoped(0):
        fresh = renewed(network, ("2.bias",))
    assert torch.equal(fresh[2].weight, network[2].weight)
    assert not torch.equal(fresh[2].bias, network[2].bias)


class Bare(nn.Module):
    """A parameter that nothing re-initialises, beside a layer."""

    def __init__(self):
        super().__init__()
        self.own, self.head = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x * self.own)


def test_what_nothing_resets_matters_only_where_it_is_named():
    with scoped(0):
        network = Bare()
        assert torch.equal(renewed(network, ("head.*",)).own, network.own)
        with pytest.raises(ModelError, match="nothing re-initialises the parameter 'own'"):
            reinitialised(network)


def test_frozen_leaves_are_never_drawn_anew():
    network = given(small_mlp)
    network[2].bias.requires_grad_(False)
    with scoped(0):
        assert torch.equal(renewed(network, ("2.*",))[2].bias, network[2].bias)
    with pytest.raises(SettingError, match=r"fresh='2\.bias' names no trained parameter of the network; .*2\.weight"):
        renewed(network, ("2.bias",))


def test_heads_of_their_own_tell_members_apart():
    network = given(small_mlp)
    task = be.Task(network, be.Categorical(), start="given", fresh="2.*")
    members = task.new_members(3, seed=0)
    assert torch.equal(members.params["0.weight"], network[0].weight.detach().expand(3, -1, -1))
    assert len({tuple(row.tolist()) for row in members.params["2.bias"]}) == 3
    assert quick_fit(task, table()).num_members == 3


@pytest.mark.parametrize(
    ("model", "settings"),
    [(small_mlp, {"start": "given"}), (small_mlp(), {}), ([small_mlp(), norm_mlp()], {"start": "given"})],
)
def test_fresh_leaves_without_a_given_network_are_refused(model, settings):
    with pytest.raises(SettingError, match=r"pass one network itself.*start=\"given\""):
        be.Task(model, be.Categorical(), fresh="2.*", **settings)


def test_patterns_are_texts():
    assert as_patterns("a.*") == ("a.*",)
    assert as_patterns(["a", "b"]) == ("a", "b")
    with pytest.raises(SettingError, match="fresh is a pattern of names"):
        as_patterns([3])


def test_what_members_begin_with_is_a_copy_and_only_named_leaves_get_noise():
    network = given(small_mlp)
    params, _ = begun(dict(network.named_parameters()), {}, still=())
    with torch.no_grad():
        shake(params, {"0.weight"}, jitter=0.1, seed=1)
    assert torch.equal(params["0.bias"], network[0].bias)
    assert params["0.bias"].data_ptr() != network[0].bias.data_ptr()
    assert not torch.equal(params["0.weight"], network[0].weight)
