"""Hidden units have no order: members that differ in their numbering alone are one function, twice.

Weight matching finds, layer by layer, the renumbering of the hidden units of one network that brings its weights
nearest to those of another, and goes round until nothing changes:

    P_l = argmax_P  <A_l, P B_l P_{l-1}^T> + <A_{l+1}, P_{l+1} B_{l+1} P^T>,   a linear assignment for each layer l

It works on plain chains of linear layers with elementwise activations (and norm layers and dropout) between them.

Reference: Ainsworth, Hayase & Srinivasa (2023), "Git Re-Basin: merging models modulo permutation symmetries".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.modules import activation
from torch.nn.modules.batchnorm import BatchNorm1d

from bayesemble.core.errors import ModelError
from bayesemble.core.members import Members
from bayesemble.core.types import Leaves

_MOST_ROUNDS = 100
_ELEMENTWISE = tuple(
    getattr(activation, name)
    for name in activation.__all__
    if name not in ("GLU", "MultiheadAttention", "PReLU", "Softmax", "Softmin", "LogSoftmax", "Softmax2d")
)


@dataclass(frozen=True)
class _Layer:
    """Leaves that carry the units which leave a linear layer: its own rows, and norm layers behind it."""

    linear: str
    leaves: tuple[str, ...]


def aligned(module: nn.Module, network: Members, to: Members) -> Members:
    """A network with its hidden units renumbered to match those of another; the function stays the same.

    Both are one network, every leaf with a member axis.
    """
    layers = _chain(module)
    own = {name: leaf[0] for name, leaf in (network.params | network.buffers).items()}
    other = {name: leaf[0] for name, leaf in to.params.items()}
    for _ in range(_MOST_ROUNDS):
        changed = False
        for index in range(len(layers) - 1):
            order = _best_order(layers, index, own, other)
            if not torch.equal(order, torch.arange(len(order))):
                _renumber(layers, index, own, order)
                changed = True
        if not changed:
            break

    def back(leaves: Leaves) -> Leaves:
        return {name: own[name].unsqueeze(0) for name in leaves}

    return replace(network, params=back(network.params), buffers=back(network.buffers))


def _best_order(layers: list[_Layer], index: int, own: Leaves, other: Leaves) -> Tensor:
    """For each unit of the other network behind a layer, the number of the unit of our own that matches it best."""
    following = f"{layers[index + 1].linear}.weight"
    gains = other[following].double().T @ own[following].double()
    for name in layers[index].leaves:
        if name in other:  # buffers do not count
            here, there = (leaves[name].double().reshape(len(gains), -1) for leaves in (own, other))
            gains += there @ here.T
    _, columns = linear_sum_assignment(gains.cpu().numpy(), maximize=True)
    return torch.as_tensor(columns)


def _renumber(layers: list[_Layer], index: int, own: Leaves, order: Tensor) -> None:
    for name in layers[index].leaves:
        own[name] = own[name][order]
    following = f"{layers[index + 1].linear}.weight"
    own[following] = own[following][:, order]


def _chain(module: nn.Module) -> list[_Layer]:
    """The linear layers one after the other, each with the norm layers behind it."""
    found: list[list[str]] = []
    for name, layer in _in_order(module):
        if isinstance(layer, nn.Linear):
            found.append([name])
        elif isinstance(layer, BatchNorm1d | nn.LayerNorm):
            if found:
                found[-1].append(name)
        elif not isinstance(layer, (*_ELEMENTWISE, nn.Dropout, nn.Flatten, nn.Identity)):
            raise ModelError(
                f"hidden units can be matched in chains of linear layers, norm layers and elementwise activations; "
                f"{name or 'the network'} is {type(layer).__name__}. Compare functions instead, or leave out align=True"
            )
    if len(found) < 2:
        raise ModelError("this network has no hidden layer whose units could be matched; leave out align=True")

    def leaves(names: list[str]) -> tuple[str, ...]:
        states = {name: module.get_submodule(name).state_dict() for name in names}
        return tuple(f"{name}.{leaf}" for name in names for leaf, values in states[name].items() if values.dim() > 0)

    return [_Layer(names[0], leaves(names)) for names in found]


def _in_order(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequential modules, in the order they run."""
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for own, child in module.named_children():
        yield from _in_order(child, f"{name}.{own}".lstrip("."))
