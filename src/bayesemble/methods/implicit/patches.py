"""Networks whose weights are drawn from a few learned components: the mechanics of implicit ensembles.

    W = sum_k 1[Z = k] * (M_k + sigma * noise),    Z = k with probability p_k,    k = 1..K, and one more that is zero

A patch says of a leaf which of its numbers share a Z. Component 1 of a leaf is the leaf of the member itself; the
others lie beside it under the name `components.<leaf>`, `(member, K - 1, ...)`. Assignments are data, drawn before the
network runs, so that every executor gives the same numbers. They are whole numbers from 0 to K - 1, and K for the zero
component.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.task.priors import Shapes

KINDS = ("layer", "element", "unit", "network")
COMPONENT_PREFIX = "components."  # in front of the name of a leaf: its components but the first
MIXING_PREFIX = "mixing."  # in front of the name of a group: the logits of its probabilities


class Patch(NamedTuple):
    """How the numbers of one leaf are assigned to components."""

    kind: str
    """One assignment per layer, per element, per unit that enters the layer, or one for the whole network."""
    group: int
    """The layer that the leaf belongs to, or 0 for the network: leaves of a group have the same probabilities."""
    axis: int
    """Axis of the units that enter the layer, in the leaf of one member."""
    components: int
    """How many components are learned."""
    rate: float
    """The probability of one more, which is zero."""

    @property
    def is_own(self) -> bool:
        """Whether the leaf has assignments of its own, rather than one together with others."""
        return self.kind in ("element", "unit")

    @property
    def choices(self) -> int:
        """How many values a number of the leaf is drawn from."""
        return self.components + (self.rate > 0)

    @property
    def key(self) -> str:
        """What the probabilities of the group are called."""
        return f"{MIXING_PREFIX}{self.kind}-{self.group}"

    def shape(self, leaf: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the assignments of a leaf of this shape, which they are broadcast to."""
        if self.kind == "element":
            return leaf
        return tuple(size if self.kind == "unit" and axis == self.axis else 1 for axis, size in enumerate(leaf))

    def count(self, leaf: tuple[int, ...]) -> int:
        """Number of assignments of a leaf of this shape."""
        return math.prod(self.shape(leaf))

    def encode(self) -> Tensor:
        """As numbers, for a slot of the state."""
        numbers = [KINDS.index(self.kind), self.group, self.axis, self.components, self.rate]
        return torch.tensor(numbers, dtype=torch.float64)

    @staticmethod
    def decode(numbers: Tensor) -> Patch:
        """From the numbers of `encode`."""
        *whole, rate = numbers.tolist()
        kind, group, axis, components = (int(number) for number in whole)
        return Patch(KINDS[kind], group, axis, components, rate)


Patches = dict[str, Patch]
"""Patches by the name of the leaf."""


class Draw(NamedTuple):
    """What is asked for of a leaf: the kind of its assignments, the number of its components and the rate of zero."""

    kind: str
    components: int
    rate: float


def make_patches(module: nn.Module, layers: dict[str, list[str]], asked: dict[str, Draw]) -> Patches:
    """Say how the chosen leaves are assigned.

    A bias is never left out by itself: where one component of single elements is zero, and where units are left out,
    biases are shared by all draws.

    Args:
        layers: Names of the chosen leaves of each layer.
        asked: How each of them is drawn.
    """
    patches = {}
    for number, (layer, names) in enumerate(layers.items()):
        for name in names:
            (kind, components, rate), leaf = asked[name], module.get_parameter(name)
            if not _is_never_left_out(name, leaf, kind, with_zero=rate > 0):
                axis = _axis_of_units(module.get_submodule(layer), leaf) if kind == "unit" else 0
                patches[name] = Patch(kind, 0 if kind == "network" else number, axis, components, rate)
    for name, patch in patches.items():
        first = next(other for other, found in patches.items() if found.key == patch.key)
        require(
            patches[first][3:] == patch[3:],
            f"{first} and {name} have the same probabilities of components, so they need as many components and the "
            "same rate; ask for them by layer, not by single leaf, and of whole networks for one number",
        )
    if not patches:
        raise SettingError(
            "units and single numbers of weights are left out, never biases, and no selected layer has weights; "
            "select others"
        )
    return patches


