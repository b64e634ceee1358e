"""Some members by themselves: where none knows of the others, they move as they do among all."""

from __future__ import annotations

from dataclasses import dataclass

from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.task.task import BoundTask

FEW = 1
"""How many members speak for all at a time, when steps are compared."""


def can_be_parted(method: Method, state: State, task: BoundTask, team: Team = ALONE) -> bool:
    """Whether some members of a state can take a step, in place, that is no other than that of all together."""
    alone = method.independent and method.moves_by_gradient_alone and method.unrecorded is None
    shared = state.members.shared & state.members.params.keys()
    return alone and not shared and not task.allocator.on_disk and team is ALONE


@dataclass(frozen=True)
class SomeMembers:
    """Members from `start` up to `stop` of all that a method has."""

    whole: Method
    start: int
    stop: int

    @staticmethod
    def few(method: Method, turn: int) -> SomeMembers:
        """A few of the members, others with each turn."""
        start = FEW * turn % (method.num_members - FEW + 1)
        return SomeMembers(method, start, start + FEW)

    @property
    def method(self) -> Method:
        """The method for these alone."""
        return self.whole.part(range(self.start, self.stop))

    def state(self, whole: State) -> State:
        """Views of what belongs to them; a copy of what all have together, such as a count of steps."""
        return whole.part(self.start, self.stop, self.whole.common_slots)

    def batch(self, whole: Batch) -> Batch:
        """What they see of a batch."""
        return whole.of_members(self.start, self.stop)

    def clock(self, clock: Clock) -> Clock:
        """The clock by which they draw the random numbers that they have among all."""
        return clock.of_members(self.start, self.stop, self.whole.num_members)

    def info(self, whole: Info) -> Info:
        """What was told of them."""
        return {name: values[self.start : self.stop] for name, values in whole.items()}
