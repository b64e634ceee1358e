"""The Gaussian over the output layer, from the features that enter it: no derivative of the network is taken.

At row n and position p the layer gives W phi, phi being the features and a 1. With L the information about W phi,

    H = sum_np L_np (x) phi_np phi_np',     L = diag(d) + s sum_k v_k v_k'

which is d = p, v = p, s = -1 for the softmax p of classes, and a plain diagonal for outputs that are independent; all
sums are matrix products. The outputs are linear in W, with the variance phi' S phi.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Leaves, Targets, WeightedTargets
from bayesemble.methods.laplace import gauss_newton
from bayesemble.methods.laplace.gauss_newton import WIDE, Network, Rows, closed_information, is_softmax, output_roots
from bayesemble.methods.laplace.gaussian_blocks import Block, Layout
from bayesemble.methods.laplace.output_layer import Features, features_of


class _Samples(NamedTuple):
    """Some rows, or single positions of them, with what is known about the numbers that the layer gave there."""

    entering: Tensor
    """phi, `(sample, position, feature)`."""
    diagonal: Tensor
    """d, `(sample, position, channel)`."""
    vectors: Tensor
    """v, `(sample, k, position, channel)`."""
    sign: int
    """s."""

    def slopes(self) -> Iterator[Tensor]:
        """sum_p v_kp (x) phi_p, `(sample and k, channel, feature)`: as many at a time as memory takes."""
        (num, count, _, channels), features = self.vectors.shape, self.entering.shape[2]
        size = how_many_fit(gauss_newton.BUDGET, WIDE * count * channels * features)
        for part in (slice(start, start + size) for start in range(0, num, size)):
            yield torch.einsum("skpc,spf->skcf", self.vectors[part], self.entering[part]).flatten(0, 1)


def blocks(network: Network, rows: Rows, structure: str, plan: list[Layout]) -> list[Block] | None:
    """The curvature of the selected leaves; None if they are not an output layer whose features tell it."""
    sums: _Whole | _Product | _Diagonal | None = None
    for inputs, targets in rows:
        seen = features_of(network, inputs)
        if seen is None:
            return None
        if sums is None:
            sums = _Whole(seen) if structure == "full" else _Product(seen) if structure == "kron" else _Diagonal(seen)
        for rows_at_once in _rows_at_once(seen):
            for samples in _samples(network, *_counted(_rows_of(seen, rows_at_once), targets[rows_at_once].cpu())):
                sums.add(samples)
    assert sums is not None, "there are no rows"
    return [sums.block(plan[0])]


def _counted(seen: Features, targets: Targets) -> tuple[Features, Tensor]:
    """Rows that count for their weights: what enters the layer is in the curvature twice, so each has the root."""
    if not isinstance(targets, WeightedTargets):
        return seen, targets
    roots = targets.weights.to(seen.entering).sqrt().reshape(-1, 1, 1)
    return seen._replace(entering=seen.entering * roots), targets.values


def _samples(network: Network, seen: Features, targets: Tensor) -> Iterator[_Samples]:
    """The information about what the layer gave; each position for itself where positions have nothing in common."""
    params = {name: leaf.cpu() for name, leaf in network.params.items()}
    independent = closed_information(network.task, seen.outputs, params)
    if independent is not None:
        yield _folded(seen, independent.double())
    elif is_softmax(network.task) and _one_position_each((seen.picked // seen.channels).reshape(seen.outputs.shape)):
        yield _folded(seen, F.softmax(seen.outputs, dim=-1), softmax=True)
    else:
        width = seen.picked.shape[1]
        each = WIDE * width * (width + seen.entering.shape[1] * seen.channels)
        for rows in torch.arange(len(targets)).split(how_many_fit(gauss_newton.BUDGET, each)):
            some = _rows_of(seen, rows)
            roots = output_roots(network.task, some.outputs, targets[rows], params).double()
            vectors = torch.stack([some.of_layer(column) for column in roots.unbind(2)], dim=1)
            yield _Samples(some.entering, torch.zeros_like(vectors[:, 0]), vectors, 1)


def _rows_at_once(seen: Features) -> tuple[Tensor, ...]:
    """Rows, as many at a time as memory takes in double precision."""
    num, positions, features = seen.entering.shape
    each = WIDE * positions * (3 * features + 4 * seen.channels)
    return torch.arange(num).split(how_many_fit(gauss_newton.BUDGET, each))


def _rows_of(seen: Features, rows: Tensor) -> Features:
    """Some rows, in double precision on the CPU."""
    entering, outputs, picked = (part[rows].cpu() for part in (seen.entering, seen.outputs, seen.picked))
    return Features(entering.double(), outputs.double(), picked, seen.channels)


def _one_position_each(positions: Tensor) -> bool:
    """Whether the classes of one softmax come from one position, and no two softmaxes from the same."""
    first = positions[..., :1]
    ordered = first.reshape(len(positions), -1).sort(1).values
    return bool((positions == first).all() and (ordered.diff(dim=1) > 0).all())


def _folded(seen: Features, diagonal: Tensor, softmax: bool = False) -> _Samples:
    """Positions as samples of their own, without those that no output comes from; of a softmax, v = d and s = -1."""
    used = seen.of_layer(torch.ones_like(seen.outputs)).sum(2).flatten() > 0

    def at_positions(values: Tensor) -> Tensor:
        return values.flatten(0, 1)[used].unsqueeze(1)

    about = at_positions(seen.of_layer(diagonal))
    vectors = about if softmax else about[:, :0]
    return _Samples(at_positions(seen.entering), about, vectors.unsqueeze(2), -1)


class _Whole:
    """All of H."""

    def __init__(self, seen: Features) -> None:
        shape = (seen.channels, seen.entering.shape[2])
        self.total = torch.zeros(*shape, *shape, dtype=torch.float64)

    def add(self, samples: _Samples) -> None:
        size = self.total.shape[:2].numel()
        for slopes in samples.slopes():
            self.total.view(size, size).addmm_(slopes.flatten(1).T, slopes.flatten(1), alpha=samples.sign)
        entering = samples.entering.flatten(0, 1)
        for channel, weights in enumerate(samples.diagonal.flatten(0, 1).unbind(1)):
            self.total[channel, :, channel] += (entering * weights.unsqueeze(1)).T @ entering

    def block(self, layout: Layout) -> Block:
        order = _in_line(layout, *self.total.shape[:2])
        return Block(layout, None, self.total.view(len(order), len(order))[order][:, order])


class _Diagonal:
    """The diagonal of H."""

    def __init__(self, seen: Features) -> None:
        self.total = torch.zeros(seen.channels, seen.entering.shape[2], dtype=torch.float64)

    def add(self, samples: _Samples) -> None:
        weights = samples.diagonal
        if weights.shape[1] == 1:
            weights = weights + samples.sign * samples.vectors.square().sum(1)
        else:
            self.total += samples.sign * sum(slopes.square().sum(0) for slopes in samples.slopes())
        self.total += weights.flatten(0, 1).T @ samples.entering.flatten(0, 1).square()

    def block(self, layout: Layout) -> Block:
        return Block(layout, None, self.total.flatten()[_in_line(layout, *self.total.shape)])


class _Product:
    """(sum L) (x) (mean phi phi'), over samples and positions: a Kronecker product for H."""

    def __init__(self, seen: Features) -> None:
        features, self.count = seen.entering.shape[2], 0
        self.left = torch.zeros(seen.channels, seen.channels, dtype=torch.float64)
        self.right = torch.zeros(features, features, dtype=torch.float64)

    def add(self, samples: _Samples) -> None:
        entering, vectors = samples.entering.flatten(0, 1), samples.vectors.flatten(0, 2)
        self.left.diagonal().add_(samples.diagonal.sum((0, 1)))
        self.left.addmm_(vectors.T, vectors, alpha=samples.sign)
        self.right.addmm_(entering.T, entering)
        self.count += len(entering)

    def block(self, layout: Layout) -> Block:
        return Block(layout, self.left, self.right / self.count)


def _in_line(layout: Layout, channels: int, features: int) -> Tensor:
    """Where the numbers of the layout, leaf after leaf, stand in `(channel, feature)`."""
    places = torch.arange(channels * features).reshape(channels, features)
    if len(layout.names) == 1:
        return places.flatten()
    parts = {"weight": places[:, :-1], "bias": places[:, -1]}
    return torch.cat([parts[name.rpartition(".")[2]].flatten() for name in layout.names])


def variances(seen: Features, layout: Layout, factors: Leaves) -> Tensor:
    """Of the outputs, `(row, ...)`, from what draws of the layer are made of: phi' S phi."""
    entering, channels = seen.entering.cpu().double(), seen.channels
    factors = {name: factor.cpu().double() for name, factor in factors.items()}
    std, right = factors["std"], factors.get("right")
    if "left" in factors and right is not None:
        found = (entering @ right).square() @ std.square().T @ factors["left"].square().T
    elif right is None:
        found = entering.square() @ _by_channel(std.T, layout, channels)[..., 0].square().T
    else:
        root = _by_channel(right * std, layout, channels)
        covariance = root @ root.mT  # of the features of each channel
        found = torch.stack([((entering @ own) * entering).sum(2) for own in covariance], dim=2).clamp_min(0)
    return seen.of_outputs(found).to(seen.outputs)


def _by_channel(lines: Tensor, layout: Layout, channels: int) -> Tensor:
    """Lines `(number of the layout, ...)` as `(channel, feature, ...)`."""
    features = len(lines) // channels
    found = torch.empty_like(lines)
    found[_in_line(layout, channels, features)] = lines
    return found.reshape(channels, features, *lines.shape[1:])


def drawn_outputs(seen: Features, away: Leaves) -> Tensor:
    """Outputs `(draw, row, ...)` of networks whose selected leaves lie away from those of the member, `(draw, ...)`."""
    kinds = {name.rpartition(".")[2]: leaf for name, leaf in away.items()}
    weight_first = sorted(kinds.items(), reverse=True)
    matrices = torch.cat([leaf.reshape(len(leaf), seen.channels, -1) for _, leaf in weight_first], dim=2)
    return torch.stack([seen.outputs + seen.of_outputs(seen.entering @ one.T) for one in matrices])
