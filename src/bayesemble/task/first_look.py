"""A first look at a network: it runs on a few rows, as in prediction and as in training."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import BayesembleError, DataError, ModelError
from bayesemble.core.types import Inputs, exact, map_tensors, tensors_of
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.recomputation import Watch

_ROUNDING = 1e-4
_FAR = 1e3  # by how much targets may differ from the outputs that a network begins with


class Seen(NamedTuple):
    """What was seen."""

    output_shape: tuple[int, ...]
    """Shape of the outputs of one row."""
    stochastic: bool
    """Whether training draws random numbers inside the network, as dropout does."""
    recomputes: bool
    """Whether the network runs parts of itself again in the backward pass, as activation checkpointing does."""
    probabilities: bool = False
    """Whether outputs are probabilities already: none is negative, and those of a row sum to 1."""


def look(name: str, inputs: Inputs, run: Callable[[Inputs, bool], Tensor]) -> Seen:
    """Look at a network that has a name; `run(inputs, training)` gives its outputs.

    Rows that it cannot run on are refused, and so is a network that changes them.
    """
    shapes = [tuple(leaf.shape) for leaf in tensors_of(inputs)]
    rows = map_tensors(torch.clone, inputs)
    stream, watch = seeds.TorchStream(0), Watch()
    try:
        with torch.no_grad(), seeds.TorchStream(0):
            outputs = run(rows, False)
        with torch.enable_grad(), watch, stream:
            run(rows, True)
    except BayesembleError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        whole = not all(leaf.is_floating_point() for leaf in tensors_of(inputs))
        hint = "; the inputs are whole numbers: unless they are indices, make them real" if whole else ""
        hint += "; they have no axis but that of the rows: add one, as x[:, None]" if shapes == [shapes[0][:1]] else ""
        raise DataError(f"{name} cannot run on inputs of shape {shapes}: {error}{hint}") from error
    if not all(map(torch.equal, tensors_of(rows), tensors_of(inputs))):
        raise ModelError(
            f"{name} changes its inputs in place, so that other members would be given changed ones; write "
            "x = x * 2 rather than x.mul_(2), leave inplace=True out of its first layer, or begin with a copy"
        )
    count = shapes[0][0]
    if outputs.dim() == 0 or outputs.shape[0] != count:
        hint = "; the inputs have no axis but that of the rows: add one, as x[:, None]" if shapes == [(count,)] else ""
        raise DataError(f"{name} must give one output per row: {count} rows, outputs {tuple(outputs.shape)}{hint}")
    return Seen(tuple(outputs.shape[1:]), stream.generators.used, watch.recomputes, _are_probabilities(outputs))


def _are_probabilities(outputs: Tensor) -> bool:
    several = outputs.dim() > 1 and outputs.shape[-1] > 1 and outputs.is_floating_point()
    return several and bool((outputs >= 0).all() and ((outputs.sum(-1) - 1).abs() < _ROUNDING).all())


def warn_of_probabilities(seen: Seen, name: str, likelihood: Likelihood) -> None:
    """Warn of a network that ends in a softmax where the likelihood takes another one."""
    if seen.probabilities and likelihood.takes_logits:
        warnings.warn(
            f"{name} gives numbers from 0 that sum to 1 for each row, so it seems to end in a softmax, but "
            f"{type(likelihood).__name__} takes logits and has a softmax of its own; leave the last softmax out",
            stacklevel=5,
        )


def warn_of_scale(likelihood: Likelihood, targets: Tensor, begins: Callable[[], Tensor]) -> None:
    """Warn of targets that the outputs are far from where a network `begins`, or that the noise hides.

    A network that is made for large targets, and one that is trained already, begins with large outputs.
    """
    if not likelihood.reads_as_is:
        return
    size, noise = _size(targets), likelihood.target_noise() or 1.0
    if 0 < size < noise / _FAR:
        what = f"the noise of {likelihood} is more than a thousand times as large and hides them"
    elif size > _FAR and size > _FAR * (begun := _size(begins())):
        what = f"the outputs of the network begin at about {begun:.1g}, and training would hardly get there"
    else:
        return
    warnings.warn(
        f"targets are about {size:.1g} in size, but {what}; divide the targets by their standard deviation, after "
        "subtracting the mean, and state the noise on that scale",
        stacklevel=6,
    )


def _size(values: Tensor) -> float:
    """Root mean square."""
    return float(exact(values).square().mean().sqrt())


def together(found: list[Seen], names: list[str]) -> Seen:
    """What was seen of several architectures, which must give outputs of the same shape."""
    shape = found[0].output_shape
    for name, other in zip(names, found, strict=True):
        if other.output_shape != shape:
            raise ModelError(
                f"all architectures must give outputs of the same shape; for each row {names[0]} gives {shape}, {name} "
                f"gives {other.output_shape}"
            )
    stochastic, recomputes = any(one.stochastic for one in found), any(one.recomputes for one in found)
    return Seen(shape, stochastic, recomputes, any(one.probabilities for one in found))
