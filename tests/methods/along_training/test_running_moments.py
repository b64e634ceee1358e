import pytest
import torch

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Clock
from bayesemble.methods.along_training import running_moments


def followed(points: torch.Tensor, rank: int) -> State:
    """The state after snapshots of points `(step, member, number)`."""
    members = Members({"w": torch.zeros_like(points[0])}, {}, torch.ones(len(points[0])))
    state = State(members, running_moments.start(members.params, rank))
    for point in points:
        state.members.params["w"].copy_(point)
        running_moments.collect(state)
    return state


def test_mean_variance_and_newest_deviations_are_those_of_a_loop(generator):
    points = 1000 + torch.randn(7, 2, 5, generator=generator, dtype=torch.float64)
    state = followed(points, rank=3)
    torch.testing.assert_close(state.slots[running_moments.MEAN]["w"], points.mean(0))
    torch.testing.assert_close(
        state.slots[running_moments.SQUARES]["w"] / 7, points.var(0, correction=0), rtol=1e-8, atol=0
    )
    newest = torch.stack([points[n] - points[: n + 1].mean(0) for n in (6, 4, 5)], 1)  # each in its place of three
    torch.testing.assert_close(state.slots[running_moments.DEVIATIONS]["w"], newest)
    assert running_moments.num_snapshots(state) == 7
    assert running_moments.rank(state) == 3


def test_the_rank_is_what_there_is(generator):
    points = torch.randn(2, 1, 4, generator=generator)
    assert running_moments.rank(followed(points, rank=5)) == 2
    assert running_moments.rank(followed(points, rank=0)) == 0
    assert running_moments.DEVIATIONS not in followed(points, rank=0).slots


def test_single_precision_keeps_small_variances(generator):
    points = 100 + 1e-3 * torch.randn(50, 1, 200, generator=generator)
    found = followed(points, rank=0).slots[running_moments.SQUARES]["w"] / 50
    torch.testing.assert_close(found, points.double().var(0, correction=0).float(), rtol=0.05, atol=0)


def test_snapshots_are_evenly_spread_and_include_the_last_step():
    due = [step for step in range(100) if running_moments.is_due(Clock(step, 100, 0), 0.75, 5)]
    assert due == [79, 84, 89, 94, 99]
    assert sum(running_moments.is_due(Clock(step, 8, 0), 0.5, 40) for step in range(8)) == 4


def test_a_run_that_is_too_short_is_refused_at_its_first_step():
    running_moments.check_length(Clock(0, 8, 0), 0.75, 40)
    running_moments.check_length(Clock(1, 4, 0), 0.75, 40)
    with pytest.raises(SettingError, match="give 1 snapshots, 2 are needed"):
        running_moments.check_length(Clock(0, 4, 0), 0.75, 40)
    with pytest.raises(SettingError, match="give 5 snapshots, 6 are needed"):
        running_moments.check_length(Clock(0, 100, 0), 0.5, 5, least=6)
