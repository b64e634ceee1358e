import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.execute.schedules import Step
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table


def fitted(epochs: int = 6, **settings) -> be.Ensemble:
    method = be.Repulsive(num_members=3, sequential=True, **settings)
    return quick_fit(be.Task(norm_mlp, be.Categorical()), table(), method, epochs=epochs)


@pytest.mark.parametrize("space", ["weight", "function"])
def test_each_member_moves_in_its_own_third_only(space):
    states = []
    quick_fit(
        be.Task(norm_mlp, be.Categorical()),
        table(),
        be.Repulsive(num_members=3, sequential=True, space=space),
        epochs=6,
        on_epoch=lambda state, row: states.append(state.clone()) and None,
    )
    for epoch in range(1, 6):
        before, after = states[epoch - 1].members, states[epoch].members
        moved = [not torch.equal(before.params["0.weight"][i], after.params["0.weight"][i]) for i in range(3)]
        assert moved == [epoch // 2 == i for i in range(3)]
        moved = [
            not torch.equal(before.buffers["1.running_mean"][i], after.buffers["1.running_mean"][i]) for i in range(3)
        ]
        assert moved == [epoch // 2 == i for i in range(3)]
        assert after.weights.tolist() == pytest.approx(
            [1 / (epoch // 2 + 1)] * (epoch // 2 + 1) + [0] * (2 - epoch // 2)
        )


def test_without_repulsion_the_first_member_is_map():
    """Later members run on clocks of their own; the first, repelled by nobody, trains as one network alone would."""
    alone = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=1), epochs=2)
    method = be.Repulsive(num_members=3, sequential=True)
    three = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method, epochs=6)
    assert largest_difference(all_leaves(alone), all_leaves(three), members=1) == 0


def test_each_member_has_a_clock_of_its_own():
    """Without repulsion and chance, three in turn are three at once: each begins its schedule anew."""
    task, options, falling = be.Task(small_mlp, be.Categorical()), {"batch_size": None}, Step(at=(0.5,), factor=0.1)
    at_once = quick_fit(task, table(), be.DeepEnsemble(num_members=3, schedule=falling), epochs=4, **options)
    method = be.Repulsive(num_members=3, sequential=True, repulsion=0.0, schedule=falling)
    in_turn = quick_fit(task, table(), method, epochs=12, **options)
    assert largest_difference(all_leaves(at_once), all_leaves(in_turn)) < 1e-6


@pytest.mark.parametrize("space", ["weight", "function"])
def test_the_optimiser_is_that_of_one_member(space):
    ensemble = fitted(space=space)
    assert all(len(leaf) == 1 for leaf in ensemble.state.slots["first_moment"].values())


@pytest.mark.parametrize("space", ["weight", "function"])
def test_later_members_feel_the_finished_ones(space):
    calm, pushed = fitted(space=space, repulsion=0.0), fitted(space=space, repulsion=30.0)
    assert largest_difference(all_leaves(calm), all_leaves(pushed), members=1) == 0
    assert largest_difference(all_leaves(calm), all_leaves(pushed)) > 0


def test_loop_and_vmap_agree():
    loop = fitted()
    method = be.Repulsive(num_members=3, sequential=True)
    vmap = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), method, epochs=6, executor="vmap")
    assert largest_difference(all_leaves(loop), all_leaves(vmap)) < 1e-5


@pytest.mark.parametrize("settings", [{"bootstrap": True}, {"anchored": True}])
def test_what_needs_all_members_at_once_is_refused(settings):
    with pytest.raises(SettingError, match="sequential=True trains one member at a time"):
        be.Repulsive(sequential=True, **settings)


@pytest.mark.parametrize("num", [2, 3, 9])
def test_a_step_takes_the_gradients_of_one_member(num):
    assert be.Repulsive(num_members=num, sequential=True).gradients_per_step == 1
    assert be.Repulsive(num_members=num, sequential=True, adversarial=0.1).gradients_per_step == 2
    assert be.Repulsive(num_members=num).gradients_per_step == num
