"""Planes in weight space: loss, error and difference from the members on a grid of networks.

A plane is an origin and two orthonormal directions. Through three members, by Gram-Schmidt over all parameters,

    u = (w2 - w1) / |w2 - w1|,     v = (w3 - w1 - <w3 - w1, u> u) / |...|,     w(a, b) = w1 + a u + b v

Coordinates are distances in weight space. Parameters of the likelihood count as weights like all others.

Reference: Garipov et al. (2018), "Loss surfaces, mode connectivity, and fast ensembling of DNNs"; for the plane through
the origin, Fort, Hu & Lakshminarayanan (2019), "Deep ensembles: a loss landscape perspective".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.measure import Measured
from bayesemble.methods.geometry import batch_norm
from bayesemble.training.ensemble import Ensemble

_ROUNDING_OF_LENGTHS = 1e-6  # in single precision, as a share of the weights
Grid = tuple[Tensor, Tensor]
Progress = Callable[[int, int], None] | None
"""Told after each part of the grid how many networks are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Basis:
    """An origin and two orthonormal directions in weight space, in double precision."""

    origin: Leaves
    """(...), parameters of one network."""
    directions: Leaves
    """(2, ...), of length one and at right angles over all leaves together."""
    corners: Tensor
    """(member, 2), coordinates of the members that span the plane."""
    members: Members
    """Those members; networks on the plane have the buffers of the first."""


@dataclass(frozen=True, eq=False)
class Plane:
    """A grid of networks on a plane, measured. Differences are from the members that span it."""

    x: Tensor
    """(column,), first coordinate: distance in weight space along the line to the second corner."""
    y: Tensor
    """(row,), second coordinate: distance at right angles to it."""
    loss: Tensor
    """(row, column), mean of -log p(y|x) in nats."""
    error: Tensor
    """(row, column), share of wrong classes, 1 - accuracy; for numbers, the root mean squared error."""
    difference: Tensor
    """(row, column, member), share of rows with another class than the member; for numbers, see `Measured`."""
    corners: Tensor
    """(member, 2), coordinates of the members."""
    at_corners: Measured
    """The members themselves, with the batch-norm statistics of their training."""
    members: tuple[int, ...]
    """Their indices in the ensemble."""
    classes: bool
    """Whether classes are told apart, rather than numbers predicted."""


def plane(
    ensemble: Ensemble,
    data: Any,
    members: Sequence[int] = (0, 1, 2),
    *,
    train: Any = None,
    resolution: int = 21,
    margin: float = 0.2,
    progress: Progress = None,
) -> Plane:
    """Measure networks on the plane through three members.

    Args:
        ensemble: Any fitted ensemble with three members.
        data: Rows to measure on, `(x, y)`, a `Dataset` or a `DataLoader`.
        members: Indices of the three members.
        train: Training data, needed if the network has batch norm: its statistics are measured at every point.
        resolution: Networks along each side of the grid.
        margin: By which share of its width the grid goes beyond the members, on each side.
        progress: Called with the numbers of networks that are done and that there are.
    """
    basis = through_members(_chosen(ensemble, members, 3, "a plane through three members (radial_plane takes two)"))
    return _measured(ensemble, data, basis, members, _grid(basis, resolution, margin), train, progress)


def radial_plane(
    ensemble: Ensemble,
    data: Any,
    members: Sequence[int] = (0, 1),
    *,
    train: Any = None,
    resolution: int = 21,
    margin: float = 0.2,
    progress: Progress = None,
) -> Plane:
    """Measure networks on the plane through two members and (0, 0), where all weights are 0; see `plane`."""
    basis = through_origin(_chosen(ensemble, members, 2, "a plane through the origin and two members"))
    return _measured(ensemble, data, basis, members, _grid(basis, resolution, margin), train, progress)


def through_members(members: Members) -> Basis:
    """The plane through three members, with the first as its origin."""
    return _spanned(members, {n: leaf[0].double() for n, leaf in members.params.items()}, (1, 2))


def through_origin(members: Members) -> Basis:
    """The plane through two members and the point where all weights are 0."""
    return _spanned(members, {n: torch.zeros_like(leaf[0].double()) for n, leaf in members.params.items()}, (0, 1))


