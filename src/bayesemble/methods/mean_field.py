"""Mean-field variational inference: a Gaussian for each weight, independent of all others, that is nearest to the
posterior around one mode.

    q(w) = Normal(mean, std^2) in each coordinate,   maximises   ELBO = N E_q[ mean log p(y | f(x; w)) ] - KL(q || p)

The gradient goes through draws w = mean + std * noise. Rows of a batch have noise of their own where layers allow it
(`noise="local"`, see `noisy_layers`); all other leaves, as those of norm layers, have one draw for a batch, made
before the network runs. The part of the prior is exact for a `NormalPrior`,

    d/d mean = -mean / v,     d/d log std = 1 - std^2 / v,     v the variance of the prior

and estimated from the same draws for others. At a temperature T, likelihood and prior are divided by it, the entropy
of q is not. For linear regression with known noise the answer is known: the mean of the posterior, and the variances
1 / diag(precision), which are smaller than those of the posterior wherever weights are correlated in it. All members
stay around the mode that they come to: this is the rival of ensembles, which have many.

Reference: Graves (2011), "Practical variational inference for neural networks"; Blundell et al. (2015), "Weight
uncertainty in neural networks".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info, Inputs, Leaves, MemberFunction, TrainingData
from bayesemble.methods import numbered_draws
from bayesemble.methods.base import Context, Extent
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.methods.noisy_layers import kinds_of_layers, noise_of_layer, noisy
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.priors import NormalPrior
from bayesemble.task.running import OF_LIKELIHOOD, OF_METHOD
from bayesemble.task.task import BoundTask, Task

_LOG_STD = "log_std"  # slot, (member, ...): logarithms of the standard deviations
_KINDS = "noisy_layers"  # slot: how noise comes into each layer that has it row by row
_STD_PREFIX, _NOISE_PREFIX = OF_METHOD + "log_std.", OF_METHOD + "noise."


@dataclass(frozen=True, kw_only=True)
class MeanField(GradientMethod):
    """Mean-field variational inference: an independent Gaussian for each weight."""

    num_members: int = setting(1, "number of independently started Gaussians, each around a mode of its own", least=1)
    initial_std: float = setting(0.05, "standard deviation that each weight begins with", above=0)
    noise: str = setting(
        "local",
        "noise in training: local (each row its own, where layers allow it) or plain (one draw for a batch)",
        choices=("local", "plain"),
    )
    draws: int = setting(30, "networks drawn for a prediction; with batch norm, the most that can be drawn", least=1)

    independent = True
    drawn_slots = (_LOG_STD, *numbered_draws.SLOTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.anchored, "anchored=True is for members that are points; leave it off")
        require(not self.weight_decay, "weight_decay has no place in a variational posterior; give the task a prior")

    @property
    def training_slots(self) -> tuple[str, ...]:
        """The moments of the optimiser, and how noise comes into layers."""
        return (*super().training_slots, _KINDS)

    @property
    def needs_training(self) -> bool:
        """The standard deviations are learned."""
        return True

    def extent(self, task: Task) -> Extent:
        """As many standard deviations as weights."""
        return Extent(task.num_parameters, (), task.num_parameters)

    def init(self, task: BoundTask, seed: int) -> State:
        """Start narrow around the network's own initialisation."""
        if task.prior is None:
            raise SettingError(
                "mean-field inference needs a prior, without which a weight that the data say nothing of has no "
                "width; give the task one, such as be.NormalPrior()"
            )
        members = self.new_members(task, seed)
        widths = {n: torch.full_like(leaf, math.log(self.initial_std)) for n, leaf in members.params.items()}
        kinds = kinds_of_layers(task) if self.noise == "local" else {}
        slots = {
            _LOG_STD: {name: leaf for name, leaf in widths.items() if not name.startswith(OF_LIKELIHOOD)},
            _KINDS: {name: torch.tensor(kind) for name, kind in kinds.items()},
        }
        return State(members, slots | self.make_optimizer().init(_learned(State(members, slots)), task.allocator))

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Climb the evidence lower bound, estimated from one draw of the noise."""
        task, members, learned = context.task, state.members, _learned(state)
        random = context.clock.member_seeds(members.num_members)
        drawn = _normal(state.slots[_LOG_STD], [seeds.generator(seed, "weights") for seed in random])
        noise = {_NOISE_PREFIX + name: leaf for name, leaf in drawn.items()}
        networks = replace(members, params=learned, buffers=members.buffers | noise)
        function = self._with_noise(context, {name: int(kind) for name, kind in state.slots[_KINDS].items()})
        values, gradients = context.gradients_in_parts(function, networks, batch, random)
        direction = task.data_gradient(gradients)
        _add_prior(direction, learned, drawn, task)
        self.ascend(replace(state, members=replace(members, params=learned)), direction, context)
        return state, {"loss": -values}

    def _with_noise(self, context: Context, kinds: dict[str, int]) -> MemberFunction:
        """The data term of one member whose weights are random; its noise is among the buffers."""
        task, inner = context.task, self.data_term(context.task)

        def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Tensor:
            stds = {n.removeprefix(_STD_PREFIX): leaf.exp() for n, leaf in params.items() if n.startswith(_STD_PREFIX)}
            drawn = {name: buffers[_NOISE_PREFIX + name] for name in stds}
            noise = {name: noise_of_layer(name, stds, drawn) for name in kinds}
            by_row = {f"{name}.{leaf}".lstrip(".") for name in kinds for leaf in ("weight", "bias")}
            moved = {name: params[name] + stds[name] * drawn[name] for name in stds if name not in by_row}
            with noisy(task.module, kinds, noise):
                return inner(params | moved, buffers, inputs, targets)

        return function

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Measure batch-norm statistics for each network that will be drawn."""
        return numbered_draws.prepare(state, self._networks, self.draws, data, context)

    def usual_draws(self, state: State) -> int:
        """As many as the settings say, or as statistics were measured for, if some members were left out since."""
        return numbered_draws.limited(self.draws, state)

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, from each member in turn; with batch norm, those whose statistics were measured."""
        return numbered_draws.draw(state, numbers, seed, self._networks)

    def normal_weights(self, state: State) -> tuple[Leaves, Leaves]:
        """The Gaussian of each member."""
        variances = {name: (2 * leaf).exp() for name, leaf in state.slots[_LOG_STD].items()}
        return {name: state.members.params[name] for name in variances}, variances

    def _networks(self, state: State, numbers: range, roots: list[int]) -> Members:
        """mean + std * noise."""
        owners = [number % state.members.num_members for number in numbers]
        widths = {name: leaf[owners] for name, leaf in state.slots[_LOG_STD].items()}
        noise = _normal(widths, numbered_draws.generators(numbers, roots))
        means = {name: state.members.params[name][owners] for name in widths}
        drawn = {name: mean + widths[name].exp() * noise[name] for name, mean in means.items()}
        base = in_turn(state.members, numbers, set(drawn))
        return replace(base, params=base.params | drawn)


def _learned(state: State) -> Leaves:
    """All that the optimiser moves: means, what the likelihood learns, and logarithms of standard deviations."""
    return state.members.params | {_STD_PREFIX + name: leaf for name, leaf in state.slots[_LOG_STD].items()}


def _normal(like: Leaves, generators: list[torch.Generator]) -> Leaves:
    """Standard normal numbers for leaves `(network, ...)`, each network with its own generator."""
    names = sorted(like)  # a checkpoint keeps no other order
    sizes = [like[name][0].numel() for name in names]
    drawn = torch.stack([torch.randn(sum(sizes), generator=generator) for generator in generators])
    return {
        name: part.to(like[name]).reshape(like[name].shape)
        for name, part in zip(names, drawn.split(sizes, dim=1), strict=True)
    }


def _add_prior(direction: Leaves, learned: Leaves, drawn: Leaves, task: BoundTask) -> None:
    """Add the gradient of E_q[log p(w)] / temperature + entropy of q.

    That of a normal prior is linear in w, so that its mean is its value at the mean, and its slope a difference.
    """
    assert task.prior is not None

    def pull(name: str, leaf: Tensor) -> Tensor:
        assert task.prior is not None
        return task.prior.gradient({name: leaf}, task.scales)[name] / task.temperature

    for name, noise in drawn.items():
        mean, std = learned[name], learned[_STD_PREFIX + name].exp()
        if isinstance(task.prior, NormalPrior | PosteriorPrior):
            here = pull(name, mean)
            slope = std * (pull(name, mean + std) - here)
        else:
            here = pull(name, mean + std * noise)
            slope = std * noise * here
        direction[name].add_(here)
        direction[_STD_PREFIX + name].add_(slope + 1)
