"""Laplace approximation: a Gaussian at each trained member, as wide as the curvature of the posterior there allows.

    q_m(w) = Normal(w_m, T (H_m + D)^-1),     H = GGN of the log likelihood of all rows,  D = precision of the prior

over the selected leaves; the others stay at w_m. T is the temperature of the task. Several members make a mixture of
Gaussians. With `prior="marginal_likelihood"` D = d * I, and d maximises the evidence of the selected leaves, which is
up to a constant

    log Z(d) = log p(y | w_m) + P/2 log d - d/2 |w_m - c|^2 - 1/2 sum_i log(h_i + d),     h: eigenvalues of H

at w_m as it is, for a prior around c (mostly 0). It has one maximum, where d |w_m - c|^2 = sum_i h_i / (h_i + d), the
number of parameters that the data determine. By default outputs are those of the network made linear around w_m, f(x;
w_m) + J(x) (w - w_m), the model that the GGN is the exact curvature of; they are the same if the outputs are linear in
the selected leaves. Of an output layer, all is known from the features that enter it. The outputs of the linear network
are normal with the covariance J S J', which a normal likelihood reads without draws.

References: MacKay (1992), "A practical Bayesian framework for backpropagation networks"; Daxberger et al. (2021),
"Laplace redux"; Immer et al. (2021), "Improving predictions of Bayesian neural nets via local linearization";
Eschenhagen et al. (2021), "Mixtures of Laplace approximations for improved post-hoc uncertainty in deep learning".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.memory import available_memory
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info, Inputs, Leaves, TrainingData, WeightedTargets, exact, map_tensors
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.methods.laplace import by_features, gauss_newton
from bayesemble.methods.laplace.gauss_newton import Network, Rows
from bayesemble.methods.laplace.gaussian_blocks import (
    STRUCTURES,
    Block,
    Layout,
    Precisions,
    best_scale,
    deviation,
    layouts,
    log_evidence,
    memory,
    own_variances,
    pivots,
    spectrum,
    variance,
)
from bayesemble.methods.laplace.kronecker import kronecker, operator
from bayesemble.methods.laplace.output_layer import features_of, is_output_layer
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.priors import NormalPrior, Shapes
from bayesemble.task.running import OF_METHOD
from bayesemble.task.select import Wish
from bayesemble.task.task import BoundTask

logger = logging.getLogger("bayesemble")

SLOT = "laplace"
_CENTER = OF_METHOD + "center."  # among the buffers of a draw: the leaf of the member that it is around
_MEMORY_SHARE = 0.5  # of what is free, for the curvature
_MOST_WHOLE = 10_000  # selected numbers whose whole covariance is worked out: a minute on one core
_POSITION = "position."  # in front of a leaf: its block, and its position there


@dataclass(frozen=True, kw_only=True)
class Laplace(GradientMethod):
    """A Gaussian at each trained network: mixture of Laplace approximations, of the last layer or of any leaves."""

    num_members: int = setting(1, "number of independently started networks; draws average over all", least=1)
    select: Wish = setting("output", "leaves that are uncertain: output, all, norm, names, ...; the others are fixed")
    structure: str = setting(
        "full", "covariance of the selected leaves: full, kron (per layer) or diag", choices=STRUCTURES
    )
    predict: str = setting(
        "glm", "draws are run as glm (made linear around each member), or as samples", choices=("glm", "samples")
    )
    prior: str = setting(
        "task",
        "precision of the prior: that of the task, or chosen by marginal_likelihood",
        choices=("task", "marginal_likelihood"),
    )
    draws: int = setting(30, "networks drawn for a prediction that has no closed form, unless told otherwise", least=1)

    independent = True
    moves_by_gradient_alone = True
    drawn_slots = (SLOT,)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.anchored, "anchored=True spreads the members as the posterior does already; leave it off")

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members, after checking that their Gaussians can be made."""
        names, _ = self._plan(task)
        if task.output_shape is not None:  # refuses a likelihood without curvature
            task.likelihood.information(torch.zeros(1, *task.output_shape), task.likelihood.leaves(task.output_shape))
        _ = task.scales  # refuses a prior that differs by member before it is trained under
        network = Network(task, *task.new_member(seed=0), tuple(names))
        if task.example is not None and features_of(network, task.example) is None:
            if self.structure == "kron":
                operator()
            if self.predict == "glm":
                with torch.no_grad():
                    gauss_newton.linearised(network, map_tensors(lambda leaf: leaf[:2], task.example), network.chosen)
        return super().init(task, seed)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Move each member uphill on its own log joint."""
        if SLOT in state.slots:  # training goes on: Gaussians around where the members were are void
            state = replace(state, slots={name: slot for name, slot in state.slots.items() if name != SLOT})
        gradients, info = self.uphill(state, batch, context)
        return self.ascend(state, gradients, context), info

    def kind_of_step(self, context: Context) -> Hashable:
        """All steps are alike."""
        return ""

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Measure the curvature at each member on all training rows, and make the Gaussians."""
        task = context.task
        names, plan = self._plan(task)
        found = []
        for member, (params, buffers) in enumerate(state.members.split()):
            network = Network(task, params, buffers, tuple(names))
            found.append(self._gaussian(network, plan, data, member))
        stacked = {name: torch.stack([one[name] for one in found]) for name in found[0]}
        return replace(state, slots=state.slots | {SLOT: stacked})

    def can_draw(self, state: State) -> bool:
        """Networks from the Gaussians, once there are any."""
        return SLOT in state.slots

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, around each member in turn."""
        members, slot = state.members, state.slots[SLOT]
        plan = _layouts(slot)
        names = [name for layout in plan for name in layout.names]
        base = in_turn(members, numbers, own=names)
        shapes = {name: tuple(members.params[name].shape[1:]) for name in names}
        away: dict[int, Leaves] = {}
        for index in range(members.num_members):
            # Products depend, in their last bits, on where in memory a matrix starts: so each has a place of its own.
            own = {name: leaf[index].clone() for name, leaf in slot.items()}
            for number in numbers:
                if number % members.num_members == index:
                    away[number] = _away(own, plan, shapes, seeds.generator(seed, number))
        params = dict(base.params)
        for name in names:
            params[name] = params[name] + torch.stack([away[number][name] for number in numbers])
        if self.predict == "samples":
            return replace(base, params=params)
        centers = {_CENTER + name: base.params[name] for name in names}
        return replace(base, params=params, buffers=base.buffers | centers)

    def member_outputs(self, state: State, task: BoundTask, params: Leaves, buffers: Leaves, inputs: Inputs) -> Tensor:
        """Outputs of one draw, `(row, ...)`: of the network made linear around its member, or of the network itself."""
        center = {name.removeprefix(_CENTER): leaf for name, leaf in buffers.items() if name.startswith(_CENTER)}
        if not center:
            return task.forward(params, buffers, inputs)
        away = {name: params[name] - leaf for name, leaf in center.items()}
        return gauss_newton.linearised(Network(task, params | center, buffers, tuple(center)), inputs, away)

    def runs_plainly(self, state: State, task: BoundTask) -> bool:
        """Those of samples, of members themselves, and of an output layer, in which a network is linear."""
        plan = _layouts(state.slots[SLOT]) if self.can_draw(state) and self.predict == "glm" else []
        return not plan or is_output_layer(task, state.members, [name for layout in plan for name in layout.names])

    def outputs_at_once(
        self, state: State, task: BoundTask, drawn: Members, numbers: range, inputs: Inputs
    ) -> Tensor | None:
        """Outputs of draws of an output layer, `(draw, row, ...)`: the rest of a network is run once for all of them.

        They are linear in such a layer, so that those of the linear network and of the network itself are the same.
        """
        names = [name for layout in _layouts(state.slots[SLOT]) for name in layout.names]
        members = state.members.split()
        found: dict[int, Tensor] = {}
        for index, (params, buffers) in enumerate(members):
            own = [place for place, number in enumerate(numbers) if number % len(members) == index]
            seen = features_of(Network(task, params, buffers, tuple(names)), inputs) if own else None
            if own and seen is None:
                return None
            if seen is not None:
                away = {name: drawn.params[name][own] - params[name] for name in names}
                found |= dict(zip(own, by_features.drawn_outputs(seen, away), strict=True))
        return torch.stack([found[place] for place in range(len(numbers))])

    def normal_outputs(self, state: State, task: BoundTask, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
        """The law of the outputs of the linear network: the means f(x; w_m) and the variances J S J'."""
        if self.predict == "samples":
            return None
        found = []
        for index, (params, buffers) in enumerate(state.members.split()):
            slot = {name: leaf[index] for name, leaf in state.slots[SLOT].items()}
            found.append(_normal_outputs(task, params, buffers, slot, inputs))
        means, variances = zip(*found, strict=True)
        return torch.stack(means), torch.stack(variances)

    def normal_weights(self, state: State) -> tuple[Leaves, Leaves] | None:
        """The Gaussian of each member; leaves that are not selected have a variance of 0."""
        if SLOT not in state.slots:
            return None
        slot, params = state.slots[SLOT], state.members.params
        variances = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
        shapes = {name: tuple(leaf.shape[1:]) for name, leaf in params.items()}
        for number, layout in enumerate(_layouts(slot)):
            found = [layout.split(own_variances(own), shapes) for own in _unbound(_factors(slot, number))]
            variances |= {name: torch.stack([one[name] for one in found]) for name in layout.names}
        return params, variances

    def weight_covariances(self, state: State) -> tuple[tuple[str, ...], Tensor] | None:
        """That of the selected leaves, if the structure is full."""
        if SLOT not in state.slots or self.structure != "full":
            return None
        slot = state.slots[SLOT]
        scaled = slot["right.0"] * slot["std.0"]  # `(member, weight, coordinate)` by `(member, 1, coordinate)`
        return _layouts(slot)[0].names, scaled @ scaled.mT

    def _plan(self, task: BoundTask) -> tuple[list[str], list[Layout]]:
        """The selected leaves and how they are laid out; refuse what cannot be honoured, before anything is built."""
        if task.mixed:
            raise SettingError("Laplace is for networks of one architecture, the task has several")
        if task.likelihood.leaves_out:
            raise SettingError(
                f"the curvature counts all outputs, but {task.likelihood} leaves some out; cut the rows to the tokens "
                "that count, or use another method"
            )
        if self.prior == "task" and not isinstance(task.prior, NormalPrior | PosteriorPrior):
            raise SettingError(
                f"a Gaussian needs the precision of a NormalPrior, the task has prior={task.prior}; "
                "give it one, or have it chosen by Laplace(prior='marginal_likelihood')"
            )
        if self.prior == "task" and isinstance(task.prior, PosteriorPrior):
            self._check_posterior(task.prior, task)
        names = task.select(self.select)
        plan = layouts(self.structure, task.module, names)
        limit = _MEMORY_SHARE * available_memory()
        if self._memory(self.structure, plan, task) > limit or not _is_quick(self.structure, names, task):
            self._refuse(task, names, plan, limit)
        return names, plan

    def _check_posterior(self, prior: PosteriorPrior, task: BoundTask) -> None:
        """Refuse a posterior as prior where its standard deviations, or its covariance, cannot be honoured."""
        require(
            self.structure != "kron",
            "structure='kron' takes one standard deviation for each leaf, and the prior that an ensemble was made into "
            "has one for each weight; use structure='full' or 'diag'",
        )
        whole = self.structure == "full" and set(task.select(self.select)) == set(task.shapes)
        require(
            whole or not prior.couples_leaves,
            "the prior has a covariance of all weights, which takes structure='full' and select='all'; or make it by "
            "as_prior() without covariance='full'",
        )

    def _memory(self, structure: str, plan: list[Layout], task: BoundTask) -> int:
        return memory(structure, plan, task.shapes, self.num_members, task.dtype.itemsize)

    def _refuse(self, task: BoundTask, names: list[str], plan: list[Layout], limit: float) -> None:
        """Say how much memory the structure needs, and which one would fit."""
        needs = {}
        for other in STRUCTURES:
            with suppress(SettingError):  # not every layer has a Kronecker product
                needs[other] = self._memory(other, layouts(other, task.module, names), task)
        fitting = [
            f"structure={other!r} needs {_gigabytes(need)}"
            for other, need in needs.items()
            if need <= limit and _is_quick(other, names, task)
        ]
        count, need = sum(math.prod(task.shapes[name]) for name in names), self._memory(self.structure, plan, task)
        needed = f"needs {_gigabytes(need)} of memory, but {_gigabytes(limit)}, half of what is free, can be had"
        if need <= limit:
            needed = f"takes a time that grows with the cube of their number, and is for {_MOST_WHOLE} at most"
        raise SettingError(
            f"structure={self.structure!r} of {count} selected numbers in {self.num_members} members {needed}; "
            f"{' and '.join(fitting) or 'select fewer leaves'}"
        )

    def _gaussian(self, network: Network, plan: list[Layout], data: TrainingData, member: int) -> Leaves:
        """What draws around one member are made of, and its evidence."""

        def rows() -> Rows:
            return ((batch.inputs_of(member), batch.targets_of(member)) for batch in data())

        task, from_task = network.task, self.prior == "task"
        if self.structure == "kron" and any(isinstance(targets, WeightedTargets) for _, targets in rows()):
            raise SettingError("structure='kron' has no weights of rows; use structure='diag' or 'full'")
        total, num_rows = gauss_newton.log_likelihood(network, rows())
        counted = task.data_factor * task.temperature / num_rows  # what a row stands for
        precisions, size = self._prior_at(network)
        blocks = self._blocks(network, rows, plan, num_rows)
        decompose = pivots if from_task and self.structure == "full" else spectrum
        found = [
            decompose(block._replace(right=block.right.mul_(counted)), task.shapes, precisions) for block in blocks
        ]
        values = torch.cat([one.values.flatten() for one in found])
        scale = 1.0 if from_task else best_scale(values, size)
        reported = {"log_evidence": log_evidence(counted * total, values, size, scale)}
        reported |= {} if from_task else {"prior_precision": scale}
        slot = {name: torch.tensor(value, dtype=torch.float64) for name, value in reported.items()}
        for number, (layout, one) in enumerate(zip(plan, found, strict=True)):
            for name, factor in one.factors(scale, task.temperature).items():
                slot[f"{name}.{number}"] = factor.to(network.params[layout.names[0]])
            slot |= {_POSITION + name: torch.tensor([number, index]) for index, name in enumerate(layout.names)}
        return slot

    def _prior_at(self, network: Network) -> tuple[Precisions, float]:
        """The precision D of the prior, and (w - c)' D (w - c) at the weights w, with c its mean."""
        task, chosen = network.task, network.chosen
        prior = task.prior if self.prior == "task" else None
        if isinstance(prior, PosteriorPrior):
            if prior.couples_leaves:
                return prior.root, prior.squared_distance(chosen)
            return {name: prior.stds[name].double() ** -2 for name in chosen}, prior.squared_distance(chosen)
        precisions = {name: 1.0 if prior is None else task.scales[name] ** -2.0 for name in chosen}
        return precisions, sum(precisions[name] * _squared_distance(task, name, leaf) for name, leaf in chosen.items())

    def _blocks(self, network: Network, rows: Callable[[], Rows], plan: list[Layout], num_rows: float) -> list[Block]:
        found = by_features.blocks(network, rows(), self.structure, plan)
        if found is not None:
            return found
        logger.info("the curvature of %s is taken row by row through the whole network", ", ".join(network.names))
        if self.structure == "kron":
            return kronecker(network, rows, plan, int(num_rows))
        return [(gauss_newton.whole if self.structure == "full" else gauss_newton.diagonal)(network, rows(), plan[0])]


