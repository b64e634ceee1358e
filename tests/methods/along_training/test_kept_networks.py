import torch

from bayesemble.core.members import Members, State
from bayesemble.core.offload import Disk
from bayesemble.methods.along_training import kept_networks


def some_members(generator: torch.Generator) -> Members:
    """Three members: a matrix, statistics, a counter, and a frozen leaf that they share."""
    params = {"weight": torch.randn(3, 2, 4, generator=generator)}
    buffers = {"mean": torch.randn(3, 4, generator=generator), "count": torch.tensor([5, 6, 7])}
    buffers["frozen"] = torch.randn(2, generator=generator)
    return Members(params, buffers, torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64), frozenset({"frozen"}))


def moved(state: State, by: float) -> None:
    for name, leaf in (state.members.params | state.members.buffers).items():
        if name != "frozen":
            leaf.add_(int(by))


def filled_state(generator: torch.Generator, places: list[int], num: int = 4) -> tuple[State, list[State]]:
    members = some_members(generator)
    state, seen = State(members, kept_networks.make(members, num)), []
    for place in places:
        moved(state, 1.0)
        kept_networks.put(state, place)
        seen.append(state.clone())
    moved(state, 10.0)
    return state, seen


def test_networks_come_member_after_member_with_the_statistics_they_had(generator):
    state, seen = filled_state(generator, [0, 1, 2])
    networks = kept_networks.networks(state)
    for name in ("weight", "mean", "count"):
        leaves = [(one.members.params | one.members.buffers)[name] for one in seen]
        expected = torch.stack(leaves, dim=1).flatten(0, 1)
        assert torch.equal((networks.params | networks.buffers)[name], expected)
    assert torch.equal(networks.buffers["frozen"], state.members.buffers["frozen"])
    assert networks.shared == {"frozen"}
    assert networks.buffers["count"].dtype == torch.int64


def test_weights_of_members_are_shared_out_equally(generator):
    state, _ = filled_state(generator, [0, 1, 2, 3])
    weights = kept_networks.networks(state).weights
    expected = torch.tensor([0.5] * 4 + [0.2] * 4 + [0.3] * 4, dtype=torch.float64) / 4
    torch.testing.assert_close(weights, expected)


def test_at_first_there_are_the_members(generator):
    members = some_members(generator)
    state = State(members, kept_networks.make(members, 2))
    assert kept_networks.networks(state) is members
    assert kept_networks.networks(State(members)) is members


def test_places_may_stay_empty_and_are_ordered(generator):
    state, seen = filled_state(generator, [3, 1])
    networks = kept_networks.networks(state)
    assert networks.num_members == 6
    late, early = (one.members.params["weight"] for one in seen)
    assert torch.equal(networks.params["weight"], torch.stack([early, late], dim=1).flatten(0, 1))


def test_a_place_that_is_used_again_holds_the_new_network(generator):
    state, seen = filled_state(generator, [0, 0])
    assert torch.equal(kept_networks.networks(state).params["weight"], seen[1].members.params["weight"])


def test_slots_have_a_member_axis_so_that_some_members_can_be_kept(generator):
    state, seen = filled_state(generator, [0, 2])
    places = torch.tensor([2, 0])
    slots = {slot: {name: leaf[places] for name, leaf in state.slots[slot].items()} for slot in kept_networks.SLOTS}
    kept = kept_networks.networks(State(state.members.take(places), slots))
    expected = torch.stack([one.members.params["weight"][places] for one in seen], dim=1).flatten(0, 1)
    assert torch.equal(kept.params["weight"], expected)


def test_room_can_lie_on_disk(generator, tmp_path):
    members = some_members(generator)
    state = State(members, kept_networks.make(members, 2, Disk(tmp_path)))
    kept_networks.put(state, 1)
    assert (tmp_path / f"{kept_networks.NETWORKS}.safetensors").is_file()
    assert torch.equal(kept_networks.networks(state).params["weight"], members.params["weight"])


def test_positions_count_though_a_member_that_was_left_behind_has_nothing_there(generator):
    members = some_members(generator)
    state = State(members, kept_networks.make(members, 2))
    start = state.clone()
    kept_networks.put(state, 0)
    state.put_back(torch.tensor([0]), start)
    kept = kept_networks.networks(state)
    assert kept_networks.count(state) == 1
    assert torch.equal(kept.params["weight"][1:], members.params["weight"][1:])
    assert not kept.params["weight"][0].any()
