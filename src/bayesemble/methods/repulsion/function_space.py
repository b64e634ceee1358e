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

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Batch, Clock, Info, Inputs, Leaves, OutputFunction, Outputs, map_tensors, tensors_of
from bayesemble.execute.executor import Executor
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import observe
from bayesemble.methods.repulsion import density_scores, interacting
from bayesemble.methods.repulsion.interacting import InteractingMethod
from bayesemble.task.likelihoods import Categorical
from bayesemble.task.task import OF_LIKELIHOOD, BoundTask

_POOL, _POOL_BUFFERS = "prior_draws", "prior_buffers"


def prepare(method: InteractingMethod, state: State, task: BoundTask, seed: int) -> State:
    """Add networks drawn from the prior, which stand for the prior over functions."""
    if method.anchored:
        raise SettingError("anchored=True shifts a prior over weights; in function space leave it off")
    if task.prior is None or not method.function_prior:
        return state
    count = method.prior_draws
    drawn = [_prior_draw(task, seed, number - count) for number in range(count)]
    pool = {name: torch.stack([one[name] for one in drawn]) for name in task.shapes}
    buffers = task.new_members(count, seed).buffers
    return replace(state, slots=state.slots | {_POOL: pool, _POOL_BUFFERS: buffers})


def step(
    method: InteractingMethod,
    state: State,
    batch: Batch,
    context: Context,
    all_members: Members | None = None,
) -> tuple[State, Info]:
    """Move the members, driven by likelihood and prior and repelled by one another's outputs.

    `all_members` are those that repel, if there are others besides; those that move come last.
    """
    task, executor, clock = context.task, context.executor, context.clock
    members, factor, info, found = state.members, method.driving_factor(clock), Info(), Info()
    measure, points = interacting.is_due(method, state, task, clock), _points(method, batch, clock)
    prior = _prior_features(method, state, task, executor, points, batch, clock)
    all_members = all_members or members
    finished = all_members.part(0, all_members.num_members - members.num_members)
    still = _features_of(method, task, executor, finished, points, batch) if finished.num_members else None

    def couple(outputs: Outputs) -> Tensor:
        log_likelihood = _log_likelihoods(task, outputs, batch)
        features = outputs["features"].flatten(1)
        positions = features.detach() if still is None else torch.cat([still, features.detach()])
        gram, dim = interacting.products([positions])
        interacting.check_finite(gram, "outputs", clock)
        forces = method.forces(gram, dim - _lost(method, task, outputs["features"][0]))
        pull = method.prior_every * _prior_score(prior, features.detach())
        push = -forces.repelling[-len(features) :].to(features.dtype) @ (positions - positions[0])
        drift = log_likelihood.sum()
        info["loss"] = -log_likelihood.detach()
        if measure or forces.driving is not None:
            slope = torch.autograd.grad(drift, outputs["outputs"], retain_graph=True)[0].flatten(1)
        if measure:
            driving = torch.cat([task.data_factor * slope, pull], 1).norm(dim=1)
            found.update(interacting.norms(driving, forces.repelling, gram))
        if forces.driving is not None:  # members share what drives them: D s in the place of s
            mix = forces.driving.to(features.dtype)
            pull = mix @ pull
            drift = drift + (outputs["outputs"].flatten(1) * (mix @ slope - slope)).sum()
        return factor * drift + (features * (factor * pull + push)).sum() / task.data_factor

    random = context.random_seeds(members)
    function = _member_function(method, task, points)
    direction = task.data_gradient(executor.coupled_gradients(function, couple, members, batch, random, task.allocator))
    if not method.function_prior:
        task.add_prior_gradient(direction, members.params, factor=factor)
    state = method.ascend(interacting.keep_estimate(state, found) if measure else state, direction, context)
    return state, info | interacting.last_norms(state)


def _member_function(method: InteractingMethod, task: BoundTask, points: Inputs | None) -> OutputFunction:
    """Outputs of one member on the batch, its features where functions are compared, and the likelihood's leaves."""

    def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Outputs:
        seen = observe(task, method.adversarial, params, buffers, inputs, targets)
        there = seen["outputs"] if points is None else task.forward(params, buffers, points)
        own = {OF_LIKELIHOOD + name: leaf for name, leaf in task.likelihood_leaves(params).items()}
        return seen | {"features": _features(method, task, there)} | own

    return function


