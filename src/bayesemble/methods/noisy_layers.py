"""Layers whose weights are Normal(mean, std^2), with noise of its own for each row of a batch.

A network with one draw of its weights for all rows of a batch has a gradient that is as noisy as for a single row.
Where the network has a dense layer or a convolution, each row can have a draw of its own at little cost:

    dense, rows (row, feature)     y_n = W x_n + b + sqrt( S^2 x_n^2 + s^2 ) e_n,     e_n standard normal
    all others                     y_n = W x_n + b + r_n * ( (S * E) (s_n * x_n) + s * e ),     r_n, s_n random signs

The first, local reparameterisation, draws what a row is given, not its weights. A convolution meets its weights again
at each place of a row, and noise that is drawn for each place would forget that; flipped signs of one draw (E, e) for
all rows keep it: each row has weights of the right law at all its places, and rows are uncorrelated.

Reference: Kingma, Salimans & Welling (2015), "Variational dropout and the local reparameterization trick"; Wen et al.
(2018), "Flipout: efficient pseudo-independent weight perturbations on mini-batches".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.core.types import Leaves
from bayesemble.task.network_ends import parameters_by_layer
from bayesemble.task.task import BoundTask

LOCAL, SIGNS = 1, 2  # how noise comes into a layer: onto what it gives, or by signs of one draw of its weights
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Noise(NamedTuple):
    """What is random in a layer: standard deviations of its leaves, and standard normal numbers of their shapes."""

    weight_std: Tensor
    bias_std: Tensor | None
    weight: Tensor
    bias: Tensor | None


def kinds_of_layers(task: BoundTask) -> dict[str, int]:
    """The layers that noise can come into row by row, and how; seen on the rows that the task has met.

    Such a layer is met once in a pass, with rows first, and shares no weight with another; all its leaves are trained.
    """
    if task.mixed or task.example is None:
        return {}
    owners = list(parameters_by_layer(task.module).values())
    calls: dict[str, list[tuple[tuple[Any, ...], Tensor]]] = {}
    handles = []
    for name, layer in task.module.named_modules():
        prefix = f"{name}." if name else ""
        names = [prefix + leaf for leaf, _ in layer.named_parameters(recurse=False)]
        known = _runs_as_its_kind(layer) and all(leaf in task.shapes for leaf in names)
        if known and not any(sum(leaf in own for own in owners) > 1 for leaf in names):

            def see(_: nn.Module, args: tuple[Any, ...], given: Tensor, name: str = name) -> None:
                calls.setdefault(name, []).append((args, given))

            handles.append(layer.register_forward_hook(see))
    try:
        with torch.no_grad():
            outputs = task.forward(*task.new_member(seed=0), task.example)
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: LOCAL if met[0][1].dim() == 2 else SIGNS
        for name, met in calls.items()
        if len(met) == 1 and _rows_come_first(task.module.get_submodule(name), *met[0], len(outputs))
    }


def _runs_as_its_kind(layer: nn.Module) -> bool:
    """Whether it is a dense layer or a convolution; with another forward, of its class or its own, it may be any."""
    kind: Any = next((kind for kind in (nn.Linear, *_CONVOLUTIONS) if isinstance(layer, kind)), None)
    functions = ["forward", "_conv_forward"] if kind in _CONVOLUTIONS else ["forward"]
    return kind is not None and all(
        getattr(getattr(layer, name), "__func__", None) is getattr(kind, name) for name in functions
    )


def _rows_come_first(layer: nn.Module, args: tuple[Any, ...], given: Tensor, rows: int) -> bool:
    """Whether what enters and leaves a layer has an axis of rows, the first; a single image has none."""
    axes = 2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size)  # type: ignore[arg-type]
    return len(args) == 1 and given.dim() >= axes and len(args[0]) == len(given) == rows


@contextmanager
def noisy(module: nn.Module, kinds: Mapping[str, int], noise: Mapping[str, Noise]) -> Iterator[None]:
    """Inside the block, the layers give what they give with random weights, drawn anew in each pass."""
    handles = [
        module.get_submodule(name).register_forward_hook(_adder(noise[name], kind)) for name, kind in kinds.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _adder(noise: Noise, kind: int) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
    def add(layer: nn.Module, args: tuple[Tensor], given: Tensor) -> Tensor:
        return given + (_local(args[0], noise) if kind == LOCAL else _by_signs(layer, args[0], given, noise))

    return add


def _local(entered: Tensor, noise: Noise) -> Tensor:
    """Noise of what a dense layer gives: the standard deviation of W x + b, times a normal number for each row."""
    bias = None if noise.bias_std is None else noise.bias_std.square()
    variance = F.linear(entered.square(), noise.weight_std.square(), bias)
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()  # at 0 the root has no slope
    return std * torch.randn_like(std)


def _by_signs(layer: nn.Module, entered: Tensor, given: Tensor, noise: Noise) -> Tensor:
    """What a layer would give with noise for weights, with signs of features on both sides, for each row its own."""
    axis = -1 if isinstance(layer, nn.Linear) else 1
    before, after = (_signs(tensor, axis) for tensor in (entered, given))
    weight = noise.weight_std * noise.weight
    bias = None if noise.bias is None or noise.bias_std is None else noise.bias_std * noise.bias
    if isinstance(layer, nn.Linear):
        return after * F.linear(before * entered, weight, bias)
    moved: Tensor = layer._conv_forward(before * entered, weight, bias)  # type: ignore[operator]
    return after * moved


def _signs(tensor: Tensor, axis: int) -> Tensor:
    """-1 or 1 for each row and feature, the same at all places."""
    shape = [1] * tensor.dim()
    shape[0], shape[axis] = tensor.shape[0], tensor.shape[axis]
    return torch.where(torch.rand(shape, dtype=tensor.dtype, device=tensor.device) < 0.5, -1.0, 1.0).to(tensor.dtype)


def noise_of_layer(name: str, stds: Leaves, drawn: Leaves) -> Noise:
    """The noise of one layer, out of the standard deviations and the normal numbers of all leaves."""
    prefix = f"{name}." if name else ""
    weight, bias = prefix + "weight", prefix + "bias"
    return Noise(stds[weight], stds.get(bias), drawn[weight], drawn.get(bias))
