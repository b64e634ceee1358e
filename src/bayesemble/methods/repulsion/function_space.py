"""Repulsion between functions: the outputs of the networks at some inputs, instead of their weights.

With f_i the outputs of member i, s_i the gradient of its log likelihood in f_i, p_i that of a prior over functions, and
D, R as in `interacting.py`,

    u = D (factor * (s + p)) - R f,      phi_i = J_i^T u_i,   J_i = d f_i / d w_i

One vector-Jacobian product brings the forces back to the weights: it is the gradient of a number made of the outputs of
all members, in which u counts as constant. The Jacobian is the one at the inputs that are compared.

The prior over functions is what the prior over weights implies: networks drawn from it are run on a few rows, and SSGE
estimates the score of their outputs at those of the members. Each time, one of these networks is drawn anew.

Reference: D'Angelo & Fortuin (2021); Wang et al. (2019).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import (
    Batch,
    Clock,
    Info,
    Inputs,
    Leaves,
    OutputFunction,
    Outputs,
    Targets,
    exact,
    map_tensors,
    tensors_of,
)
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import observe, prior_factor
from bayesemble.methods.repulsion import density_scores, interacting
from bayesemble.methods.repulsion.interacting import InteractingMethod, Space
from bayesemble.methods.repulsion.samplers import Sampler
from bayesemble.task.adapters.frozen_calls import Prepared
from bayesemble.task.likelihoods import Categorical
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.task import BoundTask

POINTS = ("batch", "noise")
FEATURES = ("auto", "outputs", "centred", "log_probs", "probs")

_POOL, _POOL_BUFFERS = "prior_draws", "prior_buffers"


@dataclass(frozen=True, kw_only=True)
class FunctionSpace(Space):
    """Members are compared by their outputs."""

    features: str = setting("auto", "what functions are compared by; auto centres logits", choices=FEATURES)
    points: str | Sampler = setting(
        "batch", "where functions are compared: batch, noise (added to it), or a sampler", choices=POINTS
    )
    noise: float = setting(0.1, "standard deviation of that noise", least=0)
    function_prior: bool = setting(True, "a prior over functions in the place of that over weights")
    prior_draws: int = setting(10, "networks drawn from the prior that stand for the prior over functions", least=2)
    prior_points: int = setting(8, "rows at which the prior over functions is compared", least=1)
    prior_every: int = setting(
        8, "that prior acts at every n-th step, n times as strong; each time costs a forward pass", least=1
    )

    training_slots = (*Space.training_slots, _POOL, _POOL_BUFFERS)

    def prepare(self, method: InteractingMethod, state: State, task: BoundTask, seed: int) -> State:
        """Add networks drawn from the prior, which stand for the prior over functions."""
        if method.anchored:
            raise SettingError("anchored=True shifts a prior over weights; in function space leave it off")
        if task.max_batch is not None:
            raise SettingError(
                "members are compared by their outputs on the whole batch, which max_batch would split; leave it out, "
                "or use space='weight'"
            )
        state = super().prepare(method, state, task, seed)
        if task.prior is None or not self.function_prior:
            return state
        count = self.prior_draws
        drawn = [_prior_draw(task, seed, number - count) for number in range(count)]
        pool = {name: torch.stack([one[name] for one in drawn]) for name in task.shapes}
        fresh = task.new_members(count, int(seed))  # the same networks, whichever members are here
        buffers = {name: leaf for name, leaf in fresh.buffers.items() if name not in state.members.shared}
        return replace(state, slots=state.slots | {_POOL: pool, _POOL_BUFFERS: buffers})

    def step(
        self,
        method: InteractingMethod,
        state: State,
        batch: Batch,
        context: Context,
        all_members: Members | None = None,
    ) -> tuple[State, Info]:
        """Move the members, driven by likelihood and prior and repelled by one another's outputs."""
        task, members, clock = context.task, state.members, context.clock
        points, measure = self._points(batch, clock), self.is_due(state, context)
        all_members = all_members or members
        finished = all_members.part(0, all_members.num_members - members.num_members)
        number = _NumberToClimb(
            method=method,
            space=self,
            context=context,
            batch=batch,
            prior=self._prior_features(state, context, points, batch),
            finished=self._features_of(context, finished, points, batch) if finished.num_members else None,
            measure=measure,
        )
        function, random = self._member_function(method, task, points), context.random_seeds(members)
        gradients = context.executor.coupled_gradients(function, number, members, batch, random, task.allocator)
        direction = task.data_gradient(gradients)
        if not self.function_prior:
            _add_prior_over_weights(direction, state, context, method.driven(context), number.shares)
        state = method.ascend(interacting.keep_estimate(state, number.norms) if measure else state, direction, context)
        return state, {"loss": number.losses} | interacting.told(state, method.driven(context), task)

    def common_leaves(self, slot: str, leaves: Leaves) -> tuple[str, ...]:
        """The networks drawn from the prior are those of all members."""
        return tuple(leaves) if slot in (_POOL, _POOL_BUFFERS) else super().common_leaves(slot, leaves)

    def kind_of_step(self, context: Context) -> Hashable | None:
        """Steps are on their own where points are drawn at random; those on which the prior acts are alike."""
        kind = super().kind_of_step(context)
        if self.points != "batch" or kind is None:
            return None
        return kind, self.function_prior and context.task.prior is not None and self._prior_acts(context.clock)

    def draw_ahead(self, state: State, context: Context) -> None:
        """One of the networks that stand for the prior is drawn anew each time that it acts."""
        pool, clock = state.slots.get(_POOL), context.clock
        if pool is None or not self._prior_acts(clock):
            return
        number = clock.step // self.prior_every % self.prior_draws
        for name, leaf in _prior_draw(context.task, clock.seed, clock.step).items():
            pool[name][number].copy_(leaf)

    def _prior_acts(self, clock: Clock) -> bool:
        return clock.step % self.prior_every == 0

    def _member_function(self, method: InteractingMethod, task: BoundTask, points: Inputs | None) -> OutputFunction:
        """Outputs of one member on the batch, its features where functions are compared, leaves of the likelihood."""

        def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Outputs:
            seen = observe(task, method.adversarial, params, buffers, inputs, targets)
            there = seen["outputs"] if points is None else task.forward(params, buffers, points)
            own = {OF_LIKELIHOOD + name: leaf for name, leaf in task.likelihood_leaves(params).items()}
            return seen | {"features": self._features(task, there)} | own

        return function

    def _features(self, task: BoundTask, outputs: Tensor) -> Tensor:
        """What is compared of outputs `(..., row, output)`; softmax ignores a shift of logits, so they are centred."""
        kind = self._kind(task)
        if kind == "centred":
            return outputs - outputs.mean(-1, keepdim=True)
        if kind == "probs":
            return F.softmax(outputs, -1)
        return F.log_softmax(outputs, -1) if kind == "log_probs" else outputs

    def _kind(self, task: BoundTask) -> str:
        logits = isinstance(task.likelihood, Categorical)
        if self.features == "auto":
            return "centred" if logits else "outputs"
        if self.features in ("log_probs", "probs") and not logits:
            raise SettingError(
                f"features={self.features!r} needs a Categorical likelihood, the task has {task.likelihood}"
            )
        return self.features

    def dependent(self, task: BoundTask, features: Tensor) -> int:
        """How many coordinates of the features follow from the others: one per row of centred or normalised outputs."""
        return features[..., 0].numel() if self._kind(task) != "outputs" else 0

    def _points(self, batch: Batch, clock: Clock) -> Inputs | None:
        """The inputs at which functions are compared; None are those of the batch, whose outputs are there anyway."""
        if self.points == "batch":
            if batch.inputs_per_member:
                raise SettingError(
                    "members see different rows, so their functions cannot be compared there; use other points"
                )
            return None
        generator = seeds.generator(clock.seed, "points", clock.step)
        if callable(self.points):
            return self.points(generator)
        if self.points != "noise":
            raise SettingError(
                "the sampler of points was not saved with the ensemble; make the method anew to train on"
            )
        rows = batch.inputs.inputs if isinstance(batch.inputs, Prepared) else batch.inputs
        if not all(leaf.is_floating_point() for leaf in tensors_of(rows)):
            raise SettingError("points='noise' adds noise to the inputs, which must be real numbers, not indices")
        return map_tensors(
            lambda leaf: leaf + self.noise * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf),
            rows,
        )

    def _features_of(self, context: Context, members: Members, points: Inputs | None, batch: Batch) -> Tensor:
        """Features of members that do not move, `(member, coordinate)`."""

        def function(params: Leaves, buffers: Leaves, inputs: Inputs, _: Tensor) -> Tensor:
            return self._features(context.task, context.task.forward(params, buffers, inputs))

        inputs = batch.inputs if points is None else points
        return context.executor.outputs(function, members, inputs, per_member=False).flatten(1)

    def _prior_features(self, state: State, context: Context, points: Inputs | None, batch: Batch) -> Tensor | None:
        """Features of the networks drawn from the prior on the first rows `(draw, coordinate)`; one of them is new."""
        pool = state.slots.get(_POOL)
        if pool is None or not self._prior_acts(context.clock):
            return None
        if not context.recorded:
            self.draw_ahead(state, context)
        weights = torch.full((self.prior_draws,), 1 / self.prior_draws, device=state.members.weights.device)
        shared = {name: leaf for name, leaf in state.members.buffers.items() if name in state.members.shared}
        drawn = Members(pool, shared | state.slots.get(_POOL_BUFFERS, {}), weights, state.members.shared)
        few = map_tensors(lambda leaf: leaf[: self.prior_points], batch.inputs if points is None else points)
        return self._features_of(context, drawn, few, batch)


