"""What the operations of a network depend on beside tensors: whether a record of them still stands for the network."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

_SIMPLE = (bool, int, float, str)
_WAYS_OUT = {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage"}


class Situations:
    """The situation of any network: None if its Python code has to run, because somebody listens.

    Numbers and words that somebody puts into a layer belong to it, and so does a count that the network keeps itself.
    A network is gone through again only if something of it is no longer what it was.
    """

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[nn.Module, _Seen] = weakref.WeakKeyDictionary()

    def __call__(self, network: nn.Module) -> Hashable:
        """Find it."""
        if torch_module._has_any_global_hook():
            return None
        seen = self._seen.get(network)
        if seen is None or not seen.holds():
            seen = self._seen[network] = _look_at(network)
        if seen.settings is None:
            return None
        modes = torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
        return seen.settings, modes


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a network looked like."""

    settings: tuple[Any, ...] | None
    now: list[dict[str, Any]]
    """Attributes, parts and hooks of each layer, as they are at any time."""
    then: list[dict[str, Any]]

    def holds(self) -> bool:
        """Whether it still looks so."""
        try:
            return self.now == self.then
        except Exception:  # an attribute that is another one now, and of a kind that is not simply compared
            return False


def _look_at(network: nn.Module) -> _Seen:
    settings: list[Any] = []
    now: list[dict[str, Any]] = []
    listens = False
    layers: list[nn.Module | None] = [network]
    for layer in layers:  # which grows meanwhile; `network.modules()` takes three times as long
        if layer is None:
            continue
        layers += layer._modules.values()
        listens |= bool(layer._forward_hooks or layer._forward_pre_hooks)
        settings += [value for value in vars(layer).values() if isinstance(value, _SIMPLE)]
        now += [vars(layer), layer._modules, layer._forward_hooks, layer._forward_pre_hooks]  # type: ignore[list-item]
    return _Seen(None if listens else tuple(settings), now, [dict(one) for one in now])


class Looks(TorchFunctionMode):
    """Sees whether the numbers of a tensor leave torch, so that what is made of them cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= getattr(func, "__name__", "") in _WAYS_OUT
        return func(*args, **(kwargs or {}))
