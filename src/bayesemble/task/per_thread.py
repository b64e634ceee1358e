"""One network that several threads run at once: each has modules of its own, and all share the tensors."""

from __future__ import annotations

import copy
import threading
from typing import Any

from torch import nn

from bayesemble.core.errors import ModelError


class PerThread:
    """A network, and copies of its modules for other threads than the one that made it.

    Running a network with the leaves of a member puts them into its modules for a moment, and training mode is a flag
    of the modules: two threads must not do that to the same ones.
    """

    def __init__(self, network: nn.Module) -> None:
        self.first = network
        """That of the thread that made it."""
        self._copying = threading.Lock()
        self._local = threading.local()
        self._local.network = network

    def here(self) -> nn.Module:
        """The network of this thread."""
        network: nn.Module | None = getattr(self._local, "network", None)
        if network is None:
            network = self._local.network = self._copied()
        return network

    def _copied(self) -> nn.Module:
        with self._copying:
            shared = [*self.first.parameters(), *self.first.buffers()]
            try:
                return copy.deepcopy(self.first, {id(tensor): tensor for tensor in shared})
            except Exception as error:  # a module may hold anything, such as an open file
                raise ModelError(
                    f"{type(self.first).__name__} cannot be copied for another thread: {error}; "
                    "use the ensemble in the thread that made it"
                ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self.here(),)
