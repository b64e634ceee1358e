"""The output layer of a network by what enters it, from plain passes over the rows.

    f_n = ( W phi_np + b )[picked],     phi_np: features that enter the layer in row n at position p, a time or a pixel

Where the selected leaves are those of one nn.Linear or convolution, and the outputs of the network are numbers that
this layer gave, the features say all about the outputs as a function of these leaves: no derivative of the network is
needed, whatever it is made of. Whether that is so is seen on the rows themselves, for each batch anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.core.members import Members
from bayesemble.core.types import Inputs, Leaves, exact, map_tensors, widest
from bayesemble.methods.laplace.gauss_newton import Network
from bayesemble.task.network_ends import parameters_by_layer
from bayesemble.task.select import layers
from bayesemble.task.task import BoundTask

_STEP = 256  # between two probes: far apart, so that a bound on the outputs is met
_ROUNDING = 100  # units in the last place by which two ways to add up may differ


class Features(NamedTuple):
    """What a batch of rows looks like from the output layer."""

    entering: Tensor
    """`(row, position, feature)`: what the selected leaves are multiplied by; a 1 for the bias is last."""
    outputs: Tensor
    """`(row, ...)` of the network."""
    picked: Tensor
    """`(row, output)`: where each output of a row lies among the numbers that the layer gave, `(position, channel)`."""
    channels: int
    """How many numbers the layer gives at a position."""

    def of_outputs(self, values: Tensor) -> Tensor:
        """Of values `(row, position, channel)` those that belong to the outputs, shaped like these."""
        return values.flatten(1).gather(1, self.picked.to(values.device)).reshape(self.outputs.shape)

    def of_layer(self, values: Tensor) -> Tensor:
        """Values of the outputs, added up where the layer gave them: `(row, position, channel)`; 0 elsewhere."""
        rows, positions = self.entering.shape[:2]
        found = values.new_zeros(rows, positions * self.channels)
        return found.scatter_add_(1, self.picked, values.reshape(rows, -1)).reshape(rows, positions, self.channels)


class _Call(NamedTuple):
    """One pass through the network, with what entered its output layer and what left it."""

    features: Tensor
    """`(row, position, feature)`."""
    given: Tensor
    """`(row, position, channel)`."""
    outputs: Tensor


def features_of(network: Network, inputs: Inputs) -> Features | None:
    """What enters the output layer on these rows; None if the selected leaves are not one that can be told so."""
    layer = _layer(network)
    if layer is None:
        return None
    picked = _picked(network, layer, map_tensors(lambda leaf: leaf[:2], inputs))
    call = _call(network, layer, inputs) if picked is not None else None
    if call is None or picked is None:
        return None
    picked = picked[:1].expand(len(call.outputs), -1)
    if not (_tells_apart(network, layer) and _fits(call, picked)):  # each row may have its own, such as its last word
        own = _picked(network, layer, inputs)
        if own is None or not _fits(call, own):
            return None
        picked = own
    return Features(_selected(network, call.features), call.outputs, picked, call.given.shape[2])


def is_output_layer(task: BoundTask, members: Members, names: Sequence[str]) -> bool:
    """Whether the leaves are those of an output layer, as far as it is seen on rows that the task has met."""
    seen = task.example is not None
    return seen and features_of(Network(task, *members.split()[0], tuple(names)), task.example) is not None


def _layer(network: Network) -> str | None:
    """The layer that the selected leaves are the weight and the bias of, if it is the only one and linear."""
    module = network.task.module
    found = list(layers(module, network.names))
    if len(found) != 1:
        return None
    kind, prefix = module.get_submodule(found[0]), f"{found[0]}." if found[0] else ""
    owners = parameters_by_layer(module).values()
    tied = any(sum(name in own for own in owners) > 1 for name in network.names)
    linear = isinstance(kind, nn.Linear) or (isinstance(kind, nn.Conv1d | nn.Conv2d | nn.Conv3d) and kind.groups == 1)
    return found[0] if linear and not tied and set(network.names) <= {prefix + "weight", prefix + "bias"} else None


def _call(
    network: Network, name: str, inputs: Inputs, chosen: Leaves | None = None, instead: Tensor | None = None
) -> _Call | None:
    """Run the network, with other values of the selected leaves or of what the layer gives; None if it cannot be read.

    What is seen is copied at once: the network may change it in place.
    """
    task, seen = network.task, []
    layer = task.module.get_submodule(name)

    def see(_: nn.Module, args: tuple[Tensor, ...], options: dict[str, Tensor], given: Tensor) -> Tensor | None:
        seen.append(((args or tuple(options.values()))[0].clone(), given.clone()))
        return None if instead is None else instead.reshape(given.shape).clone()

    handle = layer.register_forward_hook(see, with_kwargs=True)
    try:
        with torch.no_grad():
            outputs = task.forward(network.params | (chosen or {}), network.buffers, inputs)
    finally:
        handle.remove()
    if len(seen) != 1:
        return None
    return _read(layer, *seen[0], outputs)


def _read(layer: nn.Module, entered: Tensor, given: Tensor, outputs: Tensor) -> _Call | None:
    """What entered a layer and left it, position by position."""
    rows = len(outputs)
    if isinstance(layer, nn.modules.conv._ConvNd):
        if given.dim() != 2 + len(layer.kernel_size) or len(given) != rows:
            return None
        return _Call(_windows(layer, entered).flatten(1, -2), given.movedim(1, -1).flatten(1, -2), outputs)
    if given.dim() < 2 or given.shape[:-1].numel() % rows:
        return None
    return _Call(entered.reshape(rows, -1, entered.shape[-1]), given.reshape(rows, -1, given.shape[-1]), outputs)


def _windows(layer: nn.modules.conv._ConvNd, images: Tensor) -> Tensor:
    """What a convolution multiplies its weight by, `(row, place, ..., number of a window)`."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    found = F.pad(images, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, step, gap) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), 2):
        found = found.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
    return found.movedim(1, 1 + len(layer.kernel_size)).flatten(1 + len(layer.kernel_size))


