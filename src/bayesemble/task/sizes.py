"""Weights whose size changes nothing: those before a batch norm, which divides by it again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bayesemble.core import seeds
from bayesemble.core.types import Leaves

_FACTOR = 2.0
_ROUNDING = 1e-2  # norm layers add a little to what they divide by


def without_size(start: Callable[[], tuple[Leaves, Leaves]], run: Callable[[Leaves, Leaves], Tensor]) -> list[str]:
    """Names of matrices and kernels that can be doubled without another output.

    They are tried all at once and then by halves, as in most networks either nearly all have a size or hardly any has.
    Leaves of zeros, which also hide what comes before them, are filled for it.

    Args:
        start: Gives the parameters and buffers of a network.
        run: Its outputs in training for parameters and buffers, which it may change.
    """
    with _disable_current_modes():  # a step that asks first may be on record, which this is no part of
        return _Doubling(*start(), run).found()


class _Doubling:
    def __init__(self, params: Leaves, buffers: Leaves, run: Callable[[Leaves, Leaves], Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = {name: leaf if leaf.any() else _noise(leaf, generator) for name, leaf in params.items()}
        self.buffers, self.run = buffers, run
        self.plain = self.outputs(())
        self.limit = _ROUNDING * float(self.plain.abs().max())

    def outputs(self, doubled: Sequence[str]) -> Tensor:
        leaves = {name: leaf * _FACTOR if name in doubled else leaf for name, leaf in self.params.items()}
        with torch.no_grad(), seeds.TorchStream(0):
            return self.run(leaves, {name: buffer.clone() for name, buffer in self.buffers.items()})

    def found(self, names: list[str] | None = None) -> list[str]:
        names = [name for name, leaf in self.params.items() if leaf.dim() > 1] if names is None else names
        if not names or bool(((self.outputs(names) - self.plain).abs() <= self.limit).all()):
            return names
        half = len(names) // 2
        return self.found(names[:half]) + self.found(names[half:]) if half else []


def _noise(leaf: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    return (drawn / max(leaf[0].numel() if leaf.dim() else 1, 1) ** 0.5).to(leaf)
