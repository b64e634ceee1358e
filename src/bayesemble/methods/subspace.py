"""Subspace inference: sample, or fit a Gaussian, in a few directions around the average of the last weights.

    w = mean + P^T z,     log p(z | data) = log p(data | w(z)) / temperature - |z|^2 / (2 std^2) + constant

The directions P are the widest of the deviations along training (`basis="pca"`), or random ones of the same length. The
few coordinates z are sampled by elliptical slice sampling (`inference="ess"`), or a Gaussian with a variance for each
of them is fitted (`inference="vi"`). All data enter each evaluation of the density, in batches; batch norm uses the
statistics of the batch, and each network that is kept gets statistics of its own. Several members, several subspaces.

Reference: Izmailov et al. (2019), "Subspace inference for Bayesian deep learning".
"""

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble import particles, seeds, statistics, subspaces, trajectory
from bayesemble.execute.executor import Executor
from bayesemble.members import Members, State
from bayesemble.particles import ParticleMethod
from bayesemble.settings import require, setting
from bayesemble.task import Task
from bayesemble.trajectory import DEVIATIONS, MEAN
from bayesemble.types import Batch, Clock, Info, Inputs, Leaves, MemberFunction, TrainingData

_BASIS, _POINTS, _BUFFERS = "subspace_basis", "subspace_points", "subspace_buffers"  # slots


