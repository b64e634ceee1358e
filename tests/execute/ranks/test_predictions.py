"""Outputs of all ranks: a team of two is played by one that answers for both."""

import pytest
import torch

from bayesemble.core.errors import ExecutionError
from bayesemble.core.members import Members
from bayesemble.execute.ranks.predictions import of_everyone
from bayesemble.execute.ranks.team import ALONE, Team
from ranks_job import found


class Twins(Team):
    """Two processes with the same members."""

    def everyone(self, here):
        return torch.cat([here, here])

    def total(self, num):
        return 2 * num

    def words(self, own):
        return [own, own]


class Strangers(Twins):
    """Two processes, of which the other one has other rows."""

    def words(self, own):
        return [own, own + "0"]


def test_networks_follow_member_after_member_and_weigh_their_share():
    outputs, rows = torch.arange(12.0).reshape(4, 3), torch.ones(3, 1)
    members = Members({"noise": torch.arange(4.0)}, {}, torch.tensor([0.1, 0.2, 0.3, 0.4]))
    (whole,), joined = of_everyone((outputs,), members, rows, 2, Twins())
    assert torch.equal(whole, torch.cat([outputs, outputs]))
    assert torch.allclose(joined.weights, torch.tensor([0.1, 0.2, 0.3, 0.4] * 2) / 2)
    assert torch.equal(joined.params["noise"], torch.arange(4.0).repeat(2))
    assert of_everyone((outputs,), members, rows, 2, ALONE)[0][0] is outputs


def test_different_rows_are_refused_rather_than_mixed():
    members = Members({"a": torch.ones(2, 1)}, {}, torch.ones(2) / 2)
    with pytest.raises(ExecutionError, match="different rows"):
        of_everyone((torch.ones(2, 3),), members, torch.ones(3, 1), 2, Strangers())
    assert "different rows" in found()["predicted"]["other rows"]
