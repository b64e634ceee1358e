import torch

import bayesemble as be
from bayesemble.core.members import Members, State
from bayesemble.core.seeds import scoped
from bayesemble.methods.implicit import components
from bayesemble.methods.implicit.patches import Patch
from helpers import norm_mlp, quick_fit, table


def state_of(method: be.Patched) -> State:
    return quick_fit(be.Task(norm_mlp, be.Categorical()), table(), method, epochs=1).state


def test_patches_come_back_in_the_order_of_names():
    patches = {"b": Patch("unit", 1, 1, 3, 0.0), "a": Patch("layer", 0, 0, 3, 0.0)}
    members = Members({"a": torch.zeros(1, 2)}, {}, torch.ones(1))
    state = State(members, {components.PATCHES_SLOT: {name: patch.encode() for name, patch in patches.items()}})
    assert list(components.patches_of(state)) == ["a", "b"]
    assert components.patches_of(state) == patches


def test_all_leaves_are_those_of_members_components_and_probabilities():
    state = state_of(be.EMP(mixing="learned", training_draws=2, select="output"))
    names = set(components.leaves_of(state))
    assert names >= {"0.weight", "components.3.weight", "components.3.bias", "mixing.layer-0"}


def test_statistics_go_to_the_component_that_was_drawn_and_come_back():
    state = state_of(be.Explicit(num_members=2, components=3))
    slot = state.slots[components.BUFFERS_SLOT]["1.running_mean"]
    slot.zero_()
    assigned = {"w": torch.tensor([[2], [0]])}
    drawn = {name: leaf + 7 for name, leaf in components.own_buffers(state, assigned, [0, 1]).items()}
    components.keep_buffers(state, assigned, Members({}, drawn, torch.ones(2)))
    assert slot[0, 2].eq(7).all()
    assert slot[1, 0].eq(7).all()
    assert slot.count_nonzero() == 2 * 8
    assert components.own_buffers(state, assigned, [0, 1])["1.running_mean"].eq(7).all()


def test_what_is_not_learned_counts_as_a_buffer():
    members = Members({"a": torch.zeros(1, 2), "b": torch.ones(1, 2)}, {"c": torch.zeros(1)}, torch.ones(1))
    found = components.with_fixed(members, {"a": members.params["a"]}, {"c": torch.ones(1)})
    assert set(found.params) == {"a"}
    assert set(found.buffers) == {"b", "c"}
    assert found.buffers["c"].item() == 1


def test_a_trained_network_is_copied_into_all_members():
    with scoped(5):
        network = norm_mlp()
    network[1].running_mean.fill_(3.0)
    members = be.Task(norm_mlp, be.Categorical()).new_members(3, 0)
    components.copy_trained(network, members)
    for name, leaf in network.state_dict().items():
        stacked = (members.params | members.buffers)[name]
        assert all(torch.equal(row, leaf) for row in stacked)
