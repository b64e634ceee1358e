"""Networks that members begin with: the members of an earlier ensemble, modules, or state dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members
from bayesemble.core.types import Leaves
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.task import BoundTask


def as_starts(given: Members | Sequence[Any], task: BoundTask) -> list[tuple[Leaves, Leaves]]:
    """Parameters and buffers of each network, which must be like those of the task.

    What the likelihood learns begins anew where the networks do not have it, and so do buffers that no state dict has.
    """
    networks = [params | buffers for params, buffers in given.split()] if isinstance(given, Members) else given
    if isinstance(networks, str | Mapping | nn.Module) or not isinstance(networks, Sequence) or not len(networks):
        raise SettingError(
            f"start is an ensemble, or a list of modules or state dicts, got {type(given).__name__}; for one network "
            'say Task(network, ..., start="given")'
        )
    expected, optional = replace(task, starts=()).new_member(seed=0), _optional(task.module)
    known = {*expected[0], *expected[1], *task.module.state_dict()}
    found = []
    for number, one in enumerate(networks):
        leaves = _named(one, number)
        for name in leaves:
            if name not in known and not name.startswith(OF_LIKELIHOOD):
                raise SettingError(f"start must be networks like the task's, but number {number} has a leaf {name!r}")
        found.append(_start(leaves, expected, optional, number))
    return found


def _optional(module: nn.Module) -> set[str]:
    """Names that a network may come without: buffers that a state dict leaves out."""
    return {name for name, _ in module.named_buffers()} - module.state_dict().keys()


def _named(network: Any, number: int) -> Mapping[str, Tensor]:
    """All leaves of a network by name."""
    if isinstance(network, nn.Module):
        return dict(network.named_parameters()) | dict(network.named_buffers())
    if isinstance(network, Mapping) and all(isinstance(leaf, Tensor) for leaf in network.values()):
        return network
    raise SettingError(f"start has modules or state dicts, but number {number} is a {type(network).__name__}")


def _start(
    found: Mapping[str, Tensor], expected: tuple[Leaves, Leaves], optional: set[str], number: int
) -> tuple[Leaves, Leaves]:
    params, buffers = (
        {name: _leaf(found, name, own, optional, number) for name, own in leaves.items()} for leaves in expected
    )
    return params, buffers


def _leaf(found: Mapping[str, Tensor], name: str, own: Tensor, optional: set[str], number: int) -> Tensor:
    if name not in found and (name in optional or name.startswith(OF_LIKELIHOOD)):
        return own
    came = found.get(name)
    if came is None or came.shape != own.shape or came.dtype != own.dtype:
        what = "nothing" if came is None else f"{tuple(came.shape)} {came.dtype}"
        raise SettingError(
            f"start must be networks like the task's: {name!r} needs {tuple(own.shape)} {own.dtype}, number {number} "
            f"has {what}"
        )
    return came.detach().to(own.device)
