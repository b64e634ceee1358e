"""Stochastic gradient Markov chain Monte Carlo with a cyclical step size: chains that visit mode after mode.

    SGLD     w <- w + h grad log p(w, data) + sqrt(2 h) noise
    SGHMC    v <- (1 - alpha) v + h grad log p(w, data) + sqrt(2 h alpha) noise,    w <- w + v

with h = learning rate / N, as learning rates refer to the mean loss. Both leave exp(log joint) in place as h goes to 0.
A temperature needs no other noise: `Task` divides the log joint by it. In every cycle the learning rate falls by a
cosine. In the first part, exploration, there is no noise, and gradients are clipped: it is SGD (with momentum
1 - alpha). In the rest, sampling, there is noise and no clipping. The first half of sampling lets a chain forget the
mode it comes from; in the second, networks are collected. All chains run side by side, each with noise of its own.

    rate_k = learning rate * ( floor + (1 - floor) (1 + cos(pi r_k)) / 2 ),    r_k the share of the cycle that is done

How large steps may be: nothing is accepted or refused, so they widen the law. Along a direction in which the log joint
has curvature -c, the variance is 1/c / (1 - h c / (4 - 2 alpha)), with alpha = 1 for SGLD. Gradients of B of N rows
have noise of their own; where its covariance is the curvature, as for a model that fits, it multiplies the variance by
about 1 + h c (N / B - 1) / (2 alpha). So, with C the largest curvature that a chain has met (`stiffness.py`, measured
at the beginning of each part), steps of

    h = excess_variance / C / ( 1 / (4 - 2 alpha) + (N / B - 1) / (2 alpha) )

add the share `excess_variance` in the stiffest direction, and less in all others. While sampling, the cosine does not
fall below them: small posteriors are sampled whatever their units. Nor does it rise above those of B = N, so that no
chain flies off. A chain needs some alpha / (h c) steps, and at least some 2 / alpha, to forget where it was; directions
for which sampling is too short have too little variance. With many batches h is small, which leaves the cosine.

`excess_variance=None` is that cosine alone. With `cycles=1, floor=1.0, exploration=0.0` besides it is plain SGLD or
SGHMC with a constant step.

Reference: Welling & Teh (2011), "Bayesian learning via stochastic gradient Langevin dynamics"; Chen, Fox & Guestrin
(2014), "Stochastic gradient Hamiltonian Monte Carlo"; Zhang et al. (2020), "Cyclical stochastic gradient MCMC for
Bayesian deep learning".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Clock, Info, Leaves, total_weight
from bayesemble.execute.optimizers.fused import clip_per_member
from bayesemble.methods.along_training import kept_networks
from bayesemble.methods.along_training.kept_networks import Moment
from bayesemble.methods.along_training.stiffness import ITERATIONS, stiffness
from bayesemble.methods.base import Chains, Context, Method
from bayesemble.task.task import BoundTask

SAMPLERS = ("sghmc", "sgld")
_VELOCITY, _STIFFNESS = "velocity", "stiffness"  # slots


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
    exploration: float = setting(0.5, "share of each cycle without noise", within="[0, 1)")
    excess_variance: float | None = setting(
        0.1,
        "share of variance that steps of sampling may add in the stiffest direction; None: any, whatever the step is",
        within="(0, 1)",
    )
    samples_per_cycle: int = setting(
        3, "networks collected of each chain and cycle, evenly spaced in the second half of sampling", least=1
    )
    clip: float | None = setting(
        1.0, "largest norm of each chain's gradient of the mean loss while exploring; None cuts nothing", above=0
    )

    independent = True
    changeable = ("learning_rate", "clip")
    drawn_slots = kept_networks.SLOTS
    training_slots = (_VELOCITY, _STIFFNESS)
    needs_every_epoch = True  # networks are collected up to the end

    moves_members_apart = True

    @property
    def friction(self) -> float:
        """The share of the velocity that is lost in a step."""
        return self.alpha if self.sampler == "sghmc" else 1.0

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the chains where networks start, at rest."""
        members = task.new_members(self.num_members, seed)
        slots = kept_networks.make(members, self.cycles * self.samples_per_cycle, task.allocator)
        if self.excess_variance is not None:
            slots[_STIFFNESS] = {"largest": torch.zeros(self.num_members, dtype=torch.float64)}
        if self.sampler == "sghmc":
            slots[_VELOCITY] = task.allocator.zeros_like(members.params, _VELOCITY)
        return State(members, slots)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move all chains, with noise if they are sampling, and collect them if it is time."""
        task, members, now = context.task, state.members, self.moment(context.clock)
        measured = self._measure(state, batch, context)
        values, gradients = context.gradients(members, batch)
        uphill = {
            name: leaf.div_(task.num_data) for name, leaf in task.log_joint_gradient(gradients, members.params).items()
        }
        if self.clip is not None and not now.sampling:
            clip_per_member(uphill, self.clip, members.shared)
        rates = self._rates(state, now, batch, task)
        for leaf in uphill.values():
            for own, rate in zip(leaf.unbind(0), rates.tolist(), strict=True):
                own.mul_(rate)
        if now.sampling:
            add_noise(uphill, (2 * rates * self.friction / task.num_data).sqrt().tolist(), context.clock)
        self._move(state, uphill)
        if now.keep is not None:
            kept_networks.put(state, now.keep)
        return state, {"loss": -values} | measured

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
        begin, sampling, end = self._stages(clock)
        cosine = (1 + math.cos(math.pi * (clock.step - begin) / (end - begin))) / 2
        factor = self.floor + (1 - self.floor) * cosine
        if clock.step < sampling:
            return Moment(factor)
        wanted = min(self.samples_per_cycle, end - sampling)
        collecting = min(sampling + (end - sampling) // 2, end - wanted)
        done, num = clock.step - collecting, end - collecting
        if done < 0:
            return Moment(factor, sampling=True)
        index = done * wanted // num
        full = (done + 1) * wanted // num > index
        cycle = clock.step * self.cycles // total
        return Moment(factor, cycle * self.samples_per_cycle + index if full else None, sampling=True)

    def _stages(self, clock: Clock) -> tuple[int, int, int]:
        """The first step of the cycle, the first with noise, and the first of the next cycle."""
        cycle = clock.step * self.cycles // clock.total_steps
        begin, end = (-(-turn * clock.total_steps // self.cycles) for turn in (cycle, cycle + 1))
        return begin, begin + min(round(self.exploration * (end - begin)), end - begin - 1), end

    def _measure(self, state: State, batch: Batch, context: Context) -> Info:
        """Look, at the beginning of each stage, how stiff the posterior is; the stiffest place of a chain counts."""
        begin, sampling, _ = self._stages(context.clock)
        if self.excess_variance is None or context.clock.step not in (begin, sampling):
            return {}
        largest = state.slots[_STIFFNESS]["largest"]
        found = stiffness(state.members, batch, context)
        largest.copy_(torch.maximum(largest, found.where(found.isfinite(), 0.0)))
        return {"gradients": torch.full_like(largest, 2 + ITERATIONS)}

    def _rates(self, state: State, now: Moment, batch: Batch, task: BoundTask) -> Tensor:
        """The step size of each chain, on the mean loss, `(member,)`."""
        falling = torch.full((self.num_members,), self.learning_rate * now.factor, dtype=torch.float64)
        if self.excess_variance is None or not now.sampling:
            return falling
        largest = state.slots[_STIFFNESS]["largest"].cpu().double()
        batches = task.num_data / total_weight(batch.targets_of(0))
        of_steps, of_batches = 1 / (4 - 2 * self.friction), (batches - 1) / (2 * self.friction)
        allowed = task.num_data * self.excess_variance / largest
        return torch.where(largest > 0, falling.clamp(allowed / (of_steps + of_batches), allowed / of_steps), falling)

    def _move(self, state: State, push: Leaves) -> None:
        """Add the push to the positions, or to the velocities and these to the positions."""
        velocities = state.slots.get(_VELOCITY)
        for name, leaf in state.members.params.items():
            leaf.add_(push[name] if velocities is None else velocities[name].mul_(1 - self.alpha).add_(push[name]))


def add_noise(leaves: Leaves, scales: list[float], clock: Clock) -> None:
    """Add normal numbers to leaves `(member, ...)`, in place, with a standard deviation for each member.

    Those of a member derive from its own seed and the step. Leaves are gone through by name, as a checkpoint keeps no
    other order.
    """
    generators = [seeds.generator(clock.seed, "member", i, "noise", clock.step) for i in range(len(scales))]
    for name in sorted(leaves):
        for own, scale, generator in zip(leaves[name].unbind(0), scales, generators, strict=True):
            own.add_(torch.randn(own.shape, generator=generator, dtype=own.dtype).to(own.device), alpha=scale)
