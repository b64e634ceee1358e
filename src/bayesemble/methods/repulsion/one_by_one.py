"""One member at a time: each is trained to the end, repelled by those that are finished, which stay where they are.

It needs the moments, gradients and activations of one member only. The steps of a run are shared out among the members
in order; each has a clock of its own, on which its schedules run. Members that have not begun have weight 0.
"""

from dataclasses import replace

import torch

from bayesemble.core import seeds
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion.in_space import MethodInSpace
from bayesemble.task.task import BoundTask


def init(method: MethodInSpace, task: BoundTask, seed: int) -> State:
    """Start all members, with what the optimiser and the space keep of one."""
    members = method.new_members(task, seed)
    first = members.part(0, 1)
    state = State(first, method.make_optimizer().init(first.params, task.allocator))
    return replace(method.own_space.prepare(method, state, task, seed), members=members)


def step(method: MethodInSpace, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
    """Move the member whose turn it is."""
    clock, members, count = context.clock, state.members, state.members.num_members
    current = clock.step * count // clock.total_steps
    begin, end = (-(-turn * clock.total_steps // count) for turn in (current, current + 1))
    if clock.step == begin:
        fresh = method.make_optimizer().init(members.part(0, 1).params)
        for slot, leaves in fresh.items():
            for name, leaf in leaves.items():
                state.slots[slot][name].copy_(leaf)
    own = State(members.part(current, current + 1), state.slots)
    own_clock = Clock(clock.step - begin, end - begin, seeds.child(clock.seed, "turn", current))
    finished_and_own = members.part(0, current + 1)
    moved, info = method.own_space.step(method, own, batch, replace(context, clock=own_clock), finished_and_own)
    begun = (torch.arange(count, device=members.weights.device) <= current).to(members.weights.dtype) / (current + 1)
    return State(replace(members, weights=begun), moved.slots), info
