"""How many parameters an ensemble has, how many networks it stands for, and what memory that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bayesemble.methods import Method
from bayesemble.methods.size import training_bytes
from bayesemble.task.task import Task
from bayesemble.training.draws import draws_at_once


@dataclass(frozen=True)
class EnsembleSize:
    """A number of networks that may be too large to write out: members * base_1^exponent_1 * base_2^exponent_2 ..."""

    members: int
    powers: tuple[tuple[int, int], ...] = ()

    @property
    def log10(self) -> float:
        """Its number of digits, nearly."""
        return math.log10(self.members) + sum(exponent * math.log10(base) for base, exponent in self.powers)

    def __str__(self) -> str:
        words = [f"{base}^{exponent}" if exponent > 1 else str(base) for base, exponent in self.powers]
        return " x ".join(([str(self.members)] if self.members > 1 or not words else []) + words)


@dataclass(frozen=True)
class ParameterCount:
    """What an ensemble holds."""

    network: int
    """Parameters of one plain network."""
    total: int
    """Parameters of the ensemble: frozen ones once, trained ones of all members and components."""
    overhead: float
    """By how many per cent that is more than one network."""
    ensemble_size: EnsembleSize
    """Number of different networks that can be drawn."""
    training_bytes: int
    """Parameters, buffers, gradients and moments; without activations, which depend on batch and executor."""
    prediction_bytes: int
    """Parameters, and the leaves of networks that are drawn at a time; without activations."""


def count_parameters(task: Task, method: Method, inputs: Any = None) -> ParameterCount:
    """Count the parameters of a method on a task, without training.

    Args:
        inputs: A few rows, with which the network is run to see which layer gives the output. Without them the output
            is taken to be the layer that is registered last.
    """
    if inputs is not None:
        task = task.bind(len(inputs), inputs)
    everything = sum(parameter.numel() for parameter in task.module.parameters())
    trained, members = task.num_parameters, method.num_members
    extent = method.extent(task)
    learned, size = members * (trained + extent.extra), task.dtype.itemsize
    each = size * (extent.drawn if members == 1 else trained)
    drawn = each * min(method.draws or 0, draws_at_once(each))
    total = everything - trained + learned
    return ParameterCount(
        network=everything,
        total=total,
        overhead=100 * (total / everything - 1),
        ensemble_size=EnsembleSize(members, extent.powers),
        training_bytes=training_bytes(task, method),
        prediction_bytes=size * total + drawn,
    )
