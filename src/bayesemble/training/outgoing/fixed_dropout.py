"""Dropout layers that always drop the same units: those that `predict` drops for a single row.

Monte Carlo dropout drops other units in each row and each batch, so that what it says of a row depends on its
neighbours. A module has to be a function of its inputs: here all rows have the masks of a row that is predicted alone,

    module(x)[n] = predict(x[n : n + 1])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.seeds import TorchStream
from bayesemble.core.types import Inputs, map_tensors
from bayesemble.task.networks import dropout_layers, dropout_on
from bayesemble.training.outgoing.networks import as_call

_LINEAR = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # y = mask * x


class FixedDropout(nn.Module):
    """Multiplies by the same mask each time; a layer that is met several times in a pass has a mask for each."""

    def __init__(self, masks: Sequence[Tensor]) -> None:
        super().__init__()
        self._count, self._met = len(masks), 0
        for number, mask in enumerate(masks):
            self.register_buffer(f"mask_{number}", mask)

    def begin(self) -> None:
        """A new pass through the network begins."""
        self._met = 0

    def forward(self, entered: Tensor) -> Tensor:
        """What the layer leaves over of what enters it."""
        if self._met == self._count:
            raise ModelError("a dropout layer is met more often on these rows than on those it was fixed on")
        mask = self.get_buffer(f"mask_{self._met}")
        self._met += 1
        return entered * mask


def with_fixed_dropout(networks: Sequence[nn.Module], rows: Inputs | None, seeds: Sequence[int]) -> None:
    """Put fixed layers in the place of dropout layers that act, with the masks of each seed; in place."""
    if rows is None:
        raise SettingError(
            "which units are dropped is found by a run on rows like those of training, and this ensemble has none; "
            "predict a row once with the ensemble that fit returned, and make the module of that one"
        )
    few = map_tensors(lambda leaf: leaf[:2], rows)
    first = map_tensors(lambda leaf: leaf[:1], rows)
    for network, seed in zip(networks, seeds, strict=True):
        _fix(network, first, seed)
    _check(networks[0], few)


def _fix(network: nn.Module, row: Inputs, seed: int) -> None:
    those = dropout_layers(network)
    acting = [(name, layer) for name, layer in network.named_modules() if layer in those]
    masks: dict[str, list[Tensor]] = {name: [] for name, _ in acting}
    handles = []
    entered: list[Tensor] = []
    for name, layer in acting:
        if not isinstance(layer, _LINEAR):
            raise SettingError(f"{name!r} is {type(layer).__name__}, which is more than a mask; use nn.Dropout layers")

        def ones(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            entered.append(args[0])
            return (torch.ones_like(args[0]),)

        def keep(_: nn.Module, args: tuple[Tensor, ...], mask: Tensor, own: str = name) -> Tensor:
            masks[own].append(mask.clone())
            return entered.pop() * mask

        handles += [layer.register_forward_pre_hook(ones), layer.register_forward_hook(keep)]
    positional, named = as_call(row)
    try:
        with torch.no_grad(), TorchStream(seed), dropout_on(network):
            network(*positional, **named)
    finally:
        for handle in handles:
            handle.remove()
    for name, _ in acting:
        if masks[name]:
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, FixedDropout(masks[name]))


def _check(network: nn.Module, rows: Inputs) -> None:
    """Refuse a network in which the masks of one row do not fit several."""
    positional, named = as_call(rows)
    begin(network)
    try:
        with torch.no_grad():
            network(*positional, **named)
    except RuntimeError as error:
        raise ModelError(
            "the masks that a dropout layer has for one row do not fit several, so that no module can have fixed ones: "
            f"{error}; use be.Dropout(rate=...) in place of MCDropout"
        ) from error


def begin(network: nn.Module) -> None:
    """A pass through the network begins."""
    for layer in network.modules():
        if isinstance(layer, FixedDropout):
            layer.begin()
