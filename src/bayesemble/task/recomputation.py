"""Networks that run parts of themselves again in the backward pass, as activation checkpointing does.

The leaves of a member are in the modules of a network while it runs forward. What runs again in the backward pass must
meet them there too, so whoever takes gradients records which leaves were where, and puts them back for that pass.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import CheckpointFunction

from bayesemble.core.errors import ModelError
from bayesemble.core.seeds import EagerMode, recomputing
from bayesemble.core.types import Leaves

Placed = tuple[nn.Module, Leaves]
"""A network, and the leaves that it ran forward with."""

_LOCAL = threading.local()


class Watch(EagerMode):
    """Sees whether anything inside its block will be run again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.recomputes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recomputes = self.recomputes or recomputing()
        if not torch.is_grad_enabled() and _in_older_form(sys._getframe()):
            raise ModelError(
                "the network uses activation checkpointing in its older form (torch.utils.checkpoint with "
                "use_reentrant=True), which gives gradients to no parameters that it is not told of; ask for "
                "use_reentrant=False (Hugging Face: gradient_checkpointing_enable takes it), or turn it off"
            )
        return func(*args, **(kwargs or {}))


def _in_older_form(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def recorded() -> Iterator[list[Placed]]:
    """Keep what networks that recompute run with inside the block, in this thread."""
    before = getattr(_LOCAL, "placed", None)
    found: list[Placed] = []
    _LOCAL.placed = found
    try:
        yield found
    finally:
        _LOCAL.placed = before


def record(network: nn.Module, leaves: Leaves) -> None:
    """Say that a network that recomputes has run with these leaves."""
    placed = getattr(_LOCAL, "placed", None)
    if placed is not None:
        placed.append((network, leaves))


@contextmanager
def again(placed: Sequence[Placed]) -> Iterator[None]:
    """Put leaves back into their networks for the block."""
    with ExitStack() as stack:
        for network, leaves in placed:
            stack.enter_context(_reparametrize_module(network, dict(leaves), tie_weights=True))
        yield
