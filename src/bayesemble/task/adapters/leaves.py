"""The leaves of one network, of which those that are frozen lie where all members find them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bayesemble.core.types import Leaves
from bayesemble.task.adapters.still import still_buffers


def leaves_of(module: nn.Module, template: nn.Module) -> tuple[Leaves, Leaves]:
    """Trained parameters, and buffers with the frozen parameters among them; copies, but for what stands still.

    Of what stands still, leaves that are equal to those of the template are the template's own: so networks that are
    made one after the other take the memory of one backbone.
    """
    params: Leaves = {}
    buffers: Leaves = {}
    there = {name: leaf.detach() for name, leaf in (*template.named_parameters(), *template.named_buffers())}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            params[name] = parameter.detach().clone()
        else:
            buffers[name] = _one_of(parameter.detach(), there.get(name))
    still = stands_still(template)
    for name, buffer in module.named_buffers():
        own = buffer.detach()
        buffers[name] = _one_of(own, there.get(name)) if name in still else own.clone()
    return params, buffers


def stands_still(template: nn.Module) -> set[str]:
    """Names of the leaves that training does not change: frozen parameters, and buffers of parts that stand still."""
    frozen = {name for name, parameter in template.named_parameters() if not parameter.requires_grad}
    return frozen | set(still_buffers(template))


def in_common(names: set[str], first: Leaves, others: Iterable[Leaves]) -> frozenset[str]:
    """Of the leaves with these names, those that are equal in all networks."""
    found = [name for name in first if name in names]
    for leaves in others:
        found = [name for name in found if _equal(leaves[name], first[name])]
    return frozenset(found)


def _one_of(leaf: Tensor, known: Tensor | None) -> Tensor:
    """The tensor that is known already, if it has the same values, else a copy."""
    return known if known is not None and _equal(leaf, known) else leaf.clone()


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same_memory = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return same_memory or torch.equal(one, other.to(one.device))
