import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Batch, Clock
from bayesemble.methods import numbered_draws
from bayesemble.methods.base import Context
from bayesemble.methods.geometry import batch_norm
from helpers import norm_mlp, small_mlp, table


def networks(state: State, numbers: range, roots: list[int]) -> Members:
    """Members shifted by a random number each."""
    members = state.members.take(torch.tensor(numbers) % state.members.num_members)
    shifts = [torch.randn((), generator=generator) for generator in numbered_draws.generators(numbers, roots)]
    for name, leaf in members.params.items():
        members.params[name] = leaf + torch.stack(shifts).reshape(-1, *[1] * (leaf.dim() - 1))
    return members


def measure(model, draws: int = 13) -> tuple[be.Task, State]:
    task, x = be.Task(model, be.Categorical()), table()[0]
    state = State(task.new_members(3, 0))
    return task, numbered_draws.prepare(
        state, networks, draws, lambda: iter([Batch(x, x)]), Context(task, be.Loop(), Clock(1, 1, 5))
    )


def test_a_network_depends_on_member_and_number_of_its_draw():
    """As for one member, so beside others: a kept member goes on with the same draws."""
    together = numbered_draws.generators(range(6), [10, 20, 30])
    alone = numbered_draws.generators(range(2), [20])
    assert [one.initial_seed() for one in together[1::3]] == [one.initial_seed() for one in alone]
    assert len({one.initial_seed() for one in together}) == 6


def test_each_network_comes_with_the_statistics_that_were_measured_for_it():
    _, state = measure(norm_mlp)
    assert state.slots[numbered_draws.BUFFERS]["1.running_mean"].shape == (3, 5, 8)
    drawn, x = numbered_draws.draw(state, range(4, 15), 0, networks), table()[0]
    hidden = torch.einsum("nd,mhd->mnh", x, drawn.params["0.weight"]) + drawn.params["0.bias"].unsqueeze(1)
    torch.testing.assert_close(drawn.buffers["1.running_mean"], hidden.mean(1), rtol=1e-4, atol=1e-5)
    with pytest.raises(SettingError, match="measured for 15 networks, 16 were asked for"):
        numbered_draws.draw(state, range(16), 0, networks)


@pytest.mark.parametrize(("together", "passes"), [(10, [9, 6]), (2, [3] * 5), (3, [3] * 5), (100, [15])])
def test_statistics_are_measured_in_whole_turns_of_all_members(together, passes, monkeypatch):
    sizes, refreshed = [], batch_norm.refreshed
    monkeypatch.setattr(
        batch_norm,
        "refreshed",
        lambda task, members, *rest: sizes.append(members.num_members) or refreshed(task, members, *rest),
    )
    monkeypatch.setattr(numbered_draws, "_TOGETHER", together)
    _, state = measure(norm_mlp)
    assert sizes == passes
    assert numbered_draws.limited(14, state) == 14
    assert numbered_draws.limited(16, state) == 15


def test_without_batch_norm_the_seed_decides_and_any_number_can_be_made():
    _, state = measure(small_mlp)
    assert numbered_draws.BUFFERS not in state.slots
    one, other = (numbered_draws.draw(state, range(40), seed, networks).params["0.weight"] for seed in (1, 2))
    assert one.shape[0] == 40
    assert not torch.equal(one, other)
    part = numbered_draws.draw(state, range(30, 40), 1, networks).params["0.weight"]
    assert torch.equal(part, one[30:])
