"""Stochastic gradient Markov chain Monte Carlo with a cyclical step size: chains that visit mode after mode.

    SGLD     w <- w + h grad log p(w, data) + sqrt(2 h) noise
    SGHMC    v <- (1 - alpha) v + h grad log p(w, data) + sqrt(2 h alpha) noise,    w <- w + v

with h = learning rate / N, as learning rates refer to the mean loss. Both leave exp(log joint) in place as h goes to 0.
A temperature needs no other noise: `Task` divides the log joint by it. In every cycle the learning rate falls by a
cosine. In the first part, exploration, there is no noise, and gradients are clipped: it is SGD (with momentum
1 - alpha). In the rest, sampling, there is noise and no clipping, and networks are collected. All chains run side by
side, each with noise of its own.

    rate_k = learning rate * ( floor + (1 - floor) (1 + cos(pi r_k)) / 2 ),    r_k the share of the cycle that is done

`cycles=1, floor=1.0, exploration=0.0` is plain SGLD or SGHMC with a constant step.

How far off it is: nothing is accepted or refused, so finite steps widen the law. Where the log joint has curvature -c,
the variance is 1/c / (1 - h c / 2) for SGLD and 1/c / (1 - h c / (4 - 2 alpha)) for SGHMC. Gradients of batches add
noise of their own, in proportion to h.

Reference: Welling & Teh (2011), "Bayesian learning via stochastic gradient Langevin dynamics"; Chen, Fox & Guestrin
(2014), "Stochastic gradient Hamiltonian Monte Carlo"; Zhang et al. (2020), "Cyclical stochastic gradient MCMC for
Bayesian deep learning".
"""

import math
from dataclasses import dataclass

import torch

from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Clock, Info, Leaves
from bayesemble.execute.optimizers import clip_per_member
from bayesemble.methods.along_training import kept_networks
from bayesemble.methods.along_training.kept_networks import Moment
from bayesemble.methods.base import Chains, Context, Method
from bayesemble.task.task import BoundTask

SAMPLERS = ("sghmc", "sgld")
_VELOCITY = "velocity"


@dataclass(frozen=True, kw_only=True)
class CyclicalSGMCMC(Method):
    """Chains of SGLD or SGHMC on batches, with a step size that falls in cycles."""

    num_members: int = setting(4, "number of chains", least=1)
    learning_rate: float = setting(0.05, "step size on the mean loss, at the beginning of each cycle", above=0)
    sampler: str = setting("sghmc", "sghmc (with momentum) or sgld (without)", choices=SAMPLERS)
    alpha: float = setting(
        0.1, "friction of sghmc, the share of the velocity that is lost in a step; 1 is sgld", within="(0, 1]"
    )
    cycles: int = setting(4, "how many times the step size falls and starts anew", least=1)
    floor: float = setting(
        0.0, "step size at the end of a cycle, as a share of the first; 1 keeps it constant", within="[0, 1]"
    )
    exploration: float = setting(
        0.8, "share of each cycle without noise, before networks are collected", within="[0, 1)"
    )
    samples_per_cycle: int = setting(
        3, "networks collected of each chain and cycle, evenly spaced while sampling", least=1
    )
    clip: float | None = setting(
        1.0, "largest norm of each chain's gradient of the mean loss while exploring; None cuts nothing", above=0
    )

    independent = True
    changeable = ("learning_rate", "clip")
    drawn_slots = kept_networks.SLOTS

    moves_members_apart = True

    @property
    def needs_every_epoch(self) -> bool:
        """Networks are collected up to the end."""
        return True

    @property
    def training_slots(self) -> tuple[str, ...]:
        """The velocities."""
        return (_VELOCITY,)

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the chains where networks start, at rest."""
        members = task.new_members(self.num_members, seed)
        slots = kept_networks.make(members, self.cycles * self.samples_per_cycle, task.allocator)
        if self.sampler == "sghmc":
            slots[_VELOCITY] = task.allocator.zeros_like(members.params, _VELOCITY)
        return State(members, slots)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move all chains, with noise if they are sampling, and collect them if it is time."""
        task, members, now = context.task, state.members, self.moment(context.clock)
        values, gradients = context.gradients(members, batch)
        uphill = {
            name: leaf.div_(task.num_data) for name, leaf in task.log_joint_gradient(gradients, members.params).items()
        }
        if self.clip is not None and not now.sampling:
            clip_per_member(uphill, self.clip, members.shared)
        rate = self.learning_rate * now.factor
        for leaf in uphill.values():
            leaf.mul_(rate)
        if now.sampling:
            friction = self.alpha if self.sampler == "sghmc" else 1.0
            add_noise(uphill, math.sqrt(2 * rate * friction / task.num_data), context.clock)
        self._move(state, uphill)
        if now.keep is not None:
            kept_networks.put(state, now.keep)
        return state, {"loss": -values}

    def networks(self, state: State) -> Members:
        """The networks collected of all chains, chain after chain; before there are any, the chains."""
        return kept_networks.networks(state)

    def chains(self, state: State) -> Chains:
        """The networks collected of each chain."""
        return Chains(kept_networks.count(state), {})

    def moment(self, clock: Clock) -> Moment:
        """What is done in a step. Every cycle has at least one step with noise: its last, which is collected."""
        total = clock.total_steps
        require(
            total >= self.cycles,
            f"cycles={self.cycles} need at least as many steps, the run has {total}; take more epochs or fewer cycles",
        )
        cycle = clock.step * self.cycles // total
        begin, end = (-(-turn * total // self.cycles) for turn in (cycle, cycle + 1))
        exploring = min(round(self.exploration * (end - begin)), end - begin - 1)
        cosine = (1 + math.cos(math.pi * (clock.step - begin) / (end - begin))) / 2
        factor = self.floor + (1 - self.floor) * cosine
        done, num = clock.step - begin - exploring, end - begin - exploring
        if done < 0:
            return Moment(factor)
        wanted = min(self.samples_per_cycle, num)
        index = done * wanted // num
        full = (done + 1) * wanted // num > index
        return Moment(factor, cycle * self.samples_per_cycle + index if full else None, sampling=True)

    def _move(self, state: State, push: Leaves) -> None:
        """Add the push to the positions, or to the velocities and these to the positions."""
        velocities = state.slots.get(_VELOCITY)
        for name, leaf in state.members.params.items():
            leaf.add_(push[name] if velocities is None else velocities[name].mul_(1 - self.alpha).add_(push[name]))


def add_noise(leaves: Leaves, scale: float, clock: Clock) -> None:
    """Add normal numbers to leaves `(member, ...)`, in place; those of a member derive from its own seed and the step.

    Leaves are gone through by name, as a checkpoint keeps no other order.
    """
    num_members = len(next(iter(leaves.values())))
    generators = [seeds.generator(clock.seed, "member", i, "noise", clock.step) for i in range(num_members)]
    for name in sorted(leaves):
        for own, generator in zip(leaves[name].unbind(0), generators, strict=True):
            own.add_(torch.randn(own.shape, generator=generator, dtype=own.dtype).to(own.device), alpha=scale)