@dataclass(frozen=True, kw_only=True)
class Subspace(ParticleMethod):
    """Inference in a few directions around the average of the last weights."""

    num_members: int = setting(1, "number of independently started modes, each with a subspace of its own")
    dim: int = setting(5, "number of directions")
    basis: str = setting("pca", "directions: pca (widest along training) or random")
    inference: str = setting("ess", "how coordinates are found: ess (elliptical slice sampling) or vi (a Gaussian)")
    temperature: float = setting(1.0, "divides the log likelihood; large values keep draws near the prior of z")
    std: float = setting(1.0, "standard deviation of the prior of each coordinate; 1 is the width seen along training")
    rank: int = setting(20, "how many of the last deviations directions are found from")
    start: float = setting(0.75, "share of training after which snapshots are taken")
    snapshots: int = setting(40, "how many snapshots are taken, evenly spread; fewer if there are not so many steps")
    draws: int = setting(30, "networks that are kept for predictions")
    warmup: int = setting(10, "slice-sampling steps of each chain before networks are kept")
    vi_epochs: int = setting(20, "passes over the data with which the Gaussian is fitted")
    vi_rate: float = setting(0.1, "learning rate of that fit")

    drawn_slots = (*trajectory.SLOTS, _BASIS, _POINTS, _BUFFERS)
    made_from = _POINTS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.basis in ("pca", "random"), f"basis is pca or random, not {self.basis!r}")
        require(self.inference in ("ess", "vi"), f"inference is ess or vi, not {self.inference!r}")
        for name in ("temperature", "std", "vi_rate"):
            require(getattr(self, name) > 0, f"{name} is a positive number, got {getattr(self, name)}")
        for name, least in (("dim", 1), ("rank", 2), ("snapshots", 2), ("draws", 1), ("warmup", 0), ("vi_epochs", 1)):
            require(getattr(self, name) >= least, f"{name} is a number from {least}, got {getattr(self, name)}")
        require(0 <= self.start < 1, f"start is a share of training in [0, 1), got {self.start}")
        require(self.dim <= self.rank, f"{self.dim} directions cannot be found from rank={self.rank} deviations")

    def init(self, task: Task, seed: int) -> State:
        """Start the members, with nothing collected."""
        state = particles.init(self, task, seed)
        return replace(state, slots=state.slots | trajectory.start(state.members.params, self.rank))

    def step(self, state: State, batch: Batch, task: Task, executor: Executor, clock: Clock) -> tuple[State, Info]:
        """Move each member uphill on its own log joint; now and then, take a snapshot."""
        scores, info = particles.scores(self, state, batch, task, executor, clock)
        state = particles.ascend(self, state, scores, task, clock)
        trajectory.follow(state, clock, self.start, self.snapshots, self.dim + 1)
        return state, info

    def finish(self, state: State, task: Task, data: TrainingData, executor: Executor, seed: int) -> State:
        """Find directions, then coordinates, then batch-norm statistics."""
        if trajectory.rank(state) <= self.dim:
            warnings.warn(
                f"training stopped after {trajectory.rank(state)} snapshots, too few for {self.dim} directions: "
                "predictions are those of the members. Stop later, or lower start",
                stacklevel=2,
            )
            return state
        count = state.members.num_members
        generators = [seeds.generator(seed, "member", place, "subspace") for place in range(count)]
        basis = self._basis(state, generators)
        state = replace(state, slots=state.slots | {_BASIS: basis})
        each = math.ceil(self.draws / count)
        infer = self._sample if self.inference == "ess" else self._fit
        points = infer(state, task, data, executor, each, generators)
        state = replace(state, slots=state.slots | {_POINTS: {"points": points}})
        names = statistics.norm_buffers(task.module)
        parts = [statistics.remeasured(task, self._networks(state, points[:, i]), data, executor) for i in range(each)]
        own = {name: torch.stack([part.buffers[name] for part in parts], 1) for name in names}
        return replace(state, slots=state.slots | ({_BUFFERS: own} if own else {}))

    def _basis(self, state: State, generators: list[torch.Generator]) -> Leaves:
        principal = subspaces.principal(state.slots[DEVIATIONS], trajectory.rank(state), self.dim)
        if self.basis == "pca":
            return principal
        lengths = subspaces.basis_products(principal).diagonal(dim1=1, dim2=2).sqrt()
        return subspaces.random(state.slots[MEAN], self.dim, lengths[:, :2].mean(1), generators)

    def _networks(self, state: State, points: Tensor) -> Members:
        """The members moved to the points `(member, dim)` of their subspaces."""
        params = subspaces.weights_at(state.slots[MEAN], state.slots[_BASIS], points)
        return replace(state.members, params=params)

    def _sample(
        self,
        state: State,
        task: Task,
        data: TrainingData,
        executor: Executor,
        num: int,
        generators: list[torch.Generator],
    ) -> Tensor:
        """Points `(member, num, dim)` by elliptical slice sampling; `warmup` points before them are left out."""

        def log_likelihood(points: Tensor) -> Tensor:
            return _log_likelihood(task, self._networks(state, points), data, executor) / self.temperature

        begin = torch.zeros(state.members.num_members, self.dim, dtype=torch.float64)
        samples, _ = subspaces.elliptical_slice(log_likelihood, begin, self.std, self.warmup + num, generators)
        return samples[:, self.warmup :].contiguous()

    def _fit(
        self,
        state: State,
        task: Task,
        data: TrainingData,
        executor: Executor,
        num: int,
        generators: list[torch.Generator],
    ) -> Tensor:
        """Points drawn from Normal(mean, width^2), which maximises E[log p(data|w(z))] / temperature - KL."""
        shape = (state.members.num_members, self.dim)
        mean = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        log_width = torch.full(shape, math.log(self.std / 10), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([mean, log_width], lr=self.vi_rate)
        assert task.num_data is not None
        for _ in range(self.vi_epochs):
            for batch in data():
                noise = _normal(shape, generators)
                points = mean.detach() + log_width.detach().exp() * noise
                with statistics.batch_statistics(task.module):
                    _, slopes = executor.gradients(_function(task), self._networks(state, points), batch)
                slope = subspaces.pulled_back(slopes, state.slots[_BASIS]).double() * task.num_data / self.temperature
                kl = (log_width.exp() ** 2 + mean**2) / (2 * self.std**2) - log_width
                surrogate = kl.sum() - (slope * (mean + log_width.exp() * noise)).sum()
                optimizer.zero_grad()
                (surrogate / task.num_data).backward()
                optimizer.step()
        return torch.stack([(mean + log_width.exp() * _normal(shape, generators)).detach() for _ in range(num)], 1)

    def draw(self, state: State, num: int | None, generator: torch.Generator) -> Members:
        """The networks that were kept; before there are any, the members."""
        if self.made_from not in state.slots:
            return particles.draw(state, num, generator)
        return self.make(state, range(self.draws if num is None else num), generator.initial_seed())

    def make(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, from each member in turn; after the last that was kept, the first comes again."""
        slots, count = state.slots, state.members.num_members
        points = slots[_POINTS]["points"]
        places = [number % count for number in numbers]
        turns = [number // count % points.shape[1] for number in numbers]
        centre, basis = ({n: leaf[places] for n, leaf in slots[slot].items()} for slot in (MEAN, _BASIS))
        params = subspaces.weights_at(centre, basis, points[places, turns])
        base = particles.in_turn(state.members, numbers, set(params))
        own = {name: leaf[places, turns] for name, leaf in slots.get(_BUFFERS, {}).items()}
        return replace(base, params=params, buffers=base.buffers | own, shared=base.shared - own.keys())


def _normal(shape: tuple[int, int], generators: list[torch.Generator]) -> Tensor:
    return torch.stack([torch.randn(shape[1], generator=own) for own in generators]).double()


def _function(task: Task) -> MemberFunction:
    """Mean log likelihood of one member on a batch, with nothing in training but what the caller has put there."""

    def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Tensor:
        return task.log_likelihood(task.forward(params, buffers, inputs), targets, params)

    return function


def _at(function: MemberFunction, targets: Tensor) -> MemberFunction:
    """The function with targets that all members share."""
    return lambda params, buffers, inputs, _: function(params, buffers, inputs, targets)


def _log_likelihood(task: Task, members: Members, data: TrainingData, executor: Executor) -> Tensor:
    """Log likelihood of all rows, `(member,)`, in double precision; batch norm uses the statistics of each batch."""
    total, rows = torch.zeros(members.num_members, dtype=torch.float64), 0
    assert task.num_data is not None
    for batch in data():
        with statistics.batch_statistics(task.module):
            if batch.targets_per_member:
                value, _ = executor.gradients(_function(task), members, batch)
            else:
                function = _at(_function(task), batch.targets)
                value = executor.outputs(function, members, batch.inputs, batch.inputs_per_member)
        size = batch.targets.shape[1 if batch.targets_per_member else 0]
        total, rows = total + size * value.double().cpu(), rows + size
    return total * task.num_data / rows