def _picked(network: Network, name: str, inputs: Inputs) -> Tensor | None:
    """Which of the numbers that the layer gave each output is, `(row, output)`; None if it is another function of them.

    The layer is made to give its own numbers' places, a digit at a time, with other values of the selected leaves: the
    features must not change, and the outputs must be the places of the same row.
    """
    plain, layer = _call(network, name, inputs), network.task.module.get_submodule(name)
    if plain is None or not _is_linear(network, name, plain):
        return None
    shape, rows = plain.given.shape, len(plain.outputs)
    places = torch.arange(plain.given.numel(), device=plain.given.device).reshape(shape)
    moved = {leaf: value + 1 for leaf, value in network.chosen.items()}
    base = 1 << (16 if torch.finfo(plain.given.dtype).eps < 1e-6 else 8)  # whole numbers up to it are exact
    found, worth = torch.zeros_like(plain.outputs, dtype=torch.long), 1
    while worth < places.numel() or worth == 1:
        digits = (places // worth % base - base // 2) * _STEP
        probe = _call(network, name, inputs, moved, _as_given(layer, digits.to(plain.given)))
        if probe is None or probe.outputs.shape != found.shape or not torch.equal(probe.features, plain.features):
            return None
        digit = probe.outputs.to(widest(probe.outputs.device)) / _STEP + base // 2
        if not ((digit == digit.round()) & (digit >= 0) & (digit < base)).all():
            return None
        found, worth = found + worth * digit.long(), worth * base
    size = places[0].numel()
    own = found.reshape(rows, -1) - size * torch.arange(rows, device=found.device).unsqueeze(1)
    return own if ((own >= 0) & (own < size)).all() else None


def _as_given(layer: nn.Module, values: Tensor) -> Tensor:
    """Values `(row, position, channel)` in the order in which the layer gives them."""
    return values.movedim(2, 1) if isinstance(layer, nn.modules.conv._ConvNd) else values


def _is_linear(network: Network, name: str, call: _Call) -> bool:
    """Whether the layer gives W phi + b, as its kind has it: a class derived from it may do anything."""
    weight, bias = _weight_and_bias(network, name)
    if call.features.shape[2] != weight.shape[1] or call.given.shape[2] != weight.shape[0]:
        return False
    features = exact(call.features)
    error = (features @ weight.T + bias - exact(call.given)).abs()
    size = features.abs() @ weight.abs().T + bias.abs()
    return bool((error <= _ROUNDING * torch.finfo(call.given.dtype).eps * size.amax().clamp_min(1e-30)).all())


def _weight_and_bias(network: Network, name: str) -> tuple[Tensor, Tensor]:
    """Of a layer, `(channel, feature)` and `(channel,)`, in double precision."""
    prefix, values = f"{name}." if name else "", network.buffers | network.params
    weight = exact(values[f"{prefix}weight"].flatten(1))
    return weight, exact(values.get(f"{prefix}bias", weight.new_zeros(len(weight))))


def _tells_apart(network: Network, name: str) -> bool:
    """Whether what the layer gives tells its channels and positions apart: a weight of zeros, for one, does not."""
    weight, _ = _weight_and_bias(network, name)
    along = weight @ torch.arange(1, weight.shape[1] + 1).to(weight).sin()  # channels of equal weights fall together
    return bool((along != 0).all() and (along.sort().values.diff() > 0).all())


def _fits(call: _Call, picked: Tensor) -> bool:
    """Whether the outputs are, bit by bit, what is picked of what the layer gave."""
    given, outputs = call.given.flatten(1), call.outputs.reshape(len(call.outputs), -1)
    if picked.shape != outputs.shape or int(picked.max()) >= given.shape[1]:
        return False
    return torch.equal(given.gather(1, picked).to(outputs.dtype), outputs)


def _selected(network: Network, features: Tensor) -> Tensor:
    """What the selected leaves are multiplied by: the features for the weight, a 1 for the bias."""
    kinds = {leaf.rpartition(".")[2] for leaf in network.names}
    ones = features.new_ones(*features.shape[:2], 1)
    return torch.cat([*([features] if "weight" in kinds else []), *([ones] if "bias" in kinds else [])], dim=2)
