"""Ensembles from one training run: the rate falls and rises again, and networks are kept where it is lowest.

- Snapshot ensembles (`cycle="cosine"`): the rate falls by a cosine and starts anew; a network is kept at the end of
  every cycle:   rate = learning rate * ( floor + (1 - floor) (1 + cos(pi r)) / 2 ),   r the share of the cycle done
- Fast geometric ensembles (`cycle="triangular"`): after most of the training, the rate falls linearly and rises again
  in short cycles; a network is kept in the middle of every cycle, and training ends with the last of them:
  rate = learning rate * ( floor + (1 - floor) |1 - 2 r| )

Any number of members goes this way side by side, each from its own start; all their networks are averaged.

Reference: Huang et al. (2017), "Snapshot ensembles: train 1, get M for free"; Garipov et al. (2018), "Loss surfaces,
mode connectivity, and fast ensembling of DNNs".
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.schedules import SCHEDULES, ScheduleLike, resolve
from bayesemble.methods.along_training import kept_networks
from bayesemble.methods.along_training.kept_networks import Moment
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod
from bayesemble.task.task import BoundTask

_START = {"cosine": 0.0, "triangular": 0.8}


@dataclass(frozen=True, kw_only=True)
class Snapshot(GradientMethod):
    """Networks kept where a cyclical learning rate is lowest: snapshot and fast geometric ensembles."""

    num_members: int = setting(1, "number of independently started members, each with snapshots of its own", least=1)
    schedule: ScheduleLike = setting(
        "constant", "learning-rate schedule before the first cycle begins", choices=SCHEDULES
    )
    snapshots: int = setting(5, "networks kept of each member", least=1)
    cycle: str = setting(
        "cosine", "how the rate goes in a cycle: cosine (snapshot ensembles) or triangular (FGE)", choices=_START
    )
    start: float | None = setting(
        None, "share of training before the first cycle; None is 0, or 0.8 if triangular", within="[0, 1)"
    )
    floor: float = setting(0.01, "the lowest rate of a cycle, as a share of learning_rate", within="[0, 1]")

    independent = True
    drawn_slots = kept_networks.SLOTS
    needs_every_epoch = True  # the last network is kept at the end

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members."""
        state = super().init(task, seed)
        return State(state.members, state.slots | kept_networks.make(state.members, self.snapshots, task.allocator))

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint, at the rate of the cycle, and keep it if that was lowest."""
        gradients, info = self.uphill(state, batch, context)
        state = self.ascend(state, gradients, context)
        keep = self.moment(context.clock).keep
        if keep is not None:
            kept_networks.put(state, keep)
        return state, info

    def kind_of_step(self, context: Context) -> Hashable | None:
        """Steps after which nothing is kept are alike."""
        return "" if self.moment(context.clock).keep is None else None

    def rate_factor(self, clock: Clock) -> float:
        """That of the cycle."""
        return self.moment(clock).factor

    def networks(self, state: State) -> Members:
        """The snapshots of all members, member after member; before there are any, the members."""
        return kept_networks.networks(state)

    def moment(self, clock: Clock) -> Moment:
        """What is done in a step."""
        begin = round((_START[self.cycle] if self.start is None else self.start) * clock.total_steps)
        num = clock.total_steps - begin
        require(
            num >= self.snapshots,
            f"snapshots={self.snapshots} need at least as many steps after the start of the cycles, there are {num} of "
            f"{clock.total_steps}; take more epochs, fewer snapshots, or an earlier start",
        )
        if clock.step < begin:
            return Moment(resolve(self.schedule)(clock.step / begin), None)
        # Counted in half cycles, of which the last one of a triangular run is left out: its lowest point is the end.
        halves = 2 * self.snapshots - (self.cycle == "triangular")
        position = ((clock.step - begin) * halves % (2 * num)) / (2 * num)
        shape = abs(1 - 2 * position) if self.cycle == "triangular" else (1 + math.cos(math.pi * position)) / 2
        before, after = (self._lows(done, halves, num) for done in (clock.step - begin, clock.step - begin + 1))
        return Moment(self.floor + (1 - self.floor) * shape, before if after > before else None)

    def _lows(self, done: int, halves: int, num: int) -> int:
        """How many times the rate was lowest after `done` of `num` steps."""
        shift = num if self.cycle == "triangular" else 0
        return (done * halves + shift) // (2 * num)
