"""A first look at a network: it runs on a few rows, as in prediction and as in training."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

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
    shares: bool = False
    """Whether each output lies between 0 and 1, for inputs of any size."""
    moved: bool = False
    """Whether the last axis of outputs is not the innermost in memory, as where a network moves axes at its end."""


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
    sums_to_one, shares = _are_probabilities(outputs), _are_shares(outputs, rows, run)
    moved = outputs.stride(-1) > 1
    return Seen(tuple(outputs.shape[1:]), stream.generators.used, watch.recomputes, sums_to_one, shares, moved)


def _are_probabilities(outputs: Tensor) -> bool:
    several = outputs.dim() > 1 and outputs.shape[-1] > 1 and outputs.is_floating_point()
    return several and bool((outputs >= 0).all() and ((outputs.sum(-1) - 1).abs() < _ROUNDING).all())


def _are_shares(outputs: Tensor, rows: Inputs, run: Callable[[Inputs, bool], Tensor]) -> bool:
    """Whether outputs stay between 0 and 1 when the inputs grow a thousandfold, and move, as those of a sigmoid do."""

    def between(values: Tensor) -> bool:
        return values.is_floating_point() and bool(((values >= 0) & (values <= 1)).all())

    if not between(outputs) or not any(leaf.is_floating_point() for leaf in tensors_of(rows)):
        return False
    with torch.no_grad(), seeds.TorchStream(0):
        try:
            far = run(map_tensors(lambda leaf: leaf * 1000 if leaf.is_floating_point() else leaf, rows), False)
        except Exception:  # a network may refuse inputs of that size, and may do so in any way
            return False
    return between(far) and not torch.allclose(far, outputs)


def warn_of_end(seen: Seen, network: nn.Module, name: str, likelihood: Likelihood, as_it_is: bool) -> None:
    """Warn of a network whose end the likelihood has too, or whose outputs may be read in two ways."""
    kind, words = type(likelihood).__name__, None
    if seen.probabilities and likelihood.takes_logits:
        words = (
            f"{name} gives numbers from 0 that sum to 1 for each row, so it seems to end in a softmax, but {kind} "
            "takes logits and has a softmax of its own; leave the last softmax out"
        )
    elif seen.shares and likelihood.takes_log_odds:
        words = (
            f"{name} gives numbers from 0 to 1 whatever the inputs, so it seems to end in a sigmoid, but {kind} takes "
            "logits and has a sigmoid of its own; leave the last sigmoid out"
        )
    elif as_it_is and not seen.moved and likelihood.takes_logits and _may_be_first(seen.output_shape, network):
        words = (
            f"{name} ends in a convolution, which has its channels first, and gives {seen.output_shape} for each row, "
            f"of which {kind} takes the last axis for the classes; if the first one is meant, say "
            "Task(..., output=lambda out: out.movedim(1, -1)), else Task(..., output=lambda out: out)"
        )
    if words is not None:
        warnings.warn(words, stacklevel=5)


def _may_be_first(output_shape: tuple[int, ...], network: nn.Module) -> bool:
    """Whether classes may be on the first axis of a row or on the last: both fit, and a convolution comes last."""
    layers = [layer for layer in network.modules() if next(layer.parameters(recurse=False), None) is not None]
    both = len(output_shape) > 1 and output_shape[0] == output_shape[-1]
    return both and bool(layers) and isinstance(layers[-1], _ConvNd)


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
    probabilities, shares = any(one.probabilities for one in found), any(one.shares for one in found)
    return Seen(shape, stochastic, recomputes, probabilities, shares, any(one.moved for one in found))
