"""A network is run with the leaves of a member in the place of its own."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesemble.core.errors import SettingError
from bayesemble.core.types import Inputs, Leaves, tensors_of
from bayesemble.task.adapters.frozen_calls import Prepared, answered
from bayesemble.task.adapters.still import set_mode
from bayesemble.task.networks import dropout_on, pick_output
from bayesemble.task.recomputation import record

OF_LIKELIHOOD = "likelihood."  # in front of the names of leaves that belong to the likelihood, not the network
OF_METHOD = "method."  # names of buffers that a method keeps for itself begin with it

PRECISIONS = {"bf16": torch.bfloat16}
"""Number types that a network may compute in while it is trained, by name."""


def check_reading(output: Any, targets: Any, unpack: Any) -> None:
    """Refuse what says neither how to read what a network returns nor how to read a batch."""
    if not (output is None or isinstance(output, str) or callable(output)):
        raise SettingError(f"output must be the name of an attribute or key, or a function, got {output!r}")
    if not (targets is None or isinstance(targets, str)):
        raise SettingError(f'targets is the key of the targets, such as "labels", got {targets!r}')
    if not (unpack is None or (callable(unpack) and targets is None)):
        came = repr(unpack) if targets is None else f"it beside targets={targets!r}"
        raise SettingError(f"unpack is a function that gives (inputs, targets) of a batch, got {came}")


def outputs_of(
    module: nn.Module,
    params: Leaves,
    buffers: Leaves,
    inputs: Inputs,
    *,
    training: bool,
    dropout: bool,
    output: str | Callable[[Any], Tensor] | None,
    recomputes: bool,
    precision: str | None,
) -> Tensor:
    """Outputs of one member, `(batch, ...)`; in training, its buffers are updated in place.

    With `dropout`, dropout layers act outside of training too. With `precision`, training computes in that number type
    where torch holds it safe; weights, and outputs, keep theirs.
    """
    if module.training != training:
        set_mode(module, training)
    params, buffers = network_leaves(params), network_leaves(buffers)
    leaves = params | buffers
    with dropout_on(module) if dropout else nullcontext():
        if precision is None or not training:
            result = pick_output(called_with(module, leaves, inputs), output)
        else:
            device = tensors_of(inputs)[0].device.type
            dtype = next(leaf.dtype for leaf in leaves.values() if leaf.is_floating_point())
            # Casts that torch keeps for the next layer would outlive the member they belong to.
            with torch.autocast(device, PRECISIONS[precision], cache_enabled=False):
                result = pick_output(called_with(module, leaves, inputs), output)
            result = result.to(dtype)
    if training:
        for name, buffer in buffers.items():
            if leaves[name] is not buffer:  # the network replaced its buffer instead of changing it in place
                buffer.copy_(leaves[name])
    if recomputes:
        record(module, leaves)
    return result


def called_with(module: nn.Module, leaves: Leaves, inputs: Inputs) -> Any:
    """What a network returns with these leaves in the place of its own."""
    if isinstance(inputs, Prepared):
        with answered(module, inputs):
            return called_with(module, leaves, inputs.inputs)
    if isinstance(inputs, dict):
        return functional_call(module, leaves, (), inputs)
    return functional_call(module, leaves, inputs if isinstance(inputs, tuple) else (inputs,))


def network_leaves(leaves: Leaves) -> Leaves:
    """The leaves that belong to the network, not to the likelihood or the method."""
    return {name: leaf for name, leaf in leaves.items() if not name.startswith((OF_LIKELIHOOD, OF_METHOD))}