def at(basis: Basis, coordinates: Tensor) -> Members:
    """Networks at coordinates `(network, 2)` of a plane: w = origin + a u + b v."""
    params = {}
    for name, origin in basis.origin.items():
        away = torch.tensordot(coordinates.to(origin), basis.directions[name], dims=1)
        params[name] = (origin + away).to(basis.members.params[name].dtype)
    return measure.with_params(basis.members, params)


def _spanned(members: Members, origin: Leaves, indices: tuple[int, int]) -> Basis:
    """The plane through an origin and the members at two indices, by Gram-Schmidt."""
    first, second = ({n: leaf[index].double() - origin[n] for n, leaf in members.params.items()} for index in indices)
    length, largest = _product(first, first) ** 0.5, max(_product(one, one) for one in (origin, first, second)) ** 0.5
    slope = _product(first, second) / (length**2 or 1.0)
    upright = {n: leaf - slope * first[n] for n, leaf in second.items()}
    height = _product(upright, upright) ** 0.5
    spans = min(length, height) > _ROUNDING_OF_LENGTHS * largest
    require(spans, "these members span no plane: two are equal, or they lie on one line in weight space; choose others")
    directions = {n: torch.stack([first[n] / length, leaf / height]) for n, leaf in upright.items()}
    corners = torch.tensor([[0.0, 0.0], [length, 0.0], [slope * length, height]], dtype=torch.float64)
    return Basis(origin, directions, corners[-members.num_members :], members)


def _grid(basis: Basis, resolution: int, margin: float) -> Grid:
    """Coordinates x and y of a grid around the origin and the corners."""
    require(resolution >= 2, f"resolution is a number of networks from 2, got {resolution}")
    require(0 <= margin < math.inf, f"margin is a share of the width, from 0, got {margin}")
    low, high = basis.corners.amin(0).clamp_max(0), basis.corners.amax(0).clamp_min(0)
    extra = margin * (high - low)
    ends = zip((low - extra).tolist(), (high + extra).tolist(), strict=True)
    x, y = (torch.linspace(start, stop, resolution, dtype=torch.float64) for start, stop in ends)
    return x, y


def _measured(
    ensemble: Ensemble, data: Any, basis: Basis, indices: Sequence[int], grid: Grid, train: Any, progress: Progress
) -> Plane:
    """Measure the members, then the networks of a grid row by row, as many at a time as memory takes."""
    x, y = grid
    points = torch.cartesian_prod(y, x).flip(-1)

    def parts() -> Iterator[Members]:
        yield basis.members
        done = 0
        for few in points.split(measure.at_once(basis.members)):
            yield measure.refreshed(ensemble, at(basis, few), train)
            done += len(few)
            if progress is not None:
                progress(done, len(points))

    found = measure.measure(ensemble, parts(), data, references=basis.members)
    num, shape = len(indices), (len(y), len(x))
    loss, error = found.loss[num:].reshape(shape), found.error[num:].reshape(shape)
    difference = found.difference[num:].reshape(*shape, num)
    corners = Measured(found.loss[:num], found.error[:num], found.difference[:num], found.classes)
    return Plane(x, y, loss, error, difference, basis.corners, corners, tuple(indices), found.classes)


def _chosen(ensemble: Ensemble, indices: Sequence[int], num: int, wish: str) -> Members:
    """The members that span a plane, after checking that networks can lie between them."""
    have = ensemble.num_members
    right = len(indices) == num and all(0 <= index < have for index in indices)
    given = tuple(indices)
    require(right, f"{wish} needs the indices of {num} members, 0 to {have - 1}, as there are {have}; got {given}")
    members = measure.members_of(ensemble).take(torch.as_tensor(list(indices)))
    fixed = {n: members.buffers[n] for n in members.buffers.keys() - batch_norm.norm_buffers(ensemble.task.module)}
    apart = sorted(n for n, leaf in fixed.items() if not torch.equal(leaf, leaf[:1].expand_as(leaf)))
    require(not apart, f"members {given} differ in {apart}, which are not trained; choose some that share them")
    return members


def _product(one: Leaves, other: Leaves) -> float:
    """The inner product of two settings of all weights, summed leaf by leaf."""
    return sum(float(torch.dot(leaf.flatten(), other[name].flatten())) for name, leaf in one.items())