def _squared_distance(task: BoundTask, name: str, leaf: Tensor) -> float:
    """|w - c|^2 of a leaf from where the task's prior stands."""
    centers = {} if task.prior is None else task.prior.centers
    return float(exact(leaf - centers[name] if centers else leaf).square().sum())


def _is_quick(structure: str, names: list[str], task: BoundTask) -> bool:
    """Whether a whole matrix over the leaves is decomposed within minutes."""
    return structure != "full" or sum(math.prod(task.shapes[name]) for name in names) <= _MOST_WHOLE


def _layouts(slot: Leaves) -> list[Layout]:
    """The layouts of the blocks, from what is saved."""
    named = {name: leaf for name, leaf in slot.items() if name.startswith(_POSITION)}
    positions = {name.removeprefix(_POSITION): leaf[0].tolist() for name, leaf in named.items()}
    ordered = sorted(positions, key=lambda name: positions[name])
    count = 1 + max(number for number, _ in positions.values())
    groups = [tuple(name for name in ordered if positions[name][0] == block) for block in range(count)]
    return [Layout(names, slot[f"std.{block}"].shape[1]) for block, names in enumerate(groups)]


def _factors(slot: Leaves, number: int) -> Leaves:
    """What draws of a block are made of."""
    return {key: slot[f"{key}.{number}"] for key in ("std", "left", "right") if f"{key}.{number}" in slot}


