import pytest
import torch

from bayesemble.core import members as members_module
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State


def three_members(share=frozenset()):
    """Member m has weights and a buffer filled with m, and a frozen leaf that is the same everywhere."""
    params = [{"weight": torch.full((2, 2), float(m)), "bias": torch.full((2,), float(m))} for m in range(3)]
    buffers = [{"mean": torch.full((2,), 10.0 * m), "frozen": torch.ones(4)} for m in range(3)]
    return Members.stack(params, buffers, share)


def test_stacking_puts_the_member_axis_first_and_weighs_members_equally():
    members = three_members()
    assert members.num_members == 3
    assert members.params["weight"].shape == (3, 2, 2)
    assert members.buffers["frozen"].shape == (3, 4)
    assert members.params["bias"][:, 0].tolist() == [0, 1, 2]
    assert members.weights.dtype == torch.float64
    assert members.weights.tolist() == [1 / 3] * 3


def test_splitting_undoes_stacking():
    params = [{"w": torch.tensor([m, m + 1.0])} for m in range(4)]
    buffers = [{"b": torch.tensor(m)} for m in range(4)]
    split = Members.stack(params, buffers).split()
    for (own_params, own_buffers), before, kept in zip(split, params, buffers, strict=True):
        assert torch.equal(own_params["w"], before["w"])
        assert torch.equal(own_buffers["b"], kept["b"])


def test_shared_leaves_have_no_member_axis_and_every_member_gets_the_same_tensor():
    members = three_members(share=frozenset({"frozen"}))
    assert members.buffers["frozen"].shape == (4,)
    assert members.axes(members.buffers) == {"mean": 0, "frozen": None}
    assert all(buffers["frozen"] is members.buffers["frozen"] for _, buffers in members.split())


def test_split_members_are_views_so_training_one_trains_the_stack():
    members = three_members()
    members.split()[1][0]["bias"].add_(100)
    assert members.params["bias"].tolist() == [[0, 0], [101, 101], [2, 2]]


def test_a_part_is_a_view_of_some_members_and_keeps_shared_leaves_whole():
    members = three_members(share=frozenset({"frozen"}))
    part = members.part(1, 3)
    assert part.num_members == 2
    assert part.params["bias"][:, 0].tolist() == [1, 2]
    assert part.buffers["frozen"] is members.buffers["frozen"]
    part.params["bias"].zero_()
    assert members.params["bias"][:, 0].tolist() == [0, 0, 0]


def test_parts_cover_the_members_with_their_weights():
    members = three_members()
    parts = [members.part(0, 2), members.part(2, 3)]
    assert torch.equal(torch.cat([part.params["weight"] for part in parts]), members.params["weight"])
    assert torch.equal(torch.cat([part.weights for part in parts]), members.weights)


def test_taken_members_are_copies_in_the_order_asked_for_and_equally_weighted():
    members = three_members(share=frozenset({"frozen"}))
    taken = members.take(torch.tensor([2, 0, 2, 2]))
    assert taken.params["bias"][:, 0].tolist() == [2, 0, 2, 2]
    assert taken.buffers["mean"][:, 0].tolist() == [20, 0, 20, 20]
    assert taken.buffers["frozen"].shape == (4,)
    assert taken.weights.tolist() == [0.25] * 4
    assert members.take(torch.tensor([0, 1, 2])).weights.tolist() == [1 / 3] * 3
    taken.params["bias"].zero_()
    assert members.params["bias"][:, 0].tolist() == [0, 1, 2]


def test_one_member_is_an_ensemble_too():
    members = Members.stack([{"w": torch.ones(2)}], [{}])
    assert members.weights.tolist() == [1]
    assert members.split()[0][0]["w"].tolist() == [1, 1]


