"""Subspace inference: sample, or fit a Gaussian, in a few directions around the average of the last weights.

    w = mean + P^T z,     log p(z | data) = log p(data | w(z)) / temperature - |z|^2 / (2 std^2) + constant

The directions P are the widest of the deviations along training (`basis="pca"`), random ones of the same length, or
those of the plane of a curve of good networks from each member to the next (`basis="curve"`, two or more members; the
last leads to the first). The few coordinates z are sampled by elliptical slice sampling (`inference="ess"`), or a
Gaussian with a variance for each of them is fitted (`inference="vi"`). All data enter each evaluation of the density,
in batches; batch norm uses the statistics of the batch, and each network that is kept gets statistics of its own.
Several members, several subspaces.

The prior of z above is the paper's, in units of what training went through, and has nothing to do with the prior of the
task. `prior="task"` takes that one: what the subspace cuts out of the normal prior of the weights, so that

    log p(z | data) = ( log p(data | w(z)) / temperature + log p(w(z)) ) / task temperature + constant

is the posterior of the task, given that w lies in the subspace; it is the whole one if the subspace is the whole space.

Reference: Izmailov et al. (2019), "Subspace inference for Bayesian deep learning".
"""

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info, Leaves, MemberFunction, Targets, TrainingData, total_weight
from bayesemble.methods.along_training import running_moments
from bayesemble.methods.along_training.running_moments import DEVIATIONS, MEAN
from bayesemble.methods.base import Context
from bayesemble.methods.geometry import batch_norm, curves, subspaces
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.task.priors import NormalPrior
from bayesemble.task.running import network_leaves
from bayesemble.task.task import BoundTask

_BASIS, _POINTS, _BUFFERS = "subspace_basis", "subspace_points", "subspace_buffers"  # slots


