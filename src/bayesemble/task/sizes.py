"""Weights whose size changes nothing: those before a batch norm, which divides by it again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bayesemble.core import seeds
from bayesemble.core.types import Leaves

_FACTOR = 2.0
_ROUNDING = 1e-2  # norm layers add a little to what they divide by


def without_size(params: Leaves, run: Callable[[Leaves], Tensor]) -> list[str]:
    """Names of matrices and kernels that can be doubled without another output, as `run` gives it for leaves.

    They are tried all at once and then by halves, as in most networks either nearly all have a size or hardly any has.
    Leaves of zeros, which also hide what comes before them, are filled for it.
    """
    with _disable_current_modes():  # a step that asks first may be on record, which this is no part of
        return _without_size(params, run)


def _without_size(params: Leaves, run: Callable[[Leaves], Tensor]) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    filled = {name: leaf if leaf.any() else _noise(leaf, generator) for name, leaf in params.items()}

    def outputs(doubled: Sequence[str]) -> Tensor:
        with torch.no_grad(), seeds.TorchStream(0):
            return run({name: leaf * _FACTOR if name in doubled else leaf for name, leaf in filled.items()})

    plain = outputs(())
    limit = _ROUNDING * float(plain.abs().max())

    def found(names: list[str]) -> list[str]:
        if not names or bool(((outputs(names) - plain).abs() <= limit).all()):
            return names
        half = len(names) // 2
        return found(names[:half]) + found(names[half:]) if half else []

    return found([name for name, leaf in params.items() if leaf.dim() > 1])


def _noise(leaf: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    return (drawn / max(leaf[0].numel() if leaf.dim() else 1, 1) ** 0.5).to(leaf)
