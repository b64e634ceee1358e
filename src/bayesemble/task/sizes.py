"""Weights whose size changes nothing: those before a batch norm, which divides by it again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.types import Leaves

_FACTOR = 2.0
_ROUNDING = 1e-2  # norm layers add a little to what they divide by


def without_size(params: Leaves, run: Callable[[Leaves], Tensor]) -> list[str]:
    """Names of matrices and kernels that can be doubled without another output, as `run` gives it for leaves.

    They are tried all at once and then by halves, as in most networks either hardly any has a size or nearly all do not.
    """

    def outputs(doubled: Sequence[str]) -> Tensor:
        with torch.no_grad(), seeds.TorchStream(0):
            return run({name: leaf * _FACTOR if name in doubled else leaf for name, leaf in params.items()})

    plain = outputs(())
    limit = _ROUNDING * float(plain.abs().max())

    def found(names: list[str]) -> list[str]:
        if not names or bool(((outputs(names) - plain).abs() <= limit).all()):
            return names
        half = len(names) // 2
        return found(names[:half]) + found(names[half:]) if half else []

    return found([name for name, leaf in params.items() if leaf.dim() > 1])
