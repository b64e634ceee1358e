"""SWAG: a Gaussian around the last part of training, with the mean and covariance of the weights seen there.

    mean = average of the snapshots,   var = their variance in each coordinate,   D = the last K of (snapshot - mean)

    w = mean + sqrt(scale) * ( sqrt(var) z1 + D^T z2 / sqrt(K - 1) ),     z1, z2 standard normal

so that the covariance is scale * (diag(var) + D^T D / (K - 1)): half of each with the default scale of 0.5. One z2
serves all leaves, so weights of different layers stay correlated. Scale 0 is stochastic weight averaging (SWA); several
members are MultiSWAG. Until training is over, predictions are those of the members; then each network that is drawn has
batch-norm statistics of its own.

Reference: Maddox et al. (2019), "A simple baseline for Bayesian uncertainty in deep learning"; Wilson & Izmailov (2020)
for several modes.
"""

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch

from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Info, Leaves, TrainingData
from bayesemble.methods import numbered_draws
from bayesemble.methods.along_training import running_moments
from bayesemble.methods.along_training.running_moments import DEVIATIONS, MEAN, SQUARES
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.task.task import BoundTask


@dataclass(frozen=True, kw_only=True)
class SWAG(GradientMethod):
    """A Gaussian fitted to the weights along the last part of training."""

    num_members: int = setting(1, "number of independently started modes; several are MultiSWAG", least=1)
    rank: int = setting(
        20, "how many of the last deviations from the mean make the low-rank part of the covariance", least=2
    )
    scale: float = setting(0.5, "factor on the covariance; 0 is SWA", least=0)
    diagonal: bool = setting(False, "leave out the low-rank part")
    start: float = setting(0.75, "share of training after which snapshots are taken", within="[0, 1)")
    snapshots: int = setting(40, "how many snapshots are taken, evenly spread; fewer if there are fewer steps", least=2)
    draws: int = setting(30, "networks drawn for a prediction; with batch norm, the most that can be drawn", least=1)

    independent = True
    drawn_slots = (*running_moments.SLOTS, *numbered_draws.SLOTS)
    needs_every_epoch = True  # snapshots are taken up to the end

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members, with nothing collected."""
        state = super().init(task, seed)
        slots = running_moments.start(state.members.params, 0 if self.diagonal else self.rank)
        return replace(state, slots=state.slots | slots)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint; now and then, take a snapshot."""
        gradients, info = self.uphill(state, batch, context)
        state = self.ascend(state, gradients, context)
        running_moments.follow(state, context.clock, self.start, self.snapshots)
        return state, info

    def kind_of_step(self, context: Context) -> Hashable | None:
        """Steps after which no snapshot is taken are alike."""
        return None if running_moments.is_due(context.clock, self.start, self.snapshots) else ""

    def passed_through(self, state: State, networks: Sequence[Leaves]) -> State:
        """Each network is a snapshot."""
        return running_moments.collect_all(state, networks)

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Check that there is enough, and measure batch-norm statistics for each network that will be drawn."""
        count = running_moments.num_snapshots(state)
        if count < 2:
            warnings.warn(
                f"training stopped after {count} snapshots, too few for a Gaussian: predictions are those of the "
                "members. Stop later, or lower start",
                stacklevel=2,
            )
            return state
        if count < self.rank and not self.diagonal:
            warnings.warn(f"SWAG took {count} snapshots, so that its rank is {count}, not {self.rank}", stacklevel=2)
        return numbered_draws.prepare(state, self._networks, self.draws, data, context)

    def can_draw(self, state: State) -> bool:
        """Networks from the Gaussian, once there is one."""
        return numbered_draws.ROOTS in state.slots

    def usual_draws(self, state: State) -> int:
        """As many as the settings say, or as statistics were measured for, if some members were left out since."""
        return numbered_draws.limited(self.draws, state)

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, from each member in turn; with batch norm, those whose statistics were measured."""
        return numbered_draws.draw(state, numbers, seed, self._networks)

    def normal_weights(self, state: State) -> tuple[Leaves, Leaves] | None:
        """The mean, and scale * (var + sum of squared deviations / (K - 1))."""
        if not self.can_draw(state):
            return None
        count, rank = running_moments.num_snapshots(state), running_moments.rank(state)
        variances = {name: leaf.clamp(min=0) / count for name, leaf in state.slots[SQUARES].items()}
        if rank:
            kept = state.slots[DEVIATIONS]
            squares = {name: kept[name][:, :rank].square().sum(1) / (rank - 1) for name in variances}
            variances = {name: leaf + squares[name] for name, leaf in variances.items()}
        return state.slots[MEAN], {name: self.scale * leaf for name, leaf in variances.items()}

    def _networks(self, state: State, numbers: range, roots: list[int]) -> Members:
        """mean + sqrt(scale) * ( sqrt(var) z1 + D^T z2 / sqrt(K - 1) ), one z2 for all leaves of a network."""
        members, slots = state.members, state.slots
        count, rank = running_moments.num_snapshots(state), running_moments.rank(state)
        owners = [number % members.num_members for number in numbers]
        names = sorted(slots[MEAN])  # a checkpoint keeps no other order
        sizes = [slots[MEAN][name][0].numel() for name in names]
        generators = numbered_draws.generators(numbers, roots)
        drawn = torch.stack([torch.randn(rank + sum(sizes), generator=generator) for generator in generators])
        common, *own = drawn.to(members.weights.device).split([rank, *sizes], dim=1)
        leaves: Leaves = {}
        for name, z in zip(names, own, strict=True):
            mean, squares = slots[MEAN][name][owners], slots[SQUARES][name][owners]
            spread = (squares.clamp(min=0) / count).sqrt() * z.to(mean).reshape(mean.shape)
            if rank:
                deviations = slots[DEVIATIONS][name][owners, :rank]
                spread += torch.einsum("nk,nk...->n...", common.to(mean), deviations) / math.sqrt(rank - 1)
            leaves[name] = mean + math.sqrt(self.scale) * spread
        return replace(in_turn(members, numbers, set(leaves)), params=leaves)