@dataclass(frozen=True, kw_only=True)
class Subspace(GradientMethod):
    """Inference in a few directions around the average of the last weights."""

    num_members: int = setting(1, "number of independently started modes, each with a subspace of its own", least=1)
    dim: int | None = setting(None, "number of directions; None is 5, or the 2 of the plane of a curve", least=1)
    basis: str = setting(
        "pca",
        "directions: pca (widest along training), random, or curve (from each member to the next)",
        choices=("pca", "random", "curve"),
    )
    inference: str = setting(
        "ess", "how coordinates are found: ess (elliptical slice sampling) or vi (a Gaussian)", choices=("ess", "vi")
    )
    temperature: float = setting(
        1.0, "divides the log likelihood; large values keep draws near the prior of z", above=0
    )
    std: float = setting(
        1.0, "standard deviation of the prior of each coordinate; 1 is the width seen along training", above=0
    )
    prior: str = setting(
        "subspace",
        "prior of the coordinates: normal in units of the trajectory (subspace), or that of the task's weights (task)",
        choices=("subspace", "task"),
    )
    rank: int = setting(20, "how many of the last deviations directions are found from", least=2)
    start: float = setting(0.75, "share of training after which snapshots are taken", within="[0, 1)")
    snapshots: int = setting(40, "how many snapshots are taken, evenly spread; fewer if there are fewer steps", least=2)
    draws: int = setting(30, "networks that are kept for predictions", least=1)
    warmup: int = setting(10, "slice-sampling steps of each chain before networks are kept", least=0)
    vi_epochs: int = setting(20, "passes over the data with which the Gaussian is fitted", least=1)
    vi_rate: float = setting(0.1, "learning rate of that fit", above=0)
    curve_epochs: int = setting(50, "passes over the data with which curves are trained, for basis='curve'", least=1)

    drawn_slots = (*running_moments.SLOTS, _BASIS, _POINTS, _BUFFERS)
    needs_every_epoch = True  # snapshots are taken up to the end

    def __post_init__(self) -> None:
        super().__post_init__()
        plane = self.basis != "curve" or self.dim in (None, 2)
        require(plane, f"the plane of a curve has two directions; leave out dim={self.dim}")
        plain = self.basis != "curve" or (isinstance(self.learning_rate, int | float) and not self.rates_differ)
        require(plain, "basis='curve' trains curves between members, at one learning rate; give a single number")
        few = self.num_directions <= self.rank or self.basis == "curve"
        require(few, f"{self.num_directions} directions cannot be found from rank={self.rank} deviations")
        own = self.prior == "subspace" or self.std == 1
        require(own, f"std={self.std} is of the subspace's own prior; with prior='task' leave it out")

    @property
    def num_directions(self) -> int:
        """Number of coordinates of each member."""
        return (2 if self.basis == "curve" else 5) if self.dim is None else self.dim

    @property
    def apart(self) -> str | None:
        """Curves lead from member to member."""
        return "curves lead from one member to the next" if self.basis == "curve" else None

    @property
    def exchanges(self) -> bool:
        """Members that can be held apart do not meet."""
        return False

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members, with nothing collected."""
        if self.prior == "task" and not isinstance(task.prior, NormalPrior):
            raise SettingError(
                f"prior='task' cuts the subspace out of a NormalPrior, the task has {task.prior}; give it one, or "
                "leave prior='subspace'"
            )
        state = super().init(task, seed)
        if self.basis == "curve":
            require(self.num_members > 1, "a curve leads from one member to another: basis='curve' needs num_members=2")
            return state
        return replace(state, slots=state.slots | running_moments.start(state.members.params, self.rank))

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint; now and then, unless curves are wanted, take a snapshot."""
        gradients, info = self.uphill(state, batch, context)
        state = self.ascend(state, gradients, context)
        if self.basis != "curve":
            running_moments.follow(state, context.clock, self.start, self.snapshots, self.num_directions + 1)
        return state, info

    def kind_of_step(self, context: Context) -> Hashable | None:
        """Steps after which no snapshot is taken are alike."""
        due = self.basis != "curve" and running_moments.is_due(context.clock, self.start, self.snapshots)
        return None if due else ""

    def passed_through(self, state: State, networks: Sequence[Leaves]) -> State | None:
        """Each network is a snapshot, unless a curve is wanted."""
        return None if self.basis == "curve" else running_moments.collect_all(state, networks)

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Find directions, then coordinates, then batch-norm statistics."""
        found = running_moments.rank(state) if self.basis != "curve" else math.inf
        if found <= self.num_directions:
            warnings.warn(
                f"training stopped after {found} snapshots, too few for {self.num_directions} directions: predictions "
                "are those of the members. Stop later, or lower start",
                stacklevel=2,
            )
            return state
        task, count = context.task, state.members.num_members
        generators = [seeds.generator(context.clock.seed, "member", index, "subspace") for index in range(count)]
        centre, basis = self._plane(state, data, context, generators)
        begin = torch.zeros(count, self.num_directions, dtype=torch.float64)
        if self.prior == "task":
            centre, basis, begin = _under_task_prior(task, centre, basis)
        state = replace(state, slots=state.slots | {MEAN: centre, _BASIS: basis})
        each = math.ceil(self.draws / count)
        infer = self._sample if self.inference == "ess" else self._fit
        points = infer(state, data, context, begin, each, generators)
        state = replace(state, slots=state.slots | {_POINTS: {"points": points}})
        names = batch_norm.norm_buffers(task.module)
        moved = [self._moved(state, points[:, i]) for i in range(each)]
        parts = [batch_norm.refreshed(task, networks, data, context.executor) for networks in moved]
        own = {name: torch.stack([part.buffers[name] for part in parts], 1) for name in names}
        return replace(state, slots=state.slots | ({_BUFFERS: own} if own else {}))

    def _plane(
        self, state: State, data: TrainingData, context: Context, generators: list[torch.Generator]
    ) -> tuple[Leaves, Leaves]:
        """The centre of each subspace and its directions."""
        if self.basis == "curve":
            return subspaces.of_curve(self._curves(state.members, data, context, generators))
        centre = state.slots[MEAN]
        principal = subspaces.principal(state.slots[DEVIATIONS], running_moments.rank(state), self.num_directions)
        if self.basis == "pca":
            return centre, principal
        lengths = subspaces.basis_products(principal).diagonal(dim1=1, dim2=2).sqrt()
        return centre, subspaces.random(centre, self.num_directions, lengths[:, :2].mean(1), generators)

    def _curves(
        self, members: Members, data: TrainingData, context: Context, generators: list[torch.Generator]
    ) -> Leaves:
        """Control points `(member, 3, ...)` of a curve from each member to the next."""
        own = members.unshared()
        points = curves.straight(own.params, {name: leaf.roll(-1, 0) for name, leaf in own.params.items()}, 3)
        curves.train(
            points,
            "bezier",
            context.task,
            own.buffers,
            data,
            context.executor,
            epochs=self.curve_epochs,
            learning_rate=self.member_rates(context.clock.seed)[0],
            generators=generators,
        )
        return points

    def _moved(self, state: State, points: Tensor) -> Members:
        """The members moved to the points `(member, dim)` of their subspaces."""
        params = subspaces.weights_at(state.slots[MEAN], state.slots[_BASIS], points)
        return replace(state.members, params=params)

    def _divisor(self, task: BoundTask) -> float:
        """What the log likelihood is divided by."""
        return self.temperature * (task.temperature if self.prior == "task" else 1.0)

    def _sample(
        self,
        state: State,
        data: TrainingData,
        context: Context,
        begin: Tensor,
        num: int,
        generators: list[torch.Generator],
    ) -> Tensor:
        """Points `(member, num, dim)` by elliptical slice sampling; `warmup` points before them are left out."""

        def log_likelihood(points: Tensor) -> Tensor:
            return _log_likelihood(self._moved(state, points), data, context) / self._divisor(context.task)

        samples = subspaces.elliptical_slice(log_likelihood, begin, self.std, self.warmup + num, generators)
        return samples[:, self.warmup :].contiguous()

    def _fit(
        self,
        state: State,
        data: TrainingData,
        context: Context,
        begin: Tensor,
        num: int,
        generators: list[torch.Generator],
    ) -> Tensor:
        """Points drawn from Normal(mean, width^2), which maximises E[log p(data|w(z))] / temperature - KL."""
        task, shape = context.task, (state.members.num_members, self.num_directions)
        mean, divisor = begin.clone().requires_grad_(), self._divisor(task)
        log_width = torch.full(shape, math.log(self.std / 10), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([mean, log_width], lr=self.vi_rate)
        for _ in range(self.vi_epochs):
            for batch in data():
                noise = _normal(shape, generators)
                points = mean.detach() + log_width.detach().exp() * noise
                with batch_norm.batch_statistics(task.module):
                    function, networks = batch_norm.log_likelihood_of(task), self._moved(state, points)
                    _, slopes = context.executor.gradients(function, networks, batch)
                slope = subspaces.pulled_back(slopes, state.slots[_BASIS]).cpu().double() * task.num_data / divisor
                kl = (log_width.exp() ** 2 + mean**2) / (2 * self.std**2) - log_width
                surrogate = kl.sum() - (slope * (mean + log_width.exp() * noise)).sum()
                optimizer.zero_grad()
                (surrogate / task.num_data).backward()
                optimizer.step()
        return torch.stack([(mean + log_width.exp() * _normal(shape, generators)).detach() for _ in range(num)], 1)

    def can_draw(self, state: State) -> bool:
        """Networks of the subspaces, once coordinates were found."""
        return _POINTS in state.slots

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, from each member in turn; after the last that was kept, the first comes again."""
        slots, count = state.slots, state.members.num_members
        points = slots[_POINTS]["points"]
        owners = [number % count for number in numbers]
        turns = [number // count % points.shape[1] for number in numbers]
        centre, basis = ({n: leaf[owners] for n, leaf in slots[slot].items()} for slot in (MEAN, _BASIS))
        params = subspaces.weights_at(centre, basis, points[owners, turns])
        base = in_turn(state.members, numbers, set(params))
        own = {name: leaf[owners, turns] for name, leaf in slots.get(_BUFFERS, {}).items()}
        return replace(base, params=params, buffers=base.buffers | own, shared=base.shared - own.keys())


def _under_task_prior(task: BoundTask, centre: Leaves, basis: Leaves) -> tuple[Leaves, Leaves, Tensor]:
    """Centre and basis in which the task's prior, at its temperature, is standard; and where the old centre is."""

    def gradient(params: Leaves) -> Leaves:
        pulls = {name: torch.zeros_like(leaf) for name, leaf in network_leaves(params).items()}
        task.add_prior_gradient(pulls, params)
        return pulls

    found = subspaces.under_prior(centre, basis, gradient)
    if found is None:
        raise SettingError(
            "the directions seen along training are not independent of one another, so the task's prior has no density "
            "in their coordinates; lower dim, or raise learning_rate or snapshots"
        )
    return found


def _normal(shape: tuple[int, int], generators: list[torch.Generator]) -> Tensor:
    return torch.stack([torch.randn(shape[1], generator=own) for own in generators]).double()


def _at(function: MemberFunction, targets: Targets) -> MemberFunction:
    """The function with targets that all members share."""
    return lambda params, buffers, inputs, _: function(params, buffers, inputs, targets)


def _log_likelihood(members: Members, data: TrainingData, context: Context) -> Tensor:
    """Log likelihood of all rows, `(member,)`, in double precision; batch norm uses the statistics of each batch."""
    task, executor = context.task, context.executor
    total, rows = torch.zeros(members.num_members, dtype=torch.float64), 0.0
    for batch in data():
        with batch_norm.batch_statistics(task.module):
            if batch.targets_per_member:
                value, _ = executor.gradients(batch_norm.log_likelihood_of(task), members, batch)
            else:
                function = _at(batch_norm.log_likelihood_of(task), batch.targets)
                value = executor.outputs(function, members, batch.inputs, batch.inputs_per_member)
        size = total_weight(batch.targets_of(0))
        total, rows = total + size * value.cpu().double(), rows + size
    return total * task.num_data / rows
