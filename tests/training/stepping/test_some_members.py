"""Some members by themselves move as they do among all."""

from dataclasses import dataclass, replace

import pytest
import torch

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.training.stepping.some_members import FEW, SomeMembers, can_be_parted
from helpers import dropout_mlp, quick_fit, small_mlp, table

X, Y = table()


def bound(make=small_mlp, **options):
    return be.Task(make, be.Categorical(), **options).bind(len(X), X)


@pytest.mark.parametrize("make", [small_mlp, dropout_mlp])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd"},
        {"optimizer": "schedule_free_sgd", "learning_rate": 0.1},
        {"optimizer": "lion", "anchored": True},
        {"optimizer": "sgd", "rate_per_member": (0.1, 0.2, 0.3, 0.4, 0.5), "clip": 0.1},
    ],
    ids=str,
)
def test_a_step_of_some_is_theirs_in_that_of_all(settings, make):
    method, task = be.DeepEnsemble(num_members=5, **settings), bound(make)
    whole, clock, batch = method.init(task, seed=3), Clock(0, 10, 3), Batch(X, Y, torch.arange(len(X)))
    some = SomeMembers(method, 1, 4)
    part = some.state(whole.clone())
    part, own = some.method.step(part, some.batch(batch), Context(task, be.Vmap(), some.clock(clock)))
    whole, told = method.step(whole, batch, Context(task, be.Vmap(), clock))
    for group, leaves in part.groups().items():
        for name, leaf in leaves.items():
            torch.testing.assert_close(leaf, some.state(whole).groups()[group][name], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(own["loss"], some.info(told)["loss"], rtol=1e-6, atol=0)


def test_what_belongs_to_them_is_a_view_and_what_all_have_together_a_copy():
    method = be.DeepEnsemble(num_members=5)
    whole = method.init(bound(), seed=0)
    part = SomeMembers(method, 2, 4).state(whole)
    for leaf in (*part.members.params.values(), *part.slots["first_moment"].values()):
        leaf.fill_(7)
    part.slots["steps"]["step"].fill_(7)
    assert all((leaf[2:4] == 7).all() and (leaf[:2] != 7).any() for leaf in whole.members.params.values())
    assert whole.slots["steps"]["step"] == 0


def test_each_turn_has_others_and_all_get_theirs():
    method = be.DeepEnsemble(num_members=5)
    seen = [SomeMembers.few(method, turn) for turn in range(5)]
    assert {(one.stop - one.start) for one in seen} == {FEW}
    assert {number for one in seen for number in range(one.start, one.stop)} == set(range(5))


def test_of_a_part_of_a_run_they_draw_as_among_all():
    clock = Clock(4, 10, 3)
    inner = clock.of_members(2, 6, 8).of_members(1, 3, 4)
    assert inner.member_seeds(2) == clock.member_seeds(8)[3:5]


def test_only_members_that_know_nothing_of_one_another_are_parted(tmp_path):
    task = bound()

    def parted(method, task=task) -> bool:
        return can_be_parted(method, method.init(task, seed=0), task)

    assert parted(be.DeepEnsemble(num_members=3))
    assert parted(be.Laplace(num_members=3))
    assert not parted(be.Repulsive(num_members=3))
    assert not parted(be.SWAG(num_members=3))  # what it keeps is not written in place
    assert not parted(be.DeepEnsemble(num_members=3, optimizer="nadam"))
    disk = replace(task, allocator=be.core.offload.Disk(tmp_path))
    assert not parted(be.DeepEnsemble(num_members=3), disk)
    shared = be.DeepEnsemble(num_members=3).init(task, seed=0)
    members = replace(shared.members, shared=frozenset(list(shared.members.params)[:1]))
    assert not can_be_parted(be.DeepEnsemble(num_members=3), replace(shared, members=members), task)


def test_a_method_with_steps_of_its_own_is_not_taken_for_one_whose_members_move_alone():
    @dataclass(frozen=True, kw_only=True)
    class Gathered(be.DeepEnsemble):
        """Members are pulled to where all are on average."""

        def step(self, state, batch, context):
            gradients, info = self.uphill(state, batch, context)
            for name, leaf in state.members.params.items():
                gradients[name] += 100 * (leaf.mean(0) - leaf)
            return self.ascend(state, gradients, context), info

    @dataclass(frozen=True, kw_only=True)
    class Alone(Gathered):
        """As it says of itself."""

        moves_by_gradient_alone = True

    assert not Gathered.moves_by_gradient_alone
    assert Alone.moves_by_gradient_alone
    task = be.Task(small_mlp, be.Categorical())
    one, other = (
        quick_fit(task, (X, Y), Gathered(num_members=4), executor=be.Vmap(chunk=chunk)) for chunk in (None, 2)
    )
    for name, leaf in one.state.members.params.items():
        torch.testing.assert_close(leaf, other.state.members.params[name])
