"""An adapted network whose frozen parts are sharded over processes: it is run itself, with the leaves of a member.

torch does not copy modules that `fully_shard` has wrapped, and their weights are no tensors of one process. So the
network stays as it is, out of sight of all that looks for leaves. Members have the trained leaves alone, under the
names that these have in the network, and its code runs with them in their places.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from bayesemble.core.errors import ModelError
from bayesemble.task.adapters.adapt import ATTRIBUTE, adaptation_of
from bayesemble.task.adapters.lora import LoraLinear
from bayesemble.task.adapters.still import hold_still, set_mode


class AroundShards(nn.Module):
    """The trained leaves of an adapted network, around the network itself."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        record = adaptation_of(network)
        assert record is not None
        self._kept = _Kept(network)
        setattr(self, ATTRIBUTE, record)
        for name, part in list(network.named_modules()):  # in their order, so that they are drawn as without shards
            if name in record.heads:
                _put(self, name, copy.deepcopy(part))
            elif isinstance(part, LoraLinear):
                _put(self, name, _Factors(part))
        hold_still(network)
        set_mode(network, False)
        self.register_forward_pre_hook(_seen)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Run the network with the leaves that are here; all processes that hold parts of it have to."""
        network = self._kept.network
        if threading.get_ident() != self._kept.thread:
            raise ModelError("a network that is sharded over processes runs in the thread that made its task alone")
        if network.training != self.training:
            set_mode(network, self.training)
        leaves = dict(self.named_parameters()) | dict(self.named_buffers())
        return functional_call(network, leaves, inputs, named_inputs)


class _Kept:
    """A network that is shared by all copies of what is around it."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.thread = network, threading.get_ident()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return self


class _Factors(nn.Module):
    """The adapter of a dense layer, without the layer."""

    lora_A: Tensor  # noqa: N815
    lora_B: Tensor  # noqa: N815

    def __init__(self, layer: LoraLinear) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(layer.lora_A.detach().clone())
        self.lora_B = nn.Parameter(layer.lora_B.detach().clone())

    def reset_parameters(self) -> None:
        """As the layer draws it."""
        LoraLinear.reset_parameters(self)  # type: ignore[arg-type]


def obstacle(network: nn.Module) -> str | None:
    """Why a network that `fully_shard` has wrapped cannot be run with the leaves of members, or None."""
    record = adaptation_of(network)
    if record is None or record.kind not in ("lora", "head"):
        return 'only adapters of be.adapt(model, "lora" or "head") can be trained in it'
    for name, leaf in network.named_parameters():
        if leaf.requires_grad and hasattr(leaf, "to_local"):
            return f"its trained leaf {name!r} is sharded too: name those in fully_shard(..., ignored_params=...)"
    return None


def _put(around: nn.Module, name: str, part: nn.Module) -> None:
    """Register a part under a name with dots."""
    *path, last = name.split(".")
    for step in path:
        if step not in around._modules:
            around.add_module(step, nn.Module())
        around = around._modules[step]  # type: ignore[assignment]
    around.add_module(last, part)


def _seen(*_: Any) -> None:
    """A hook that does nothing but be there: steps of a network with hooks are not recorded."""
