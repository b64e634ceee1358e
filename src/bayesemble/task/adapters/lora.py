"""Low-rank adapters: a dense layer whose frozen weight has a trained product of two thin matrices beside it.

    y = W x + b + scale * B (A x),      A (rank, in) random, B (out, rank) zero at the start,  scale = alpha / rank

At the start the layer gives to the bit what it gave before. Only A and B have gradients, and what a layer gives is
never worked out from W + scale B A, of which each member would need its own.

Reference: Hu et al. (2022), "LoRA: Low-rank adaptation of large language models".
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.core.errors import ModelError

FACTORS = ("lora_A", "lora_B")


class LoraLinear(nn.Linear):
    """A dense layer with a low-rank adapter; made from one that is there by `add_lora`."""

    lora_A: Tensor  # noqa: N815
    lora_B: Tensor  # noqa: N815
    lora_scale: float

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W + scale B A, for code that takes the weight of a layer instead of calling it, as attention does.

        Of a layer whose weight is spread over processes at the moment, it is W, which `fully_shard` asks for by name.
        """
        if hasattr(self._frozen_weight, "to_local"):
            return self._frozen_weight
        return self._frozen_weight + self.lora_scale * (self.lora_B @ self.lora_A)

    @property
    def _frozen_weight(self) -> Tensor:
        frozen = self._parameters["weight"]
        assert frozen is not None
        return frozen

    def forward(self, input: Tensor) -> Tensor:
        """What the frozen layer gives, plus what the adapter adds."""
        low = F.linear(input, self.lora_A)
        low = low if self.lora_scale == 1 else low * self.lora_scale
        return F.linear(input, self._frozen_weight, self.bias) + F.linear(low, self.lora_B)

    def reset_parameters(self) -> None:
        """Draw A as the weight of a dense layer is drawn, U(-1 / sqrt(in), 1 / sqrt(in)), and set B to zero."""
        with torch.no_grad():
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            self.lora_B.zero_()


def add_lora(name: str, layer: nn.Module, rank: int, alpha: float) -> None:
    """Give a dense layer an adapter, in place."""
    if isinstance(layer, LoraLinear):
        raise ModelError(f"the layer {name!r} has an adapter already; adapt the network that it was made from")
    own = getattr(layer.forward, "__func__", None)  # a forward may be put into a layer too, and would hide ours
    if not isinstance(layer, nn.Linear) or own is not nn.Linear.forward:
        came = f"is a {type(layer).__name__}" + (" with another forward" if type(layer) is nn.Linear else "")
        raise ModelError(
            f"a low-rank adapter needs an nn.Linear, the layer {name!r} {came}; name other layers by targets="
        )
    frozen = layer.weight
    layer.__class__ = LoraLinear  # its hooks and names stay
    assert isinstance(layer, LoraLinear)
    layer.lora_A = nn.Parameter(frozen.new_empty(rank, layer.in_features))
    layer.lora_B = nn.Parameter(frozen.new_empty(layer.out_features, rank))
    layer.lora_scale = alpha / rank
    layer.reset_parameters()
