"""Multilayer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(num_inputs: int, hidden: Sequence[int], num_outputs: int) -> nn.Sequential:
    """A multilayer perceptron with ReLU between the layers; images are flattened first.

    Shape: in `(batch, num_inputs)` or `(batch, ...)`, out `(batch, num_outputs)`.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [num_inputs, *hidden]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))
