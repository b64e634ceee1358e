"""What processes tell one another along training, once an epoch, so that all decide alike."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesemble.core.errors import TrainingError
from bayesemble.core.members import Members
from bayesemble.core.types import Info
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.task.starts.checks import clones_error, digest
from bayesemble.training.stopping import StopRequest


def told_by_all(told: Sequence[Info], team: Team) -> list[Info]:
    """What the steps of an epoch told of all members, from what they told of those here."""
    if team is ALONE or not told:
        return list(told)
    names = [name for name in told[0] if name != "gradients"]
    joined = {name: torch.stack([info[name] for info in told]) for name in names}
    found = {name: team.everyone(values.T.contiguous()).T for name, values in joined.items()}
    each: list[Info] = [{name: values[step] for name, values in found.items()} for step in range(len(told))]
    # Steps that take another number of gradients say so, on all processes alike.
    taken = team.summed(torch.tensor([int(info["gradients"].sum()) if "gradients" in info else 0 for info in told]))
    for own, info, count in zip(each, told, taken, strict=True):
        own |= {"gradients": count} if "gradients" in info else {}
    return each


def check_finite_everywhere(found: tuple[int | None, str] | None, team: Team) -> None:
    """Stop on all ranks if one of them has numbers that are not finite, which it says itself."""
    if team.largest(int(found is not None)) and found is None:
        raise TrainingError("a member on another rank is no longer finite, which that rank tells more about")


class AgreedStop(StopRequest):
    """A request to stop that all processes see at the same moment, at the end of an epoch."""

    def __init__(self, noted: StopRequest, team: Team) -> None:
        super().__init__(noted.signal if team is ALONE else None)
        self._noted, self._team = noted, team

    def agree(self) -> None:
        """Look whether one of the processes was asked to stop."""
        self.signal = self._team.largest(self._noted.signal or 0) or None


class ClonesEverywhere:
    """Members on all processes that begin with equal weights: see `Clones`."""

    def __init__(self, members: Members, team: Team) -> None:
        self._team = team
        self._starts = self._digests(members)

    def refuse(self, members: Members) -> None:
        """Refuse members that began equal and are equal after a step in which they moved."""
        now = self._digests(members)
        for one in now:
            alike = [number for number, other in enumerate(now) if other == one]
            if len(alike) > 1 and len({self._starts[number] for number in alike}) == 1 and one not in self._starts:
                raise clones_error(alike)

    def _digests(self, members: Members) -> list[bytes]:
        each = [hashlib.blake2b(digest(members, i), digest_size=16).digest() for i in range(members.num_members)]
        rows = torch.tensor([list(one) for one in each], dtype=torch.uint8)
        return [bytes(row) for row in self._team.everyone(rows).tolist()]


def mixture_log_prob(member_log_prob: Tensor, team: Team) -> Tensor:
    """log of the mean over all members of p(y|x), `(row,)`, from `(member, row)` of those here."""
    everyone = team.everyone(member_log_prob.contiguous())
    return torch.logsumexp(everyone, 0) - math.log(len(everyone))
