"""What is asked of a job of several processes, and the team that they make."""

import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import setting, validate
from bayesemble.execute.executor import Executor
from bayesemble.execute.ranks import joining
from bayesemble.execute.ranks.group import RankTeam, shared_out
from bayesemble.execute.ranks.team import ALONE, Team


@dataclass(frozen=True)
class Ranks:
    """Members on the processes of a job, as `torchrun` starts it: each holds some of them and runs them in its way.

    Every rank calls `fit` with the same arguments. Without a job, this process holds all members.
    """

    inner: str | Executor = setting("auto", 'how a rank runs its members: "auto", "loop", "vmap" or an executor')
    data: int = setting(1, "ranks that hold the same members and share out the rows of each batch", least=1)
    timeout: float = setting(300.0, "seconds after which a rank that does not answer is given up", above=0)
    gather: bool | str = setting(
        True,
        "whether each rank gets the whole ensemble in the end (True), one of its own members (False), or one whose "
        'members stay while predictions are put together ("predictions")',
        choices=("predictions",),
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.inner == "measure":
            raise SettingError('ranks that measure would not wait for one another: give inner="auto" or an executor')

    @property
    def is_first(self) -> bool:
        """Whether this process writes for all."""
        return joining.rank_here() == 0

    def team(self, num_members: int, backend: str = "gloo") -> Team:
        """Meet the other ranks, and share out the members."""
        if not joining.is_started():
            if self.data > 1:
                raise SettingError(f"data={self.data} needs as many ranks: start the program with torchrun")
            return ALONE
        joining.join(self.timeout, backend)
        world = dist.get_world_size()
        if world % self.data:
            raise SettingError(f"{world} ranks cannot be {self.data} for each share of the members; change data")
        places = world // self.data
        if places > num_members:
            raise SettingError(
                f"there are {num_members} members for {places} ranks, which need one each: start fewer ranks, or share "
                f"out rows too with Ranks(data=...)"
            )
        own, limit = dist.get_rank(), timedelta(seconds=self.timeout)

        def group(sets: list[list[int]]) -> dist.ProcessGroup:
            """The group of this rank; all ranks make all groups, in the same order."""
            found = {own in ranks: dist.new_group(ranks, timeout=limit) for ranks in sets}
            return found[True]

        groups = (
            group([[place * self.data + row for place in range(places)] for row in range(self.data)]),
            group([[place * self.data + row for row in range(self.data)] for place in range(places)]),
            group([list(range(world))]),
        )
        team = RankTeam(*groups, counts=tuple(shared_out(num_members, places)))
        weakref.finalize(team, _close, groups).atexit = False
        return team


def _close(groups: tuple[dist.ProcessGroup, ...]) -> None:
    """Give back the sockets and threads of a team that nobody asks any more."""
    for group in groups:
        with suppress(ValueError, AssertionError):  # whoever left the job has closed them all
            dist.destroy_process_group(group)
