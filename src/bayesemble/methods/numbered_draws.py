"""Networks drawn by number, each with batch-norm statistics of its own, measured once training is over.

Network number n comes from member n % M and is its draw n // M, whose random numbers derive from a root of that member.
Where statistics were measured, roots are fixed, so that the same networks come again; elsewhere they derive from the
seed of the prediction.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Leaves, TrainingData
from bayesemble.methods.base import Context
from bayesemble.methods.geometry import batch_norm

ROOTS, BUFFERS = "draw_roots", "draw_buffers"  # slots, (member,) and (member, draw, ...)
SLOTS = (ROOTS, BUFFERS)
_TOGETHER = 10  # networks whose statistics are measured in one pass

Networks = Callable[[State, range, list[int]], Members]
"""Makes networks by number from the state, with a root for each member."""


def generators(numbers: range, roots: list[int]) -> list[torch.Generator]:
    """One for each network."""
    return [seeds.generator(roots[number % len(roots)], number // len(roots)) for number in numbers]


def prepare(state: State, networks: Networks, draws: int, data: TrainingData, context: Context) -> State:
    """Fix the roots and, if there is batch norm, measure the statistics of this many draws."""
    task, members = context.task, state.members.num_members
    names = batch_norm.norm_buffers(task.module)
    roots = [seeds.child(context.clock.seed, "member", index, "draws") for index in range(members)]
    state = replace(state, slots=state.slots | {ROOTS: {"roots": torch.tensor(roots)}})
    if not names:
        return state
    _, all_members = seeds.members_of(context.clock.seed, members)
    each, parts = math.ceil(draws / all_members), []
    together = how_many_fit(_TOGETHER, members) * members  # whole turns of all members, whose data may be their own
    for begin in range(0, each * members, together):
        numbers = range(begin, min(begin + together, each * members))
        parts.append(batch_norm.refreshed(task, networks(state, numbers, roots), data, context.executor))
    whole = {name: torch.cat([part.buffers[name] for part in parts]) for name in names}
    own = {name: leaf.unflatten(0, (each, members)).transpose(0, 1).contiguous() for name, leaf in whole.items()}
    left_out = state.members.weights == 0  # those that were dropped, whose weights may be absurd
    for name, leaf in own.items():
        leaf[left_out] = state.members.buffers[name][left_out].unsqueeze(1)
    return replace(state, slots=state.slots | {BUFFERS: own})


def limited(draws: int, state: State) -> int:
    """This many draws, or as many as statistics were measured for."""
    buffers = state.slots.get(BUFFERS)
    return draws if buffers is None else min(draws, _measured(state, buffers))


def draw(state: State, numbers: range, seed: int, networks: Networks) -> Members:
    """Networks by number; those whose statistics were measured, if they were."""
    members, buffers = state.members.num_members, state.slots.get(BUFFERS)
    if buffers is None:
        return networks(state, numbers, [seeds.child(seed, index) for index in range(members)])
    most = _measured(state, buffers)
    if numbers.stop > most:
        raise SettingError(
            f"batch-norm statistics were measured for {most} networks, {numbers.stop} were asked for; train with more "
            "draws"
        )
    drawn, order = networks(state, numbers, state.slots[ROOTS]["roots"].tolist()), torch.tensor(numbers)
    own = {name: leaf[order % members, order // members] for name, leaf in buffers.items()}
    return replace(drawn, buffers=drawn.buffers | own, shared=drawn.shared - own.keys())


def _measured(state: State, buffers: Leaves) -> int:
    return state.members.num_members * next(iter(buffers.values())).shape[1]
