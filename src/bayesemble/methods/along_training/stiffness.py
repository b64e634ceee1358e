"""How stiff a posterior is: the largest curvature of each member's log joint, which limits the steps of a sampler.

Power iteration on differences of gradients, all of them on the same batch and with the same random numbers,

    H v ~ ( gradient(w) - gradient(w + r v) ) / r,      v <- H v / |H v|,      c = |H v|

with the length r = c^-1/2, the standard deviation of a normal law of this curvature: over this distance the curvature
matters. `c` comes from below; a few iterations are enough where only its size is asked for.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.members import Members
from bayesemble.core.types import Batch, Leaves, widest
from bayesemble.methods.base import Context

ITERATIONS = 4


def stiffness(members: Members, batch: Batch, context: Context) -> Tensor:
    """The largest curvature of minus the log joint of each member, `(member,)`; costs `ITERATIONS` + 1 gradients."""
    direction = _random_directions(members.params, context)
    gradient = _gradient(members, batch, context)
    like: Any = {"dtype": widest(members.weights.device), "device": members.weights.device}
    curvature = torch.full((members.num_members,), context.task.data_factor, **like)
    found = curvature
    for _ in range(ITERATIONS):
        length = curvature.rsqrt()
        shifted = {name: leaf + _times(length, direction[name]) for name, leaf in members.params.items()}
        there = _gradient(replace(members, params=shifted), batch, context)
        pushed = {name: _times(1 / length, gradient[name] - leaf) for name, leaf in there.items()}
        found = _norms(pushed)
        moves = found.isfinite() & (found > 0)  # else flat, or no number any more, which is a member's own affair
        curvature = torch.where(moves, found, curvature)
        direction = {
            name: torch.where(_like(moves, leaf), _times(1 / curvature, leaf), direction[name])
            for name, leaf in pushed.items()
        }
    return found


def _gradient(members: Members, batch: Batch, context: Context) -> Leaves:
    """The gradient of the log joint, to keep; running statistics of the members stay as they are."""
    own = replace(members, buffers={name: leaf.clone() for name, leaf in members.buffers.items()})
    _, gradients = context.gradients(own, batch)
    found = context.task.log_joint_gradient(gradients, members.params)
    return {name: leaf.clone() for name, leaf in found.items()}


def _random_directions(params: Leaves, context: Context) -> Leaves:
    """A direction of length 1 for each member, which does not depend on the members beside it."""
    num_members = len(next(iter(params.values())))
    clock, found = context.clock, {name: torch.empty_like(leaf) for name, leaf in params.items()}
    for member in range(num_members):
        generator = seeds.generator(clock.seed, "member", member, "direction", clock.step)
        for name in sorted(found):
            own = found[name][member]
            own.copy_(torch.randn(own.shape, generator=generator, dtype=own.dtype))
    lengths = _norms(found)
    return {name: _times(1 / lengths, leaf) for name, leaf in found.items()}


def _norms(leaves: Leaves) -> Tensor:
    """Lengths over all leaves, `(member,)`; summed by name, as a checkpoint keeps no other order."""
    ordered = [leaves[name] for name in sorted(leaves)]
    squares = [leaf.to(widest(leaf.device)).square().reshape(len(leaf), -1).sum(1) for leaf in ordered]
    return torch.stack(squares).sum(0).sqrt()


def _times(factors: Tensor, leaf: Tensor) -> Tensor:
    return leaf * _like(factors.to(leaf.dtype), leaf)


def _like(values: Tensor, leaf: Tensor) -> Tensor:
    """Values `(member,)` with the axes of a leaf."""
    return values.reshape(-1, *[1] * (leaf.dim() - 1))
