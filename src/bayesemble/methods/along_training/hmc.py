"""Hamiltonian Monte Carlo: chains that glide over the posterior, exact up to what a finite run leaves open.

    H(q, p) = -log p(q, data) + p' M^-1 p / 2,     dq/dt = M^-1 p,     dp/dt = grad log p(q, data)

A step of the method is one transition of all chains on the whole data: momenta p ~ Normal(0, M), a leapfrog trajectory
of random length, and each chain accepts its end with probability min(1, exp(H_start - H_end)). In the warm-up, dual
averaging steers the step size of each chain to the wanted acceptance, so that a chain in a narrow place can leave it,
and the diagonal of M^-1 becomes the variance of the draws of all chains, in windows that double. After the warm-up all
chains take the geometric mean of their step sizes, and nothing is adapted. All rows are one batch, so an epoch is one
transition.

A network with batch norm is sampled with the statistics of the whole data, as it is trained.

Reference: Neal (2011), "MCMC using Hamiltonian dynamics"; Hoffman & Gelman (2014), "The No-U-Turn sampler", section
3.2; Carpenter et al. (2017), "Stan", for the windows.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError
from bayesemble.core.members import Members, State
from bayesemble.core.offload import Allocator
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Clock, Info, Leaves
from bayesemble.methods.along_training import kept_networks
from bayesemble.methods.base import Chains, Context, Method
from bayesemble.task.task import BoundTask

_WINDOWS = (0.1, 0.15, 0.25, 0.45, 0.85)  # shares of the warm-up: where the windows of the mass matrix begin and end
_FEWEST_DRAWS_OF_A_WINDOW = 10
_DIVERGENT = 1000.0  # an energy error beyond this is that of a trajectory that flew off
_JITTER = 0.5  # trajectories have between 0.5 and 1.5 times their mean length
_SETTLING_PASSES = 50  # forward passes after which running statistics (momentum 0.1) forget earlier positions

Pull = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From positions `(chain, d)` to mean log likelihoods `(chain,)` and gradients of the log joint `(chain, d)`."""