def _unbound(factors: Leaves) -> list[Leaves]:
    """The factors of each member."""
    count = len(next(iter(factors.values())))
    return [{name: factor[member] for name, factor in factors.items()} for member in range(count)]


def _normal_outputs(
    task: BoundTask, params: Leaves, buffers: Leaves, slot: Leaves, inputs: Inputs
) -> tuple[Tensor, Tensor]:
    """Means and variances `(row, ...)` of the outputs of the network made linear around one member."""
    plan = _layouts({name: leaf.unsqueeze(0) for name, leaf in slot.items()})
    network = Network(task, params, buffers, tuple(name for layout in plan for name in layout.names))
    seen = features_of(network, inputs)
    if seen is not None:
        return seen.outputs, by_features.variances(seen, plan[0], _factors(slot, 0))
    parts = []
    for outputs, slopes in gauss_newton.jacobians(network, inputs):
        shares = [variance(_factors(slot, number), layout.join(slopes)) for number, layout in enumerate(plan)]
        parts.append((outputs, torch.stack(shares).sum(0).reshape(outputs.shape)))
    means, variances = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(variances)


def _away(slot: Leaves, plan: list[Layout], shapes: Shapes, generator: torch.Generator) -> Leaves:
    """One draw of all selected leaves, minus their mean."""
    found: Leaves = {}
    for number, layout in enumerate(plan):
        factors = _factors(slot, number)
        std = factors["std"]
        noise = torch.randn(std.shape, generator=generator, dtype=std.dtype).to(std.device)
        found |= layout.split(deviation(factors, noise), shapes)
    return found


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2g} GB"
