"""Fresh networks: from a factory, or from an instance whose layers are re-initialised."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from bayesemble.errors import ModelError

ModelSource = nn.Module | Callable[[], nn.Module]


def fresh_module(source: ModelSource) -> nn.Module:
    """Make a newly initialised network; its random numbers come from torch's global generator."""
    module = _reinitialised(source) if isinstance(source, nn.Module) else source()
    if not isinstance(module, nn.Module):
        raise ModelError(f"the model factory must return an nn.Module, it returned {type(module).__name__}")
    _refuse_lazy(module)
    return module


def check_factory(source: ModelSource) -> None:
    """Refuse a factory that hands out one and the same network again and again."""
    if not isinstance(source, nn.Module) and source() is source():
        raise ModelError(
            "the model factory returns the same module each time, so all members would be one network; "
            "build a new module in it, or pass the module itself to have it re-initialised"
        )


def _reinitialised(original: nn.Module) -> nn.Module:
    """Copy a network and reset every layer, children before parents; name what nothing resets.

    Trainable parameters are set to NaN first, so whatever no `reset_parameters` reaches shows. Frozen parameters
    keep their values, and a layer in which everything is frozen keeps its statistics too.
    """
    _refuse_lazy(original)
    module = copy.deepcopy(original)
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    frozen = [(p, p.detach().clone()) for p in module.parameters() if not p.requires_grad]
    with torch.no_grad():
        for parameter in trained.values():
            parameter.fill_(torch.nan)
        for layer in reversed(list(module.modules())):
            # nn.MultiheadAttention and nn.Transformer spell it with an underscore.
            reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
            own = list(layer.parameters())
            if callable(reset) and (not own or any(p.requires_grad for p in own)):
                reset()
        for parameter, value in frozen:
            parameter.copy_(value)
    untouched = [name for name, parameter in trained.items() if parameter.isnan().any()]
    if untouched:
        raise ModelError(
            f"nothing re-initialises the parameter {untouched[0]!r} of {type(original).__name__}, so all members "
            "would share it; pass a factory such as `lambda: MyNet()`, or give its module a reset_parameters method"
        )
    return module


def _refuse_lazy(module: nn.Module) -> None:
    for name, leaf in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(leaf, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"{name!r} is lazy and has no shape yet; run one batch through the network before")
