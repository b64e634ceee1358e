"""Implicit ensembles: one network, of which some weights are drawn from a few learned components at every pass.

    W = sum_k 1[Z = k] * (M_k + sigma * noise),     Z = k with probability p_k

The family holds Ensemble Model Patching (one Z per layer: K^layers networks), its element-wise form (one per number),
dropout (one per unit, with a component that is zero), DropConnect (one per number of a weight, with such a component;
biases are never left out by themselves) and the explicit ensemble (one for the whole network). Leaves that are not
selected are shared by all draws. The components M_k climb the evidence lower bound, one draw (or a few) of Z for each
batch:

    ELBO = N * E_Z[ mean log p(y | f(x; W)) ] - KL,     -KL = sum_k p_k log p(M_k) + entropy of Z + log p(shared leaves)

so that a component is pulled by the prior with weight p_k and a shared leaf with weight 1 (`kl="exact"`); the paper's
own experiments have weight 1 for all (`kl="single"`). Batch-norm statistics, of which the paper does not speak, are
shared by all draws, or measured for each network that will be drawn (`statistics="own"`).

Reference: Chang, Yao, Williams-King & Lipson (2019), "Ensemble Model Patching: a parameter-efficient variational
Bayesian neural network".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Info, Leaves, TrainingData
from bayesemble.methods import numbered_draws
from bayesemble.methods.base import Context, Extent
from bayesemble.methods.gradient import GradientMethod, in_turn
from bayesemble.methods.implicit import mixing
from bayesemble.methods.implicit.components import (
    BUFFERS_SLOT,
    COMPONENT_STEPS_SLOT,
    COMPONENTS_SLOT,
    MIXING_SLOT,
    PATCHES_SLOT,
    copy_trained,
    keep_buffers,
    leaves_of,
    own_buffers,
    patches_of,
    with_fixed,
)
from bayesemble.methods.implicit.patches import (
    COMPONENT_PREFIX,
    KINDS,
    MIXING_PREFIX,
    Draw,
    Patches,
    assign,
    components_of,
    composed,
    make_patches,
    share_out,
    spread,
    uniform_count,
)
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.select import Wish, layers
from bayesemble.task.task import BoundTask, Task


@dataclass(frozen=True, kw_only=True)
class Patched(GradientMethod):
    """The whole family: components on chosen leaves, assigned per layer, element, unit or network."""

    num_members: int = setting(1, "number of independently started patched networks; draws average over all", least=1)
    components: int | dict[str, int] = setting(
        5, "number of learned components of each chosen leaf; a dict says it for each of several selections", least=1
    )
    assignment: str | dict[str, str] = setting(
        "layer", "what shares a draw; a dict says it for each of several selections", choices=KINDS
    )
    rate: float | dict[str, float] = setting(
        0.0, "probability of the component that is zero; a dict says it for each of several selections", within="[0, 1)"
    )
    select: Wish = setting("norm+output", "leaves that are drawn: norm, output, input, sums of these, names, ...")
    sigma: float = setting(0.0, "standard deviation of the noise around each component", least=0)
    mixing: str = setting(
        "uniform",
        "probabilities of the components: uniform, or learned (needs two training draws)",
        choices=("uniform", "learned"),
    )
    kl: str = setting(
        "exact",
        "how the prior weighs components: exact, or single (all as strong as shared leaves)",
        choices=("exact", "single"),
    )
    training_draws: int = setting(1, "draws for each batch in training", least=1)
    draws: int = setting(20, "networks drawn for a prediction, unless told otherwise", least=1)
    statistics: str = setting(
        "shared",
        "batch-norm statistics: shared by all draws, or own ones of `draws` networks",
        choices=("shared", "own"),
    )
    jitter: float = setting(0.1, "noise on components that start equal, as a share of the size of their leaf", least=0)
    start: nn.Module | None = setting(None, "a trained network to start from, instead of a fresh one")
    train: str = setting(
        "all",
        "what is trained: all, components alone, or alternating (shared leaves at one step, components at the next)",
        choices=("all", "components", "alternating"),
    )

    independent = True
    common_slots = (PATCHES_SLOT,)
    drawn_slots = (COMPONENTS_SLOT, MIXING_SLOT, BUFFERS_SLOT, *numbered_draws.SLOTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = self.mixing == "learned" and self.training_draws < 2
        require(not alone, "mixing='learned' compares draws with one another: set training_draws=2 or more")
        require(not self.anchored, "anchored=True is for members without components; leave it off")

    @property
    def gradients_per_step(self) -> int:
        """Every draw of a batch takes gradients of its own."""
        return super().gradients_per_step * self.training_draws

    @property
    def training_slots(self) -> tuple[str, ...]:
        """Those of the optimiser, and the count of its steps on components."""
        return (*super().training_slots, COMPONENT_STEPS_SLOT)

    @property
    def needs_training(self) -> bool:
        """Components beside the first are learned; what dropout leaves out is not."""
        counts = self.components.values() if isinstance(self.components, dict) else [self.components]
        return max(counts) > 1

    def patches(self, task: Task) -> Patches:
        """Which leaves of a network are drawn, and how."""
        if task.mixed:
            raise SettingError("components are for networks of one architecture, the task has several")
        names = task.select(self.select)
        kinds, components, rates = (self._by_leaf(what, names, task) for what in ("assignment", "components", "rate"))
        asked = {name: Draw(kinds[name], components[name], rates[name]) for name in names}
        return make_patches(task.module, layers(task.module, names), asked)

    def _by_leaf(self, what: str, names: list[str], task: Task) -> dict[str, Any]:
        """A setting that holds for all chosen leaves, or says for several selections what it is; the first counts."""
        value = getattr(self, what)
        if not isinstance(value, dict):
            return dict.fromkeys(names, value)
        chosen = {wish: task.select(wish) for wish in value}
        found = {name: value[wish] for wish in reversed(chosen) for name in chosen[wish]}
        missing = [name for name in names if name not in found]
        require(not missing, f"{what} says nothing of {', '.join(missing[:5])}, which select={self.select!r} means")
        return found

    def extent(self, task: Task) -> Extent:
        """What a member has beside a plain network, and how many networks it stands for."""
        patches, shapes = self.patches(task), task.shapes
        sizes = {name: math.prod(shapes[name]) for name in patches}
        extra = sum((patch.components - 1) * sizes[name] for name, patch in patches.items())
        if self.mixing == "learned":
            extra += sum({patch.key: patch.components for patch in patches.values()}.values())
        powers = []
        for choices in sorted({patch.choices for patch in patches.values()} - {1}, reverse=True):
            alike = {name: patch for name, patch in patches.items() if patch.choices == choices}
            powers.append((choices, uniform_count(alike, shapes)))
        return Extent(extra, tuple(powers), sum(sizes.values()))

    def kl_divergence(self, state: State, task: BoundTask) -> Tensor:
        """KL from the prior to what is drawn, `(member,)`: see `mixing.kl_divergence`."""
        patches = patches_of(state)
        shares = self._probabilities(state, patches)
        return mixing.kl_divergence(leaves_of(state), patches, shares, task, self.sigma)

    def from_prior(self, task: BoundTask, seed: int) -> State:
        """A state whose leaves and components are drawn from the prior, instead of being trained."""
        state = self.init(task, seed)
        assert task.prior is not None
        for name, shape in task.shapes.items():
            for k, part in enumerate(components_of(leaves_of(state), name)):
                for member, leaf in enumerate(part):
                    own = seeds.generator(seed, "member", member, "prior", name, k)
                    leaf.copy_(task.prior.sample({name: shape}, own, task.dtype)[name])
        return state

    def common_leaves(self, slot: str, leaves: Leaves) -> tuple[str, ...]:
        """What is drawn, and how, is the same for all members."""
        return tuple(leaves) if slot == PATCHES_SLOT else ()

    def init(self, task: BoundTask, seed: int) -> State:
        """Start from the network's own initialisation, or from a trained network, and spread the components."""
        members, patches = self.new_members(task, seed), self.patches(task)
        if self.start is not None:
            copy_trained(self.start, members)
        slots: dict[str, Leaves] = {PATCHES_SLOT: {name: patch.encode() for name, patch in patches.items()}}
        if others := self._start_components(members, patches, task, seed):
            slots[COMPONENTS_SLOT] = others
        if self.mixing == "learned":
            slots[MIXING_SLOT] = mixing.start(patches, self.num_members, task.dtype)
        whole = next(iter(patches.values()))
        if self.assignment == "network" and whole.components > 1:  # whole networks have statistics of their own
            own = {name: leaf for name, leaf in members.buffers.items() if name not in members.shared}
            require(
                not (own and self.rate),
                f"rate={self.rate} leaves whole networks out, which have no batch-norm statistics; with "
                "assignment='network' set rate=0",
            )
            slots[BUFFERS_SLOT] = {name: torch.stack([leaf] * whole.components, 1) for name, leaf in own.items()}
        slots |= self.make_optimizer().init(self._learned(State(members, slots)), task.allocator)
        if self.train == "alternating" and "steps" in slots:  # each part has a count of its own steps
            slots[COMPONENT_STEPS_SLOT] = {"step": torch.zeros_like(slots["steps"]["step"])}
        return State(members, slots)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Draw networks; their gradients, and the prior, move the components that they were made of."""
        task, patches, leaves = context.task, patches_of(state), leaves_of(state)
        turn = context.clock.step % 2 if self.train == "alternating" else None
        learned = self._learned(state, turn)
        slopes = {name: torch.zeros_like(leaf) for name, leaf in learned.items()}
        draws, values, owners = [], [], list(range(self.num_members))
        for number in range(self.training_draws):
            clock = replace(context.clock, seed=seeds.child(context.clock.seed, "draw", number))
            generators = [seeds.generator(seed, "assignment") for seed in clock.member_seeds(self.num_members)]
            assigned, noise = self._assign(state, patches, owners, generators)
            networks = composed(state.members, leaves, assigned, noise)
            networks = with_fixed(networks, learned, own_buffers(state, assigned, owners))
            value, found = self.likelihood_gradients(networks, batch, replace(context, clock=clock))
            keep_buffers(state, assigned, networks)
            for name, slope in found.items():
                slope.div_(self.training_draws)
                if name in patches:
                    share_out(slope, assigned[name], slopes, name)
                else:
                    slopes[name].add_(slope)
            draws.append(assigned)
            values.append(value)
        logits = {name: leaf for name, leaf in learned.items() if name.startswith(MIXING_PREFIX)}
        if logits:
            slopes |= mixing.data_slopes(logits, patches, draws, values)
        direction = task.data_gradient(slopes)
        self._add_prior(direction, learned, patches, task)
        counted = state.slots.get(COMPONENT_STEPS_SLOT) if turn else None
        slots = state.slots if counted is None else state.slots | {"steps": counted}
        self.ascend(State(replace(state.members, params=learned), slots), direction, context)
        return state, {"loss": -torch.stack(values).mean(0)}

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Measure batch-norm statistics for each network that will be drawn, if they are to have their own."""
        if self.statistics == "shared":
            return state
        return numbered_draws.prepare(state, self._networks, self.draws, data, context)

    def usual_draws(self, state: State) -> int:
        """As many as the settings say, or as statistics were measured for, if some members were left out since."""
        return numbered_draws.limited(self.draws, state)

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, from each member in turn."""
        return numbered_draws.draw(state, numbers, seed, self._networks)

    def _networks(self, state: State, numbers: range, roots: list[int]) -> Members:
        """Networks with a root for each member; of a single member, all that is not drawn is shared."""
        owners = [number % state.members.num_members for number in numbers]
        assigned, noise = self._assign(state, patches_of(state), owners, numbered_draws.generators(numbers, roots))
        return self.networks_of(state, owners, assigned, noise)

    def networks_of(self, state: State, owners: list[int], assigned: Leaves, noise: Leaves | None = None) -> Members:
        """The networks of these members that have the assignments `(network, ...)` of each leaf that is drawn."""
        members, leaves = state.members, leaves_of(state)
        shapes = {name: patch.shape(tuple(members.params[name].shape[1:])) for name, patch in patches_of(state).items()}
        assigned = {name: numbers.reshape(-1, *shapes[name]) for name, numbers in assigned.items()}
        buffers = own_buffers(state, assigned, owners)
        base = in_turn(members, owners, {*assigned, *buffers})
        if members.num_members > 1:
            names = {name for one in assigned for name in (one, COMPONENT_PREFIX + one)} & leaves.keys()
            leaves = {name: leaves[name][owners] for name in names}
        drawn = composed(base, leaves, assigned, noise or {})
        return replace(drawn, buffers=drawn.buffers | buffers)

    def _assign(
        self, state: State, patches: Patches, owners: list[int], generators: list[torch.Generator]
    ) -> tuple[Leaves, Leaves]:
        """Assignments and noise of networks `(draw, ...)` from the members `owners`, each with its own generator."""
        params = state.members.params
        shapes = {name: tuple(params[name].shape[1:]) for name in patches}
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        count, numbers = uniform_count(patches, shapes), sum(sizes.values()) if self.sigma else 0
        device = state.members.weights.device
        drawn = [(torch.rand(count, generator=own), torch.randn(numbers, generator=own)) for own in generators]
        uniform, normal = (torch.stack(parts).to(device) for parts in zip(*drawn, strict=True))
        likely = {key: shares[owners] for key, shares in self._probabilities(state, patches).items()}
        assigned = assign(patches, shapes, likely, uniform)
        if not self.sigma:
            return assigned, {}
        noise = dict(zip(sizes, (self.sigma * normal).split(list(sizes.values()), dim=1), strict=True))
        return assigned, {name: part.reshape(-1, *shapes[name]).to(params[name]) for name, part in noise.items()}

    def _probabilities(self, state: State, patches: Patches) -> Leaves:
        return mixing.probabilities(patches, state.slots.get(MIXING_SLOT), state.members.num_members)

    def _learned(self, state: State, turn: int | None = None) -> Leaves:
        """All that the optimiser moves: leaves, components and logits of their probabilities.

        Where they take turns, 0 is that of the shared leaves and 1 that of all others.
        """
        shared = {name for name in state.members.params if name not in state.slots[PATCHES_SLOT]}
        if turn is not None:
            return {name: leaf for name, leaf in leaves_of(state).items() if (name in shared) == (turn == 0)}
        fixed = {name for name in shared if self.train == "components" and not name.startswith(OF_LIKELIHOOD)}
        return {name: leaf for name, leaf in leaves_of(state).items() if name not in fixed}

    def _start_components(self, members: Members, patches: Patches, task: BoundTask, seed: int) -> Leaves:
        """Components but the first, which is the member itself: around it, or, if they are networks, fresh ones."""
        whole = self.assignment == "network" and self.start is None
        numbers = range(1, max(patch.components for patch in patches.values()))
        count = members.num_members
        fresh = [task.new_members(count, seeds.child(seed, "component", n)) if whole else members for n in numbers]
        others = {}
        for name, patch in patches.items():
            if patch.components == 1:
                continue
            parts = [network.params[name] for network in (members, *fresh[: patch.components - 1])]
            generators = [seeds.generator(seed, "member", i, "jitter", name) for i in range(count)]
            first, *rest = spread(parts, self.jitter, generators)
            others[COMPONENT_PREFIX + name] = torch.stack(rest, 1)
            members.params[name].copy_(first)
        return others

    def _add_prior(self, scores: Leaves, learned: Leaves, patches: Patches, task: BoundTask) -> None:
        """Add the pull of the prior: shared leaves feel all of it, components as much as they are likely, or all."""
        logits = {name: leaf for name, leaf in learned.items() if name.startswith(MIXING_PREFIX)}
        if logits:
            mixing.add_prior_gradients(scores, logits, learned, patches, task)
        if task.prior is None:
            return
        shared = {name: learned[name] for name in task.shapes if name in learned and name not in patches}
        task.add_prior_gradient(scores, shared)
        for name, patch in patches.items():
            if name not in learned:
                continue
            equal = learned[name].new_full((1, patch.components), 1 / patch.components)
            share = logits[patch.key].softmax(1) if logits else equal
            weight = ((1 - patch.rate) * share if self.kl == "exact" else torch.ones_like(share)) / task.temperature
            for leaf, part in ((name, weight[:, 0]), (COMPONENT_PREFIX + name, weight[:, 1:])):
                if leaf in scores:
                    pull = task.prior.gradient({name: learned[leaf]}, task.scales)[name]
                    scores[leaf].addcmul_(pull, part.reshape(*part.shape, *[1] * (pull.dim() - part.dim())))


@dataclass(frozen=True, kw_only=True)
class EMP(Patched):
    """Ensemble Model Patching: weight and bias of a chosen layer come from one of K components together."""

    assignment: str | dict[str, str] = setting("layer", "what shares a draw: a layer", choices=KINDS)


@dataclass(frozen=True, kw_only=True)
class ECMP(Patched):
    """Element-wise Ensemble Model Patching: every number of a chosen layer comes from one of K components."""

    assignment: str | dict[str, str] = setting(
        "element", "what shares a draw: nothing, every number has its own", choices=KINDS
    )


@dataclass(frozen=True, kw_only=True)
class Dropout(Patched):
    """Dropout as a distribution over weights: units that enter a layer are left out, the same ones for all rows."""

    components: int | dict[str, int] = setting(1, "number of learned components of each chosen leaf", least=1)
    assignment: str | dict[str, str] = setting("unit", "what shares a draw: the weights of a unit", choices=KINDS)
    rate: float | dict[str, float] = setting(0.1, "probability that a unit is left out", within="[0, 1)")
    select: Wish = setting("not norm", "layers whose units are left out")


@dataclass(frozen=True, kw_only=True)
class DropConnect(Patched):
    """DropConnect: every number of a chosen layer's weights is left out by itself; biases never are."""

    components: int | dict[str, int] = setting(1, "number of learned components of each chosen leaf", least=1)
    assignment: str | dict[str, str] = setting(
        "element", "what shares a draw: nothing, every number has its own", choices=KINDS
    )
    rate: float | dict[str, float] = setting(0.1, "probability that a number is left out", within="[0, 1)")
    select: Wish = setting("not norm", "layers whose numbers (but biases) are left out")


@dataclass(frozen=True, kw_only=True)
class Explicit(Patched):
    """The explicit ensemble as a member of the family: K networks, one of them drawn for each batch."""

    assignment: str | dict[str, str] = setting("network", "what shares a draw: the whole network", choices=KINDS)
    select: Wish = setting("all", "leaves that are drawn: all")
    jitter: float = setting(0.0, "noise on components that start equal, as a share of the size of their leaf", least=0)
