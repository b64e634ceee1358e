"""Multilayer perceptrons."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


class ScaledBatchNorm1d(nn.BatchNorm1d):
    """Batch norm whose weights start at `scale`, also each time they are reset."""

    scale = 1.0  # for the reset inside the constructor of torch

    def __init__(self, num_features: int, scale: float) -> None:
        super().__init__(num_features)
        self.scale = scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights `scale`, biases zero, statistics those of a standard normal variable."""
        super().reset_parameters()
        nn.init.constant_(self.weight, self.scale)


def mlp(
    num_inputs: int,
    hidden: Sequence[int],
    num_outputs: int,
    *,
    norm: bool = False,
    input_norm: bool = False,
    bias: bool = True,
    norm_scale: float = 1.0,
    dropout: float = 0.0,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A multilayer perceptron with an activation between the layers; images are flattened first.

    `norm` puts batch norm between each hidden linear layer and its activation, `input_norm` before the first layer.
    The weights (gamma) of both start at `norm_scale`. Without `bias`, no linear layer has one; batch norm keeps its
    own. `dropout` is the rate of a dropout layer after each activation. `activation` makes a new activation for each
    hidden layer.

    Shape: in `(batch, num_inputs)` or `(batch, ...)`, out `(batch, num_outputs)`.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    if input_norm:
        layers.append(ScaledBatchNorm1d(num_inputs, norm_scale))
    widths = [num_inputs, *hidden]
    for before, after in pairwise(widths):
        layers.append(nn.Linear(before, after, bias=bias))
        if norm:
            layers.append(ScaledBatchNorm1d(after, norm_scale))
        layers.append(activation())
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs, bias=bias))
