"""Frozen parts of a network stand still in training: their batch norm keeps its statistics, their dropout is off.

A part is frozen if it holds parameters and none of them is trained. Layers without parameters, such as dropout, go with
the innermost part around them that has some.
"""

from collections.abc import Iterator

from torch import nn

_MARK = "bayesemble_still"


def frozen_parts(module: nn.Module) -> list[str]:
    """Names of the outermost frozen parts of a network."""
    found: list[str] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        parameters = list(part.parameters())
        if not inside and parameters and not any(parameter.requires_grad for parameter in parameters):
            found.append(name)
    return found


def hold_still(module: nn.Module) -> None:
    """Mark the layers of frozen parts, so that `set_mode` leaves them in evaluation."""
    for name in frozen_parts(module):
        for layer in module.get_submodule(name).modules():
            setattr(layer, _MARK, True)


def is_still(layer: nn.Module) -> bool:
    """Whether a layer belongs to a part that was marked."""
    return getattr(layer, _MARK, False)


def set_mode(module: nn.Module, training: bool) -> None:
    """Put a network into training or evaluation; parts that stand still are always in evaluation."""
    module.train(training)
    if training:
        for layer in module.modules():
            if is_still(layer):
                layer.training = False


def still_buffers(module: nn.Module) -> Iterator[str]:
    """Names of the buffers of parts that stand still."""
    for name, layer in module.named_modules():
        if is_still(layer):
            yield from (f"{name}.{own}".lstrip(".") for own, _ in layer.named_buffers(recurse=False))
