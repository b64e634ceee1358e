"""Paths between networks, and their training:  w(t) = sum_j c_j(t) w_j,  t in [0, 1]

- A Bezier curve: c_j(t) = binomial(n, j) t^j (1 - t)^(n - j), with n + 1 control points.
- A polygon: straight from each of its n + 1 points to the next; with two points, the line.

The ends w_0 and w_n stay where they are. What lies between is trained, so that the networks all along the path are
good: every batch has a new t ~ Uniform(0, 1), and the log joint of w(t) pulls each inner point by c_j(t). Any number of
paths is trained side by side. Points are leaves `(path, point, ...)`.

Reference: Garipov et al. (2018), "Loss surfaces, mode connectivity, and fast ensembling of DNNs".
"""

import math

import torch
from torch import Tensor

from bayesemble.core.members import Members
from bayesemble.core.types import Leaves, TrainingData
from bayesemble.execute.executor import Executor
from bayesemble.execute.optimizers.fused import Optimizer
from bayesemble.execute.schedules import resolve
from bayesemble.methods.geometry import batch_norm
from bayesemble.task.task import BoundTask

KINDS = ("bezier", "polygon")


def coefficients(kind: str, positions: Tensor, num_points: int) -> Tensor:
    """c_j(t) for positions t `(path,)`: `(path, point)`, in double precision."""
    t, last = positions.double().unsqueeze(1), num_points - 1
    number = torch.arange(num_points, dtype=torch.float64)
    if kind == "polygon":
        return (1 - (t * last - number).abs()).clamp_min(0)
    binomials = torch.tensor([math.comb(last, position) for position in range(num_points)], dtype=torch.float64)
    return binomials * t**number * (1 - t) ** (last - number)


def straight(first: Leaves, second: Leaves, num_points: int) -> Leaves:
    """Points at equal distances on the lines between networks `(path, ...)`, both ends included."""
    positions = torch.linspace(0, 1, num_points, dtype=torch.float64)

    def between(name: str) -> Tensor:
        inner = [torch.lerp(first[name], second[name], float(position)) for position in positions[1:-1]]
        return torch.stack([first[name], *inner, second[name]], 1)

    return {name: between(name) for name in first}


def networks_at(points: Leaves, kind: str, positions: Tensor) -> Leaves:
    """The parameters w(t) of each path at its position `(path,)`."""
    num_points = next(iter(points.values())).shape[1]
    factors = coefficients(kind, positions, num_points)
    return {name: torch.einsum("pj,pj...->p...", factors.to(leaf), leaf) for name, leaf in points.items()}


def train(
    points: Leaves,
    kind: str,
    task: BoundTask,
    buffers: Leaves,
    data: TrainingData,
    executor: Executor,
    *,
    epochs: int,
    learning_rate: float,
    generators: list[torch.Generator],
) -> None:
    """Move the inner points, in place, by Adam with a rate that falls by a cosine; each path has its generator.

    Batch norm uses the statistics of each batch; buffers `(path, ...)` are not changed.
    """
    num, size = len(generators), next(iter(points.values())).shape[1]
    weights = torch.full((num,), 1 / num, dtype=torch.float64)
    inner = {name: leaf[:, 1:-1] for name, leaf in points.items()}
    moving = {name: leaf.clone() for name, leaf in inner.items()}
    optimizer = Optimizer("adam", momentum=0.9, weight_decay=0.0)
    slots, schedule = optimizer.init(moving), resolve("cosine")
    assert task.num_data is not None
    for epoch in range(epochs):
        for batch in data():
            positions = torch.stack([torch.rand((), generator=own) for own in generators])
            members = Members(networks_at(points, kind, positions), buffers, weights)
            with batch_norm.batch_statistics(task.module):
                _, slopes = executor.gradients(batch_norm.log_likelihood_of(task), members, batch)
            scores = task.log_joint_gradient(slopes, members.params)
            factors = coefficients(kind, positions, size)[:, 1:-1] / -task.num_data
            downhill = {n: torch.einsum("pj,p...->pj...", factors.to(leaf), leaf) for n, leaf in scores.items()}
            optimizer.update(moving, downhill, slots, learning_rate * schedule(epoch / epochs))
            for name, leaf in moving.items():
                inner[name].copy_(leaf)
