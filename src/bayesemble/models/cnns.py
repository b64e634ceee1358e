"""The plain convolutional networks for small images of "Deep ensembles: a loss landscape perspective".

Each stage is a 3x3 convolution, dropout, pooling over 2x2 pixels and a ReLU, which the last stage does without; one
dense layer follows. Weights and biases start by Glorot's uniform rule.

Reference: Fort, Hu & Lakshminarayanan (2019), and their released notebook.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from bayesemble.core.settings import require


class GlorotConv2d(nn.Conv2d):
    """A convolution that starts, and is reset, by Glorot's rule; its bias by that of one input."""

    def reset_parameters(self) -> None:
        """Uniform in +- sqrt(6 / (fan in + fan out))."""
        _glorot(self)


class GlorotLinear(nn.Linear):
    """A dense layer that starts, and is reset, by Glorot's rule; its bias by that of one input."""

    def reset_parameters(self) -> None:
        """Uniform in +- sqrt(6 / (fan in + fan out))."""
        _glorot(self)


@torch.no_grad()
def _glorot(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        bound = math.sqrt(6 / (1 + len(layer.bias)))
        layer.bias.uniform_(-bound, bound)


def cnn(
    widths: Sequence[int], num_classes: int = 10, *, channels: int = 3, size: int = 32, dropout: float = 0.1
) -> nn.Sequential:
    """A stage for each width, then a dense layer.

    Shape: in `(batch, channels, size, size)`, out `(batch, num_classes)`.
    """
    require(bool(widths), "a convolutional network needs at least one width")
    layers: list[nn.Module] = []
    before = channels
    for number, width in enumerate(widths):
        layers += [GlorotConv2d(before, width, 3, padding=1), nn.Dropout(dropout), nn.MaxPool2d(2, ceil_mode=True)]
        layers += [nn.ReLU()] if number < len(widths) - 1 else []
        before, size = width, math.ceil(size / 2)
    return nn.Sequential(*layers, nn.Flatten(), GlorotLinear(before * size * size, num_classes))


def small_cnn(num_classes: int = 10, *, channels: int = 3, size: int = 32, dropout: float = 0.1) -> nn.Sequential:
    """SmallCNN: stages of 16, 32 and 32 channels; 64 % on CIFAR-10 in the paper."""
    return cnn((16, 32, 32), num_classes, channels=channels, size=size, dropout=dropout)


def medium_cnn(num_classes: int = 10, *, channels: int = 3, size: int = 32, dropout: float = 0.1) -> nn.Sequential:
    """MediumCNN: stages of 64, 128, 256 and 256 channels, 971,146 parameters; 71 % on CIFAR-10 in the paper."""
    return cnn((64, 128, 256, 256), num_classes, channels=channels, size=size, dropout=dropout)