def _log_likelihoods(task: BoundTask, outputs: Outputs, batch: Batch) -> Tensor:
    """The mean log likelihood of each member `(member,)`, over clean and adversarial outputs."""
    leaves = {name: leaf for name, leaf in outputs.items() if name.startswith(OF_LIKELIHOOD)}
    own = 0 if batch.targets_per_member else None
    mapped = torch.vmap(task.log_likelihood, in_dims=(0, own, 0))
    seen = [outputs[name] for name in ("outputs", "adversarial") if name in outputs]
    return torch.stack([mapped(one, batch.targets, leaves) for one in seen]).mean(0)


def _features(method: InteractingMethod, task: BoundTask, outputs: Tensor) -> Tensor:
    """What is compared of outputs `(..., row, output)`; softmax ignores a shift of all logits, so they are centred."""
    kind = _kind(method, task)
    if kind == "centred":
        return outputs - outputs.mean(-1, keepdim=True)
    return F.log_softmax(outputs, -1) if kind == "log_probs" else outputs


def _kind(method: InteractingMethod, task: BoundTask) -> str:
    logits = isinstance(task.likelihood, Categorical)
    if method.features == "auto":
        return "centred" if logits else "outputs"
    if method.features == "log_probs" and not logits:
        raise SettingError(f"features='log_probs' needs a Categorical likelihood, the task has {task.likelihood}")
    return method.features


def _lost(method: InteractingMethod, task: BoundTask, features: Tensor) -> int:
    """How many coordinates of the features follow from the others: one per row of centred or normalised outputs."""
    return features[..., 0].numel() if _kind(method, task) != "outputs" else 0


def _points(method: InteractingMethod, batch: Batch, clock: Clock) -> Inputs | None:
    """The inputs at which functions are compared; None are those of the batch, whose outputs are there anyway."""
    if method.points == "batch":
        if batch.inputs_per_member:
            raise SettingError(
                "members see different rows, so their functions cannot be compared there; use other points"
            )
        return None
    generator = seeds.generator(clock.seed, "points", clock.step)
    if callable(method.points):
        return method.points(generator)
    if method.points != "noise":
        raise SettingError("the sampler of points was not saved with the ensemble; make the method anew to train on")
    if not all(leaf.is_floating_point() for leaf in tensors_of(batch.inputs)):
        raise SettingError("points='noise' adds noise to the inputs, which must be real numbers, not indices")
    return map_tensors(
        lambda leaf: leaf + method.noise * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf),
        batch.inputs,
    )


def _features_of(
    method: InteractingMethod,
    task: BoundTask,
    executor: Executor,
    members: Members,
    points: Inputs | None,
    batch: Batch,
) -> Tensor:
    """Features of members that do not move, `(member, coordinate)`."""

    def function(params: Leaves, buffers: Leaves, inputs: Inputs, _: Tensor) -> Tensor:
        return _features(method, task, task.forward(params, buffers, inputs))

    return executor.outputs(function, members, batch.inputs if points is None else points, False).flatten(1)


def _prior_features(
    method: InteractingMethod,
    state: State,
    task: BoundTask,
    executor: Executor,
    points: Inputs | None,
    batch: Batch,
    clock: Clock,
) -> Tensor | None:
    """Features of the networks drawn from the prior on the first rows `(draw, coordinate)`; one of them is new."""
    pool = state.slots.get(_POOL)
    if pool is None or clock.step % method.prior_every:
        return None
    number = clock.step // method.prior_every % method.prior_draws
    for name, leaf in _prior_draw(task, clock.seed, clock.step).items():
        pool[name][number].copy_(leaf)
    weights = torch.full((method.prior_draws,), 1 / method.prior_draws, device=state.members.weights.device)
    drawn = Members(pool, state.slots.get(_POOL_BUFFERS, {}), weights, state.members.shared)
    few = map_tensors(lambda leaf: leaf[: method.prior_points], batch.inputs if points is None else points)
    return _features_of(method, task, executor, drawn, few, batch)


def _prior_score(prior: Tensor | None, features: Tensor) -> Tensor:
    """Score of the prior over functions at the members' features; zero at the rows where it is not looked at."""
    pull = torch.zeros_like(features)
    if prior is not None:
        width = prior.shape[1]
        pull[:, :width] = density_scores.ssge(prior.double(), at=features[:, :width].double())
    return pull


def _prior_draw(task: BoundTask, seed: int, number: int) -> Leaves:
    assert task.prior is not None
    return task.prior.sample(task.shapes, seeds.generator(seed, "prior draw", number), task.dtype)