@dataclass(kw_only=True)
class _NumberToClimb:
    """The number that is made of the outputs of all members and has phi for its gradient in their weights.

    It also keeps what is told of a step: the losses, and the norms of the forces if they are measured.
    """

    method: InteractingMethod
    space: FunctionSpace
    context: Context
    batch: Batch
    prior: Tensor | None
    """Features of networks drawn from the prior `(draw, coordinate)`, where it acts."""
    finished: Tensor | None
    """Features of members that repel and do not move `(member, coordinate)`."""
    measure: bool
    losses: Tensor = field(init=False)
    shares: Tensor | None = field(init=False)
    """What each member is driven by, `(member, member)`; None is its own gradient alone."""
    norms: Info = field(init=False)

    def __call__(self, outputs: Outputs) -> Tensor:
        """factor * log likelihoods + f . u, where u counts as constant."""
        task, factor, team = self.context.task, self.method.driven(self.context), self.context.team
        log_likelihood = _log_likelihoods(self.context, outputs, self.batch)
        self.losses = -log_likelihood.detach()
        features = outputs["features"].flatten(1)
        here = team.everyone(features.detach())
        positions = here if self.finished is None else torch.cat([self.finished, here])
        gram, dim = interacting.products([positions], self.method.centred)
        interacting.check_finite(gram, "outputs", self.context)
        forces = self.method.forces_in(task, gram, dim - self.space.dependent(task, outputs["features"][0]))
        pull = task.prior_weight * self.space.prior_every * _prior_score(self.prior, features.detach())
        moving = team.own(forces.repelling[-len(here) :].to(features))
        push = -moving @ (positions - positions[0] if self.method.centred else positions)
        drift = log_likelihood.sum()
        self.shares = None if forces.driving is None else forces.driving.to(features)
        if self.measure or self.shares is not None:
            slope = torch.autograd.grad(drift, outputs["outputs"], retain_graph=True)[0].flatten(1)
        if self.measure:
            driving = factor * torch.cat([task.data_factor * slope, pull], 1).norm(dim=1)
            self.norms = interacting.norms(driving, forces.repelling, gram, team)
            interacting.watch(self.norms, self.context)
        if self.shares is not None:  # members share what drives them: D s in the place of s
            own = team.own(self.shares)
            pull = own @ team.everyone(pull)
            drift = drift + (outputs["outputs"].flatten(1) * (own @ team.everyone(slope) - slope)).sum()
        return factor * drift + (features * (factor * pull + push)).sum() / task.data_factor


