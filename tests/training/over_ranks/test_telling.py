"""What processes tell one another along training: a team of two is played by one that answers for both."""

import signal

import pytest
import torch

from bayesemble.core.errors import TrainingError
from bayesemble.core.members import Members
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.training.over_ranks.telling import (
    AgreedStop,
    ClonesEverywhere,
    check_finite_everywhere,
    mixture_log_prob,
    told_by_all,
)
from bayesemble.training.stopping import StopRequest


class Twins(Team):
    """Two processes that always have the same to say."""

    def everyone(self, here):
        return torch.cat([here, here])

    def summed(self, partial):
        return 2 * partial

    def largest(self, number):
        return max(number, self.other)

    other = 0


def test_what_steps_told_is_put_together_member_after_member():
    told = [
        {"loss": torch.tensor([1.0, 2.0])},
        {"loss": torch.tensor([3.0, 4.0]), "gradients": torch.tensor([5.0, 6.0])},
    ]
    first, second = told_by_all(told, Twins())
    assert first["loss"].tolist() == [1, 2, 1, 2]
    assert second["loss"].tolist() == [3, 4, 3, 4]
    assert int(second["gradients"]) == 22
    assert "gradients" not in first
    assert told_by_all(told, ALONE) == told


def test_the_mixture_is_that_of_all_members():
    log_prob = torch.tensor([[0.2, 0.5], [0.4, 0.1]]).log().double()
    assert torch.allclose(mixture_log_prob(log_prob, Twins()), torch.tensor([0.3, 0.3]).log().double())


def test_all_stop_when_one_was_asked_to_and_not_before_they_look():
    noted, team = StopRequest(), Twins()
    stop, team.other = AgreedStop(noted, team), signal.SIGTERM
    assert stop.signal is None
    stop.agree()
    assert stop.signal == signal.SIGTERM


def test_a_rank_ends_with_another_that_is_not_finite():
    team = Twins()
    check_finite_everywhere(None, team)
    team.other = 1
    with pytest.raises(TrainingError, match="on another rank"):
        check_finite_everywhere(None, team)


def test_members_on_different_ranks_that_stay_equal_are_refused():
    def one(value):
        return Members({"a": torch.tensor([[value]])}, {}, torch.ones(1))

    clones = ClonesEverywhere(one(1.0), Twins())
    clones.refuse(one(1.0))  # they have not moved yet
    with pytest.raises(TrainingError, match="members 0, 1 began with equal weights"):
        clones.refuse(one(2.0))
    ClonesEverywhere(one(1.0), ALONE).refuse(one(2.0))