@dataclass(frozen=True, kw_only=True)
class HMC(Method):
    """Chains of Hamiltonian Monte Carlo on the whole data: the reference for small networks."""

    num_members: int = setting(4, "number of chains", least=1)
    num_draws: int = setting(100, "draws kept of each chain, evenly spaced after the warm-up", least=1)
    warmup: float = setting(
        0.5, "share of the transitions in which step size and mass adapt; no draw is kept of them", within="[0, 1)"
    )
    acceptance: float = setting(0.8, "mean probability of acceptance that the step size is adapted to", within="(0, 1)")
    trajectory: float = setting(
        math.pi / 2, "mean length of a trajectory, in standard deviations of the posterior", above=0
    )
    max_leapfrog: int = setting(500, "most leapfrog steps of a transition, each a gradient on the whole data", least=1)
    step_size: float = setting(0.01, "leapfrog step before adaptation, in standard deviations of the prior", above=0)

    full_batch = True
    moves_members_apart = True
    drawn_slots = kept_networks.SLOTS

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the chains where networks start, with the variance of the prior for a mass."""
        if task.stochastic:
            raise ModelError(
                "HMC needs a posterior that stays put, but this network draws random numbers in training, as dropout "
                "does; take that layer out, or set its probability to 0"
            )
        if task.mixed:
            raise ModelError("chains of different architectures have different posteriors; fit each architecture alone")
        members = task.new_members(self.num_members, seed)
        together = members.shared & members.params.keys()
        if together:
            raise ModelError(f"each chain samples all parameters itself, but {', '.join(sorted(together))} is shared")
        scales = {name: task.scales.get(name, 1.0) for name in members.params}
        prior = {name: torch.full_like(leaf, scales[name] ** 2) for name, leaf in members.params.items()}
        return State(members, _slots(self, members, flatten(prior)[0].double(), task.allocator))

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """One transition of all chains."""
        task, clock, members = context.task, context.clock, state.members
        inverse_mass, step_size = state.slots["mass"]["inverse"], state.slots["step_size"]["log"].exp()
        wide = inverse_mass.dtype  # double, unless the device has none

        def pull(position: Tensor) -> tuple[Tensor, Tensor]:
            at = replace(members, params=unflatten(position, members.params))
            values, gradients = context.gradients(at, batch)
            return values, flatten(task.log_joint_gradient(gradients, at.params))

        def energy(values: Tensor, position: Tensor, momentum: Tensor) -> Tensor:
            log_joint = task.log_joint(values.to(wide), unflatten(position.to(wide), members.params))
            return (momentum.to(wide).square() * inverse_mass).sum(1) / 2 - log_joint

        start = flatten(members.params)
        momentum, uniform = _random(start, inverse_mass, clock)
        values, gradient = pull(start)
        before = energy(values, start, momentum)
        buffers = {name: leaf.clone() for name, leaf in members.buffers.items() if name not in members.shared}
        num_steps = self._num_leapfrog(step_size, clock)
        end, momentum, end_values = leapfrog(pull, start, momentum, gradient, inverse_mass, step_size, num_steps)
        error = energy(end_values, end, momentum) - before
        divergent = ~(error <= _DIVERGENT)  # an error that is not a number is one too
        probability = error.neg().exp().clamp(max=1.0).masked_fill(divergent, 0.0)

        accepted = uniform < probability
        position = torch.where(accepted[:, None], end, start)
        for name, leaf in unflatten(position, members.params).items():
            members.params[name].copy_(leaf)
        for name, leaf in buffers.items():
            members.buffers[name][~accepted] = leaf[~accepted]
        if clock.step < self._num_warmup(clock):
            self._adapt(state.slots, position.to(wide), probability, clock)
        else:
            self._sample(state, probability, divergent, clock, lambda: _settle(pull, position, members))
        info = {
            "loss": -torch.where(accepted, end_values, values).to(wide),
            "acceptance": probability,
            "divergent": divergent.to(wide),
            "step_size": step_size,
            "gradients": torch.full_like(step_size, 1 + num_steps),
        }
        return state, info

    def networks(self, state: State) -> Members:
        """The draws kept of all chains, chain after chain; before there are any, the positions."""
        return kept_networks.networks(state)

    def chains(self, state: State) -> Chains:
        """The draws kept of each chain, and how its trajectories went after the warm-up."""
        counts = state.slots["sampling"]
        facts = {
            "divergent": float(counts["divergent"].sum()),
            "acceptance": float(counts["acceptance"].mean()) / float(counts["transitions"]),
        }
        return Chains(kept_networks.count(state), facts)

    def _num_warmup(self, clock: Clock) -> int:
        return round(self.warmup * clock.total_steps)

    def _num_leapfrog(self, step_size: Tensor, clock: Clock) -> int:
        """Steps of all chains: of random number, as trajectories of one length may close into circles."""
        uniform = torch.rand((), generator=seeds.generator(clock.seed, "trajectory", clock.step)).item()
        jitter = 1 + _JITTER * (2 * uniform - 1)
        usual = step_size.log().mean().exp().item()
        return max(1, round(jitter * min(self.trajectory / usual, self.max_leapfrog / (1 + _JITTER))))

    def _adapt(self, slots: dict[str, Leaves], position: Tensor, probability: Tensor, clock: Clock) -> None:
        """Learn the step size in every transition, and the mass at the end of each window."""
        step_size, window = slots["step_size"], slots["window"]
        dual_average(step_size, probability, self.acceptance)
        done, num = clock.step + 1, self._num_warmup(clock)
        begin, *ends = [round(share * num) for share in _WINDOWS]
        if begin < done <= ends[-1]:
            count_draws(window, position)
        if done in ends and window["count"] >= _FEWEST_DRAWS_OF_A_WINDOW:
            slots["mass"]["inverse"].copy_(shrunk_variance(window))
            for leaf in (*window.values(), step_size["count"], step_size["error"]):
                leaf.zero_()
            step_size["centre"].copy_(step_size["log_mean"])
        if done == num:
            step_size["log"].fill_(step_size["log_mean"].mean())

    def _sample(
        self, state: State, probability: Tensor, divergent: Tensor, clock: Clock, settle: Callable[[], None]
    ) -> None:
        """Count what happens after the warm-up, and keep draws that are evenly spaced over it."""
        counts, num_warmup = state.slots["sampling"], self._num_warmup(clock)
        counts["transitions"].add_(1)
        counts["acceptance"].add_(probability)
        counts["divergent"].add_(divergent)
        done, num = clock.step - num_warmup, clock.total_steps - num_warmup
        wanted = min(self.num_draws, num)
        index = done * wanted // num
        if (done + 1) * wanted // num > index:
            settle()
            kept_networks.put(state, index)
        if done + 1 == num and counts["divergent"].any():
            warnings.warn(
                f"{int(counts['divergent'].sum())} trajectories diverged after the warm-up: chains shy away from some "
                "part of the posterior; raise acceptance towards 1, take more epochs, or narrow the prior",
                stacklevel=3,
            )


def flatten(leaves: Leaves) -> Tensor:
    """Stacked leaves as a matrix `(chain, d)`, sorted by name, as a checkpoint does not keep their order."""
    return torch.cat([leaves[name].reshape(len(leaves[name]), -1) for name in sorted(leaves)], dim=1)


def unflatten(flat: Tensor, like: Leaves) -> Leaves:
    """Views of a matrix as leaves of the shapes of others."""
    names = sorted(like)
    parts = flat.split([like[name][0].numel() for name in names], dim=1)
    return {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}


def leapfrog(
    pull: Pull, position: Tensor, momentum: Tensor, gradient: Tensor, inverse_mass: Tensor, step_size: Tensor, num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the dynamics from a position where the gradient is known; gives position, momentum, mean log likelihood.

    p <- p + e/2 grad(q),   q <- q + e M^-1 p,   p <- p + e/2 grad(q)

    It is reversible and keeps volumes; the energy is off by O(e^2).

    Shape: position, momentum, gradient `(chain, d)`, inverse mass `(d,)`, step size `(chain,)`.
    """
    step = step_size[:, None].to(position.dtype)
    forward = step * inverse_mass.to(position.dtype)
    momentum = torch.addcmul(momentum, gradient, step / 2)
    for left in reversed(range(num)):
        position = torch.addcmul(position, momentum, forward)
        values, gradient = pull(position)
        momentum = torch.addcmul(momentum, gradient, step if left else step / 2)
    return position, momentum, values


