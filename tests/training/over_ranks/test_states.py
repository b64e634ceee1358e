"""States that processes hold together."""

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.members import State
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.training.over_ranks.states import check_same_standing, find_checkpoint, member_axes
from ranks_job import found, rows, task, train


class Behind(Team):
    """A process beside one that has come further."""

    def largest(self, number):
        return max(number, 7)


def test_matrices_between_members_and_draws_of_the_prior_belong_to_all_of_them():
    method = be.Stein(num_members=2, space="function", prior_draws=2)
    axes = member_axes(train(method, "loop").state, method)
    slots = {group for group, _ in axes}
    assert ("params", "0.weight") in axes
    assert ("interaction", "driving_norm") in axes
    assert "prior_draws" not in slots
    weight = be.Stein(num_members=2)
    assert not {("interaction", "driving"), ("interaction", "repelling")} & member_axes(
        train(weight, "loop").state, weight
    )


def test_a_slot_without_a_member_axis_is_refused():
    method = be.DeepEnsemble(num_members=2)
    state = State(train(method, "loop").state.members, {"odd": {"one": torch.zeros(5)}})
    with pytest.raises(SettingError, match="one of odd has no member axis"):
        member_axes(state, method)


def test_ranks_that_found_different_checkpoints_do_not_go_on():
    check_same_standing(7, ALONE)
    with pytest.raises(CheckpointError, match="different checkpoints"):
        check_same_standing(6, Behind())


def test_a_folder_that_holds_a_run_is_not_begun_anew(tmp_path):
    method = be.DeepEnsemble(num_members=2)
    assert find_checkpoint(tmp_path / "run", False, False, method, ALONE) is None
    be.fit(task(), method, rows(), epochs=1, progress=False, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds a run"):
        find_checkpoint(tmp_path / "run", False, False, method, ALONE)


def test_members_that_ranks_hold_come_back_as_one_ensemble():
    assert found()["members"]["deep_ensemble"] <= 1e-15
