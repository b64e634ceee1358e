"""Small subspaces of weight space, w = centre + P^T z, and inference in them.

A basis P has one leaf `(member, dim, ...)` for each parameter. What is sampled or fitted are the few coordinates z of
each member, `(member, dim)`, under the density

    log p(z) = log p(data | w(z)) / temperature - |z|^2 / (2 std^2)

Reference: Izmailov et al. (2019), "Subspace inference for Bayesian deep learning"; Murray, Adams & MacKay (2010) for
elliptical slice sampling.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesemble.core.types import Leaves, exact

LogDensity = Callable[[Tensor], Tensor]
"""Log likelihood of coordinates `(member, dim)`, one value for each member."""


def principal(deviations: Leaves, rank: int, dim: int) -> Leaves:
    """The `dim` widest directions of deviations D `(member, rank, ...)`, each scaled by its standard deviation.

    With D / sqrt(rank - 1) = U S V^T, the rows are S V^T = U^T D / sqrt(rank - 1): z ~ Normal(0, 1) gives the low-rank
    Gaussian of SWAG. U comes from the products D D^T, summed leaf by leaf.
    """
    kept = {name: leaf[:, :rank] for name, leaf in deviations.items()}
    products = basis_products(kept)
    _, vectors = torch.linalg.eigh(products)
    widest = vectors.flip(-1)[:, :, :dim] / math.sqrt(rank - 1)  # (member, rank, dim)
    return {name: torch.einsum("mkr,mk...->mr...", widest.to(leaf), leaf) for name, leaf in kept.items()}


def random(like: Leaves, dim: int, length: Tensor, generators: list[torch.Generator]) -> Leaves:
    """`dim` random directions at right angles to one another, each of a given length `(member,)`."""
    shapes = {name: (dim, *leaf.shape[1:]) for name, leaf in like.items()}
    drawn = {
        name: torch.stack([torch.randn(shapes[name], generator=own) for own in generators]).to(leaf)
        for name, leaf in like.items()
    }
    factor = torch.linalg.cholesky(basis_products(drawn))
    turn = torch.linalg.inv(factor) * exact(length).reshape(-1, 1, 1)  # inv(L) P has orthonormal rows
    return {name: torch.einsum("mrs,ms...->mr...", turn.to(leaf), leaf) for name, leaf in drawn.items()}


def of_curve(points: Leaves) -> tuple[Leaves, Leaves]:
    """Centre and two directions of the plane of a quadratic Bezier curve, from its control points `(member, 3, ...)`.

    With w_0 and w_2 the ends and w_1 the middle of the curve, w(1/2), the centre is the mean of the three, the first
    direction (w_2 - w_0) / sqrt(3), and the second what is at right angles to it of w_1 - w_0, divided by 1.5.
    """
    first, last = ({name: leaf[:, index] for name, leaf in points.items()} for index in (0, 2))
    middle = {name: (leaf[:, 0] + 2 * leaf[:, 1] + leaf[:, 2]) / 4 for name, leaf in points.items()}
    spans = {name: torch.stack([last[name] - first[name], middle[name] - first[name]], 1) for name in points}
    products = basis_products(spans)
    along = products[:, 0, 1] / products[:, 0, 0]
    turn = torch.zeros_like(products)
    turn[:, 0, 0], turn[:, 1, 0], turn[:, 1, 1] = 1 / math.sqrt(3), -along / 1.5, 1 / 1.5
    centre = {name: (first[name] + middle[name] + last[name]) / 3 for name in points}
    return centre, {name: torch.einsum("mrs,ms...->mr...", turn.to(leaf), leaf) for name, leaf in spans.items()}


def basis_products(basis: Leaves) -> Tensor:
    """P P^T of each member, `(member, dim, dim)`, summed leaf by leaf."""
    flat = [exact(leaf.reshape(*leaf.shape[:2], -1)) for leaf in basis.values()]
    return torch.stack([torch.einsum("mrd,msd->mrs", leaf, leaf) for leaf in flat]).sum(0)


def under_prior(
    centre: Leaves, basis: Leaves, gradient: Callable[[Leaves], Leaves]
) -> tuple[Leaves, Leaves, Tensor] | None:
    """Another centre and basis of the same subspace, in which a normal prior of the weights is z ~ Normal(0, 1).

    Of a density with the gradient -D (w - a) the subspace cuts out a Gaussian with the precision A = P D P^T and the
    mean m = A^-1 P D (a - centre). With A = L L^T, the new directions are L^-1 P and the new centre is centre + P^T m.
    Also gives the coordinates `(member, dim)` of the old centre; None if the directions are not independent of one
    another.
    """
    here = gradient(centre)
    pull = exact(pulled_back(here, {name: basis[name] for name in here}))
    dim, rows = pull.shape[1], []
    for index in range(dim):
        moved = {name: leaf + basis[name][:, index] for name, leaf in centre.items()}
        change = {name: leaf - here[name] for name, leaf in gradient(moved).items()}
        rows.append(-exact(pulled_back(change, {name: basis[name] for name in change})))
    precision = torch.stack(rows, 1)
    factor, failed = torch.linalg.cholesky_ex((precision + precision.mT) / 2)
    if failed.any():
        return None
    mean = torch.cholesky_solve(pull.unsqueeze(2), factor).squeeze(2)
    turn = torch.linalg.inv(factor)
    turned = {name: torch.einsum("mrs,ms...->mr...", turn.to(leaf), leaf) for name, leaf in basis.items()}
    return weights_at(centre, basis, mean), turned, -torch.einsum("msr,ms->mr", factor, mean)


def weights_at(centre: Leaves, basis: Leaves, coordinates: Tensor) -> Leaves:
    """w = centre + P^T z, for centre and basis `(draw, ...)` and coordinates `(draw, dim)`."""
    return {
        name: leaf + torch.einsum("mr,mr...->m...", coordinates.to(leaf), basis[name]) for name, leaf in centre.items()
    }


def pulled_back(slopes: Leaves, basis: Leaves) -> Tensor:
    """The gradient in the coordinates, `(member, dim)`, of a function whose gradient in the weights is known."""
    lines = [
        (basis[name].reshape(*basis[name].shape[:2], -1), leaf.reshape(len(leaf), -1)) for name, leaf in slopes.items()
    ]
    return torch.stack([torch.einsum("mrd,md->mr", leaf, slope) for leaf, slope in lines]).sum(0)


def elliptical_slice(
    log_density: LogDensity, start: Tensor, std: float, num: int, generators: list[torch.Generator]
) -> Tensor:
    """Sample z ~ exp(log_density(z)) Normal(z; 0, std^2), chains side by side; `(chain, num, dim)`.

    A new point lies on the ellipse through the old one and a draw v of the prior, z cos a + v sin a. The angle a is
    drawn from a bracket that shrinks towards 0 until the density exceeds a threshold below the old one's. No step is
    rejected, nothing has to be tuned. Chains that have found their point wait for the others.
    """
    position, current = start.clone(), log_density(start)
    samples = []
    for _ in range(num):
        prior = std * torch.stack([torch.randn(start.shape[1], generator=own) for own in generators]).to(start)
        uniform = torch.stack([torch.rand(2, generator=own) for own in generators]).to(start)
        threshold = current + uniform[:, 0].log()
        angle = 2 * math.pi * uniform[:, 1]
        low, high = angle - 2 * math.pi, angle.clone()
        waiting = torch.ones(len(start), dtype=torch.bool)
        fresh, found = position.clone(), current.clone()
        while waiting.any():
            tried = position * angle.cos().unsqueeze(1) + prior * angle.sin().unsqueeze(1)
            value = log_density(torch.where(waiting.unsqueeze(1), tried, fresh))
            good = waiting & (value > threshold)
            fresh = torch.where(good.unsqueeze(1), tried, fresh)
            found, waiting = torch.where(good, value, found), waiting & ~good
            low, high = torch.where(angle < 0, angle, low), torch.where(angle >= 0, angle, high)
            again = torch.stack([torch.rand((), generator=own) for own in generators]).to(start)
            angle = torch.where(waiting, low + (high - low) * again, angle)
        position, current = fresh, found
        samples.append(position)
    return torch.stack(samples, 1)