def dual_average(slot: Leaves, reached: Tensor, wanted: float) -> None:
    """Nesterov's dual averaging of the log step size of each chain, with the constants of Hoffman & Gelman but for one.

    error <- (1 - 1/(t + 10)) error + (wanted - reached)/(t + 10),   log e = centre - sqrt(t)/0.2 error,
    mean log e <- t^-0.75 log e + (1 - t^-0.75) mean log e

    Theirs is 0.05 in place of 0.2, for a thousand transitions; in fewer, smaller corrections get closer.
    """
    count = slot["count"].add_(1).item()
    slot["error"].lerp_(wanted - reached, 1 / (count + 10))
    slot["log"].copy_(slot["centre"] - math.sqrt(count) / 0.2 * slot["error"])
    slot["log_mean"].lerp_(slot["log"], count**-0.75)


def count_draws(window: Leaves, position: Tensor) -> None:
    """Add a draw of every chain to Welford's sums."""
    window["count"].add_(len(position))
    away = position - window["mean"]
    window["mean"].add_(away.sum(0) / window["count"])
    window["squares"].add_((away * (position - window["mean"])).sum(0))


def shrunk_variance(window: Leaves) -> Tensor:
    """Variance of a window's draws, as if five more of a thousandth of the mean variance had been seen."""
    count = window["count"]
    variance = window["squares"] / (count - 1)
    return (count * variance + 5 * 1e-3 * variance.mean()) / (count + 5)


def _random(like: Tensor, inverse_mass: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
    """Momenta ~ Normal(0, M), and a uniform number, of each chain."""
    generators = [seeds.generator(clock.seed, "member", i, "hmc", clock.step) for i in range(len(like))]
    normal = torch.stack([torch.randn(like.shape[1], generator=g, dtype=like.dtype) for g in generators])
    uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
    return normal.to(like.device) / inverse_mass.sqrt().to(like.dtype), uniform.to(inverse_mass)


def _settle(pull: Pull, position: Tensor, members: Members) -> None:
    """Running statistics trail behind the positions: let them catch up, so that a draw predicts as it was sampled."""
    moving = [leaf for leaf in members.buffers.values() if leaf.is_floating_point()]
    for _ in range(_SETTLING_PASSES if moving else 0):
        before = [leaf.clone() for leaf in moving]
        pull(position)
        if all(torch.equal(one, other) for one, other in zip(before, moving, strict=True)):
            return


def _slots(method: HMC, members: Members, variance: Tensor, allocator: Allocator) -> dict[str, Leaves]:
    """What is kept beside the positions: adaptation, counts, and room for the draws."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)

    chains = method.num_members
    log = torch.full((chains,), math.log(method.step_size), dtype=torch.float64)
    return {
        "step_size": {
            "log": log,
            "log_mean": log.clone(),
            "centre": log.clone(),
            "error": zeros(chains),
            "count": zeros(),
        },
        "mass": {"inverse": variance},
        "window": {"count": zeros(), "mean": torch.zeros_like(variance), "squares": torch.zeros_like(variance)},
        "sampling": {"transitions": zeros(), "acceptance": zeros(chains), "divergent": zeros(chains)},
        **kept_networks.make(members, method.num_draws, allocator),
    }