def _log_likelihoods(context: Context, outputs: Outputs, batch: Batch) -> Tensor:
    """The mean log likelihood of each member `(member,)`, over clean and adversarial outputs."""
    seen = [name for name in ("outputs", "adversarial") if name in outputs]

    def mean_over_seen(own: Leaves, _: Leaves, __: Inputs, targets: Targets) -> Tensor:
        return torch.stack([context.task.log_likelihood(own[name], targets, own) for name in seen]).mean()

    weights = torch.ones(len(outputs["outputs"]))  # which nobody asks for
    targets_alone = replace(batch, inputs=torch.empty(0), inputs_per_member=False)
    return context.executor.values(mean_over_seen, Members(outputs, {}, weights), targets_alone)


def _add_prior_over_weights(
    direction: Leaves, state: State, context: Context, factor: float | Tensor, shares: Tensor | None
) -> None:
    """Add the gradient of the prior over weights, in place; members share it as they share that of the likelihood."""
    members, own_factor, task, team = state.members, prior_factor(state), context.task, context.team
    factor = factor if own_factor is None else factor * own_factor
    if shares is None:
        task.add_prior_gradient(direction, members.params, factor=factor)
        return
    prior = {name: torch.zeros_like(leaf) for name, leaf in direction.items()}
    task.add_prior_gradient(prior, members.params, factor=factor)
    own = [leaf for name, leaf in prior.items() if name not in members.shared]
    for block in interacting.blocks(own, team):
        columns = team.columns(interacting.joined(block))
        mixed = team.from_columns(shares.to(columns.dtype) @ columns, sum(part.shape[1] for part in block))
        for part, found in interacting.with_parts(block, mixed):
            part.copy_(found)
    for name, leaf in direction.items():
        leaf.add_(prior[name])


def _prior_score(prior: Tensor | None, features: Tensor) -> Tensor:
    """Score of the prior over functions at the members' features; zero at the rows where it is not looked at."""
    pull = torch.zeros_like(features)
    if prior is not None:
        width = prior.shape[1]
        pull[:, :width] = density_scores.ssge(exact(prior), at=exact(features[:, :width])).to(pull)
    return pull


def _prior_draw(task: BoundTask, seed: int, number: int) -> Leaves:
    assert task.prior is not None
    return task.prior.sample(task.shapes, seeds.generator(seed, "prior draw", number), task.dtype)