def _is_never_left_out(name: str, leaf: Tensor, kind: str, with_zero: bool) -> bool:
    """Whether a leaf is shared although it was chosen: no unit enters a bias, nor a leaf without axes."""
    is_bias = "bias" in name.rpartition(".")[2]
    return (is_bias or leaf.dim() == 0) if kind == "unit" else (is_bias and kind == "element" and with_zero)


def _axis_of_units(layer: nn.Module, leaf: Tensor) -> int:
    """Along which axis of a weight the units lie that enter the layer."""
    if isinstance(layer, nn.Embedding) or leaf.dim() == 1:  # words; channels of a norm layer
        return 0
    transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    return 0 if transposed else 1


def uniform_count(patches: Patches, shapes: Shapes) -> int:
    """How many uniform numbers the assignments of one network take."""
    own = sum(patch.count(shapes[name]) for name, patch in patches.items() if patch.is_own)
    return own + len({patch.key for patch in patches.values() if not patch.is_own})


def assign(patches: Patches, shapes: Shapes, probabilities: Leaves, uniform: Tensor) -> Leaves:
    """Assignments `(draw, ...)` of networks, from uniform numbers `(draw, uniform_count)`.

    `probabilities` of each group, `(draw, K)` or, with the zero component, `(draw, K + 1)`. Leaves with one assignment
    together take it from the first of them.
    """
    drawn: Leaves = {}
    together: Leaves = {}
    used = 0
    for name, patch in patches.items():
        shape = patch.shape(shapes[name])
        if patch.is_own or patch.key not in together:
            count = patch.count(shapes[name])
            numbers = _categorical(probabilities[patch.key], uniform[:, used : used + count])
            together[patch.key], used = numbers, used + count
        drawn[name] = together[patch.key].reshape(-1, *shape)
    return drawn


def _categorical(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Whole numbers, k with probability p_k: how many of the cumulated probabilities a uniform number reaches."""
    drawn = torch.zeros(uniform.shape, dtype=torch.uint8, device=uniform.device)
    for end in probabilities.cumsum(1)[:, :-1].to(uniform).unbind(1):
        drawn += uniform >= end.unsqueeze(1)
    return drawn


def components_of(leaves: Leaves, name: str) -> list[Tensor]:
    """Views of the components of a leaf, each `(member, ...)`."""
    others = leaves.get(COMPONENT_PREFIX + name)
    return [leaves[name], *([] if others is None else others.unbind(1))]


def compose(parts: list[Tensor], assigned: Tensor, noise: Tensor | None = None) -> Tensor:
    """The leaf that assignments `(member, ...)` pick: W = sum_k 1[Z = k] (M_k + noise)."""
    result = parts[0]
    for k, component in enumerate(parts[1:], start=1):
        result = torch.where(assigned == k, component, result)
    if noise is not None:
        result = result + noise
    return torch.where(assigned == len(parts), result.new_zeros(()), result)


def share_out(slope: Tensor, assigned: Tensor, into: Leaves, name: str) -> None:
    """Add the gradient of a composed leaf to those of its components: each has the part that it made."""
    into[name].addcmul_(slope, (assigned == 0).to(slope.dtype))
    others = into.get(COMPONENT_PREFIX + name)
    if others is not None:
        components = torch.arange(1, others.shape[1] + 1, device=slope.device).reshape(-1, *[1] * (slope.dim() - 1))
        others.addcmul_(slope.unsqueeze(1), (assigned.unsqueeze(1) == components).to(slope.dtype))


def composed(base: Members, leaves: Leaves, assigned: Leaves, noise: Leaves) -> Members:
    """The members with the leaves that the assignments pick out of the components in `leaves`."""
    drawn = {name: compose(components_of(leaves, name), numbers, noise.get(name)) for name, numbers in assigned.items()}
    return replace(base, params=base.params | drawn)


def spread(parts: list[Tensor], jitter: float, generators: list[torch.Generator]) -> list[Tensor]:
    """Components `(member, ...)` that would start equal, with noise: a share of the size of the leaf (of 1 if 0).

    Each member has its own generator.
    """
    if any(not torch.equal(part, parts[0]) for part in parts):
        return parts
    size = parts[0].reshape(len(parts[0]), -1).square().mean(1).sqrt()
    size = torch.where(size > 0, size, 1.0).reshape(-1, *[1] * (parts[0].dim() - 1))
    noise = [torch.stack([torch.randn(p.shape[1:], generator=own) for own in generators]).to(p) for p in parts]
    return [part + jitter * size * one for part, one in zip(parts, noise, strict=True)]
