"""What members of an adapted network begin with: which leaves are drawn anew, and by what."""

from collections.abc import Callable

from torch import nn

from bayesemble.task.adapters import peft_models
from bayesemble.task.adapters.adapt import adaptation_of
from bayesemble.task.adapters.lora import LoraLinear


def is_adapted(module: nn.Module) -> bool:
    """Whether a network has a backbone that somebody keeps: `adapt` made it, or the package peft."""
    return adaptation_of(module) is not None or peft_models.is_peft(module)


def fresh_leaves(module: nn.Module) -> set[str]:
    """Names of the trained leaves that are drawn anew for each member: all, unless the network is adapted."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    adaptation = adaptation_of(module)
    if adaptation is not None:
        return trained - adaptation.given
    return trained - peft_models.given_leaves(module) if peft_models.is_peft(module) else trained


def reset_of(layer: nn.Module, module: nn.Module) -> Callable[[], None] | None:
    """What draws the parameters of a layer of a network anew, if it can."""
    by_peft = peft_models.reset_of(layer, module)
    if by_peft is not None:
        return by_peft
    # nn.MultiheadAttention and nn.Transformer spell it with an underscore.
    found = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
    return found if callable(found) else None


def resets_adapters_alone(layer: nn.Module) -> bool:
    """Whether drawing a layer anew leaves its frozen parameters alone."""
    return isinstance(layer, LoraLinear) or hasattr(layer, "reset_lora_parameters")


def backbone_name(module: nn.Module) -> str | None:
    """Where the frozen weights come from, a path or an id, if that is known."""
    adaptation = adaptation_of(module)
    return peft_models.backbone_name(module) if adaptation is None else adaptation.backbone
