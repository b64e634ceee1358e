"""What is kept of the last part of training: mean, variance and newest deviations of the weights along it.

    mean <- mean + (w - mean) / n,     deviation = w - mean (after the update)

The sum of squared deviations is updated as Welford does, (w - mean before)(w - mean after), which keeps digits that the
difference of two mean squares would lose.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.types import Clock, Leaves

MEAN, SQUARES, DEVIATIONS, COUNT = "path_mean", "path_squares", "path_deviations", "path_count"  # slots
SLOTS = (MEAN, SQUARES, DEVIATIONS)  # those with a member axis


def start(params: Leaves, rank: int) -> dict[str, Leaves]:
    """Slots with nothing in them; `rank` is the number of deviations that are kept, at most."""
    slots = {
        MEAN: {name: torch.zeros_like(leaf) for name, leaf in params.items()},
        SQUARES: {name: torch.zeros_like(leaf) for name, leaf in params.items()},
        COUNT: {"snapshots": torch.zeros((), dtype=torch.float64)},
    }
    if rank:
        shapes = {name: (len(leaf), rank, *leaf.shape[1:]) for name, leaf in params.items()}
        slots[DEVIATIONS] = {name: leaf.new_zeros(shapes[name]) for name, leaf in params.items()}
    return slots


def collect(state: State) -> None:
    """Take a snapshot of the members, in place; the newest deviation takes the place of the oldest."""
    count = int(state.slots[COUNT]["snapshots"].add_(1).item())
    for name, leaf in state.members.params.items():
        mean = state.slots[MEAN][name]
        before = leaf - mean
        mean.add_(before, alpha=1 / count)
        after = leaf - mean
        state.slots[SQUARES][name].addcmul_(before, after)
        if DEVIATIONS in state.slots:
            kept = state.slots[DEVIATIONS][name]
            kept[:, (count - 1) % kept.shape[1]] = after


def collect_all(state: State, networks: Sequence[Leaves]) -> State:
    """Take a snapshot of each of these networks, `(...)`, in the place of a single member; that stays as it is."""
    for params in networks:
        own = {name: leaf.unsqueeze(0) for name, leaf in params.items()}
        collect(replace(state, members=replace(state.members, params=own)))
    return state


def follow(state: State, clock: Clock, start: float, snapshots: int, least: int = 2) -> None:
    """Take a snapshot after a step, if it is time; refuse a run that is too short, at its first step."""
    check_length(clock, start, snapshots, least)
    if is_due(clock, start, snapshots):
        collect(state)


def num_snapshots(state: State) -> int:
    """How many snapshots were taken."""
    return int(state.slots[COUNT]["snapshots"].item())


def rank(state: State) -> int:
    """How many deviations there are."""
    kept = state.slots.get(DEVIATIONS)
    return min(num_snapshots(state), next(iter(kept.values())).shape[1]) if kept else 0


def is_due(clock: Clock, start: float, snapshots: int) -> bool:
    """Whether a snapshot is taken after this step: evenly spread over the steps after `start`, the last included."""
    begin = _begin(clock, start)
    span, done = clock.total_steps - begin, clock.step + 1 - begin
    return done > 0 and done * snapshots // span > (done - 1) * snapshots // span


def check_length(clock: Clock, start: float, snapshots: int, least: int = 2) -> None:
    """Refuse a run, at its first step, that is too short for the snapshots."""
    num = min(snapshots, clock.total_steps - _begin(clock, start))
    if clock.step == 0 and num < least:
        raise SettingError(
            f"{clock.total_steps} steps with start={start} and snapshots={snapshots} give {num} snapshots, {least} are "
            "needed; train longer, use smaller batches, or lower start"
        )


def _begin(clock: Clock, start: float) -> int:
    return math.ceil(start * clock.total_steps)
