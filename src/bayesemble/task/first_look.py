"""A first look at a network: it runs on a few rows, as in prediction and as in training."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import BayesembleError, DataError
from bayesemble.core.types import Inputs, tensors_of
from bayesemble.task.recomputation import Watch


class Seen(NamedTuple):
    """What was seen."""

    output_shape: tuple[int, ...]
    """Shape of the outputs of one row."""
    stochastic: bool
    """Whether training draws random numbers inside the network, as dropout does."""
    recomputes: bool
    """Whether the network runs parts of itself again in the backward pass, as activation checkpointing does."""


def look(name: str, inputs: Inputs, run: Callable[[bool], Tensor]) -> Seen:
    """Look at a network that has a name; `run(training)` gives its outputs. Rows that it cannot run on are refused."""
    shapes = [tuple(leaf.shape) for leaf in tensors_of(inputs)]
    stream, watch = seeds.TorchStream(0), Watch()
    try:
        with torch.no_grad(), seeds.TorchStream(0):
            outputs = run(False)
        with torch.enable_grad(), watch, stream:
            run(True)
    except BayesembleError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        whole = not all(leaf.is_floating_point() for leaf in tensors_of(inputs))
        hint = "; the inputs are whole numbers: unless they are indices, make them real" if whole else ""
        raise DataError(f"{name} cannot run on inputs of shape {shapes}: {error}{hint}") from error
    rows = shapes[0][0]
    if outputs.dim() == 0 or outputs.shape[0] != rows:
        raise DataError(f"{name} must give one output per row: {rows} rows, outputs {tuple(outputs.shape)}")
    return Seen(tuple(outputs.shape[1:]), stream.generators.used, watch.recomputes)
