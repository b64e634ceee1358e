"""Paths from one member to another: how much worse, and how different, are the networks between them?

    barrier = max_t  loss(w(t)) - (1 - t) loss(w(0)) - t loss(w(1))

On the straight line two members are mostly far apart in loss; a curve between them can be trained on which it is nearly
constant, though the functions along it differ from both ends. Members whose hidden units are only numbered differently
are the same function: `align=True` renumbers those of the second member before the line is drawn.

Reference: Garipov et al. (2018), "Loss surfaces, mode connectivity, and fast ensembling of DNNs"; Fort et al. (2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import DataError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves, TrainingData
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.align import aligned
from bayesemble.execute.executor import thread_count
from bayesemble.methods.geometry import curves
from bayesemble.training.batches import source_for
from bayesemble.training.ensemble import Ensemble

KINDS = ("linear", *curves.KINDS)


@dataclass(frozen=True, eq=False)
class Path:
    """Networks at positions t from 0, the first member, to 1, the second."""

    kind: str
    members: tuple[int, int]
    positions: Tensor
    """(position,), from 0 to 1."""
    loss: Tensor
    """(position,), mean of -log p(y|x) in nats."""
    error: Tensor
    """(position,), share of wrong classes; for numbers, the root mean squared error."""
    difference: Tensor
    """(position, 2), share of rows with another class than the first and the second member; for numbers, the root mean
    squared difference of the means."""

    @property
    def barrier(self) -> float:
        """How far the loss rises above the straight line between its values at the ends, in nats; never below 0."""
        return _rise(self.loss, self.positions)

    @property
    def error_barrier(self) -> float:
        """The same for the error."""
        return _rise(self.error, self.positions)


def path(
    ensemble: Ensemble,
    data: Any,
    members: tuple[int, int] = (0, 1),
    *,
    kind: str = "linear",
    train: Any = None,
    bends: int = 1,
    epochs: int = 30,
    batch_size: int = 128,
    learning_rate: float = 1e-2,
    resolution: int = 25,
    align: bool = False,
    seed: int = 0,
) -> Path:
    """Measure networks along a path between two members.

    Args:
        ensemble: A fitted ensemble.
        data: `(x, y)` to measure on.
        members: Where the path begins and ends.
        kind: "linear", or a path that is trained: "bezier" or "polygon".
        train: Training data, for a path that is trained and for the statistics of batch norm.
        bends: How many points between the ends are trained.
        epochs: Passes over the training data.
        batch_size: Rows per step.
        learning_rate: Step size of Adam; it falls to 0 by a cosine.
        resolution: How many networks are measured, ends included.
        align: Renumber the hidden units of the second member first, so that they match those of the first.
        seed: For batches, and positions along the path in training.
    """
    require(kind in KINDS, f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    require(bends >= 1, f"a trained path has at least one point between its ends, got bends={bends}")
    require(resolution >= 3, f"a path is measured at both ends and between, got resolution={resolution}")
    if kind != "linear" and train is None:
        raise DataError(f"a {kind} path is trained: pass train=(x, y)")
    indices = measure.chosen_members(ensemble, members)
    ends = [measure.members_of(ensemble).take(torch.tensor([index])) for index in indices]
    if align:
        ends[1] = aligned(ensemble.task.module, ends[1], ends[0])
    points = curves.straight(ends[0].params, ends[1].params, 2 if kind == "linear" else bends + 2)
    shape = "polygon" if kind == "linear" else kind
    with thread_count(ensemble.executor):
        if kind != "linear":
            rows = _training_rows(ensemble, train, batch_size, seed)
            curves.train(
                points,
                shape,
                ensemble.task,
                ends[0].buffers,
                rows,
                ensemble.executor,
                epochs=epochs,
                learning_rate=learning_rate,
                generators=[seeds.generator(seed, "path")],
            )
        positions = torch.linspace(0, 1, resolution, dtype=torch.float64)
        parts = _along(ensemble, points, shape, positions, ends, train)
        found = measure.measure(ensemble, parts, data, references=Members.concat(ends))
    return Path(kind, (members[0], members[1]), positions, found.loss, found.error, found.difference)


def _training_rows(ensemble: Ensemble, train: Any, batch_size: int, seed: int) -> TrainingData:
    """Go through the training rows, each time in another order."""
    source = source_for(ensemble.task, train, batch_size)
    source = source.checked(ensemble.task, training=True)
    passes = itertools.count()
    return lambda: source.epoch(next(passes), batch_size, seed)


def _along(
    ensemble: Ensemble, points: Leaves, kind: str, positions: Tensor, ends: list[Members], train: Any
) -> Iterator[Members]:
    """The networks at the positions, as many at a time as memory takes."""
    for part in positions.split(measure.at_once(ends[0])):
        points_of_each = {name: leaf.expand(len(part), *leaf.shape[1:]) for name, leaf in points.items()}
        made = measure.with_params(ends[0], curves.networks_at(points_of_each, kind, part))
        yield measure.refreshed(ensemble, made, train)


def _rise(values: Tensor, positions: Tensor) -> float:
    return float((values - torch.lerp(values[0], values[-1], positions)).max().clamp_min(0))