def test_a_state_maps_params_buffers_weights_and_slots():
    state = State(three_members(), {"momentum": {"weight": torch.ones(3, 2, 2)}})
    names = []
    doubled = state.map(lambda name, leaf: (names.append(name), 2 * leaf)[1])
    assert sorted(names) == ["bias", "frozen", "mean", "weight", "weight", "weights"]
    assert doubled.members.params["bias"][:, 0].tolist() == [0, 2, 4]
    assert doubled.members.buffers["mean"][:, 0].tolist() == [0, 20, 40]
    assert doubled.slots["momentum"]["weight"].unique().tolist() == [2]
    assert doubled.members.weights.tolist() == [2 / 3] * 3
    assert state.members.params["bias"][:, 0].tolist() == [0, 1, 2]


def test_training_on_does_not_change_a_cloned_state():
    state = State(three_members(frozenset({"frozen"})), {"momentum": {"weight": torch.ones(3, 2, 2)}})
    kept = state.clone()
    for leaves in (state.members.params, state.members.buffers, state.slots["momentum"]):
        for leaf in leaves.values():
            leaf.fill_(-1)
    assert kept.members.params["bias"][:, 0].tolist() == [0, 1, 2]
    assert kept.members.buffers["mean"][:, 0].tolist() == [0, 10, 20]
    assert list(kept.members.buffers) == list(state.members.buffers)
    assert kept.members.buffers["frozen"] is state.members.buffers["frozen"]  # which no step changes
    assert kept.slots["momentum"]["weight"].unique().tolist() == [1]
    assert kept.members.shared == frozenset({"frozen"})


def test_a_state_moves_to_a_device_with_everything_it_holds():
    state = State(three_members(), {"momentum": {"weight": torch.ones(3, 2, 2)}}).to(torch.device("meta"))
    leaves = [
        *state.members.params.values(),
        *state.members.buffers.values(),
        state.slots["momentum"]["weight"],
    ]
    assert all(leaf.device.type == "meta" for leaf in [*leaves, state.members.weights])


def test_gathering_stacks_what_is_drawn():
    def draw(index):
        return {"w": torch.full((2,), float(index))}, {"own": torch.tensor(index), "all": torch.ones(3)}

    members = Members.gather(draw, 3, share=frozenset({"all"}))
    assert members.params["w"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert members.buffers["own"].tolist() == [0, 1, 2]
    assert members.buffers["all"].shape == (3,)
    assert members.weights.tolist() == [1 / 3] * 3


def test_groups_are_all_leaves_and_can_be_exchanged():
    state = State(three_members(frozenset({"frozen"})), {"momentum": {"weight": torch.ones(3, 2, 2)}})
    groups = state.groups()
    assert {group: list(leaves) for group, leaves in groups.items()} == {
        "params": ["weight", "bias"],
        "buffers": ["mean", "frozen"],
        "momentum": ["weight"],
    }
    other = state.with_groups({group: {n: leaf + 1 for n, leaf in own.items()} for group, own in groups.items()})
    assert other.members.params["bias"][:, 0].tolist() == [1, 2, 3]
    assert other.slots["momentum"]["weight"].unique().tolist() == [2]
    assert other.members.shared == state.members.shared
    other.members.weights.zero_()
    assert state.members.weights.tolist() == [1 / 3] * 3


def test_other_weights_are_normalised_and_may_be_zero():
    members = three_members()
    assert members.reweight([1, 0, 3]).weights.tolist() == [0.25, 0, 0.75]
    for wrong in ([1, 2], [1, -1, 2], [0, 0, 0], [1, 1, float("inf")], [1, 1, float("nan")]):
        with pytest.raises(SettingError, match="weights must be 3 non-negative numbers"):
            members.reweight(wrong)


def test_leaves_are_looked_through_a_few_members_at_a_time(monkeypatch):
    seen, total = [], torch.Tensor.sum
    monkeypatch.setattr(torch.Tensor, "sum", lambda part: seen.append(len(part)) or total(part))
    monkeypatch.setattr(members_module, "_AT_A_TIME", 12)
    params = {"a": torch.zeros(5, 2, 3), "none": torch.zeros(5, 0), "large": torch.zeros(5, 13)}
    assert Members(params, {}, torch.full((5,), 0.2)).first_not_finite() is None
    assert seen == [2, 2, 1, 5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("at_a_time", [1, 4, 1000])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_first_leaf_that_is_not_finite_is_found_with_its_member(bad, at_a_time, monkeypatch):
    monkeypatch.setattr("bayesemble.core.members._AT_A_TIME", at_a_time)
    params = {"a": torch.zeros(3, 2), "b": torch.zeros(2)}
    members = Members(params, {"count": torch.zeros(3, dtype=torch.long)}, torch.full((3,), 1 / 3), frozenset({"b"}))
    assert members.first_not_finite() is None
    params["b"].fill_(2e38)  # whose sum overflows
    params["b"][1] = -2e38
    params["a"].fill_(2e38)
    assert members.first_not_finite() is None
    params["b"][1] = bad
    assert members.first_not_finite() == (None, "b")
    params["a"][2, 0] = bad
    assert members.first_not_finite() == (2, "a")


def test_a_buffer_may_hold_infinity_but_no_undefined_number():
    mask = torch.tensor([[0.0, -torch.inf]] * 2)
    members = Members({"a": torch.zeros(2, 1)}, {"mask": mask}, torch.full((2,), 0.5))
    assert members.first_not_finite() is None
    assert State(members).finite_members().tolist() == [True, True]
    start = State(members).clone()
    State(members).put_back(torch.tensor([1]), start)
    assert mask[1].tolist() == [0.0, -torch.inf]
    mask[1, 0] = torch.nan
    assert members.first_not_finite() == (1, "mask")
    assert State(members).finite_members().tolist() == [True, False]


def test_what_has_a_member_axis_can_be_put_back_and_told_finite():
    members = three_members(share=frozenset({"frozen"}))
    slots = {"moment": {"weight": torch.ones(3, 2, 2)}, "steps": {"step": torch.zeros(())}}
    start = State(members, slots).clone()
    now = State(members, slots)
    members.params["weight"][1, 0, 1] = torch.nan
    slots["moment"]["weight"][2, 1, 1] = torch.inf
    members.params["bias"][0] = 7.0
    slots["steps"]["step"] += 1
    assert now.finite_members().tolist() == [True, False, False]
    now.put_back(torch.tensor([1, 2]), start)
    assert now.finite_members().all()
    assert torch.equal(members.params["weight"], start.members.params["weight"])
    assert members.params["bias"][0].tolist() == [7.0, 7.0]
    assert slots["steps"]["step"] == 1, "what all members share stays"


def test_what_was_never_finite_becomes_zero():
    members = three_members()
    before = members.params["bias"].clone()
    members.params["bias"][1] = torch.inf
    State(members).put_back(torch.tensor([1]), State(members).clone())
    assert members.params["bias"].tolist() == [before[0].tolist(), [0, 0], before[2].tolist()]


def test_a_part_of_a_state_views_what_slots_have_of_its_members_and_copies_what_is_common():
    members = Members({"w": torch.arange(8.0).reshape(4, 2)}, {}, torch.full((4,), 0.25))
    slots = {"moment": {"w": torch.zeros(4, 2)}, "all": {"matrix": torch.zeros(3, 3), "count": torch.zeros(())}}
    state = State(members, slots | {"said": {"square": torch.zeros(4, 4)}})
    part = state.part(1, 3, common=("said",))
    for leaf in (part.members.params["w"], part.slots["moment"]["w"], part.slots["all"]["matrix"]):
        leaf.fill_(7)
    part.slots["said"]["square"].fill_(7)
    assert part.members.num_members == 2
    assert state.members.params["w"].tolist() == [[0, 1], [7, 7], [7, 7], [6, 7]]
    assert state.slots["moment"]["w"].sum() == 28
    assert part.slots["all"]["matrix"].shape == (3, 3)
    assert part.slots["said"]["square"].shape == (4, 4)
    assert not any(leaf.any() for slot in ("all", "said") for leaf in state.slots[slot].values())
