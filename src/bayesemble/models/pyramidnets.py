"""Pyramidal residual networks: the number of channels grows by the same amount in every block.

Reference: Han, Kim and Kim (2017), "Deep pyramidal residual networks", basic blocks with additive widening.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.core.settings import require


class PyramidBlock(nn.Module):
    """BN - 3x3 convolution - BN - ReLU - 3x3 convolution - BN, and a shortcut without parameters.

    The shortcut averages over 2x2 pixels at strides and adds zero channels. Nothing follows the sum.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.input_norm = nn.BatchNorm2d(channels_in)
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels_out)
        self.stride = stride
        self.added_channels = channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, channels_in, height, width)` -> `(batch, channels_out, height / stride, width / stride)`."""
        out = torch.relu(self.first_norm(self.first(self.input_norm(x))))
        out = self.second_norm(self.second(out))
        # Odd sizes are rounded up, as the convolution does.
        shortcut = F.avg_pool2d(x, self.stride, ceil_mode=True) if self.stride > 1 else x
        if self.added_channels:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.added_channels))
        return out + shortcut


def pyramidnet(depth: int, alpha: float, num_classes: int, channels: int = 3) -> nn.Sequential:
    """A pyramidal network of `depth` = 6n + 2 layers: a stem of 16 channels, then three stages of n blocks.

    Block j of B = 3n has `round(16 + alpha j / B)` channels, j = 1, ..., B; stages two and three start with stride 2.

    Shape: in `(batch, channels, height, width)`, out `(batch, num_classes)`.
    """
    require(depth >= 8 and depth % 6 == 2, f"depth is 8, 14, 20, 26, 32, ..., got {depth}")
    require(alpha >= 0, f"alpha, the number of channels gained from stem to end, is not negative, got {alpha}")
    blocks = (depth - 2) // 2
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
    before = 16
    for block in range(blocks):
        after = round(16 + alpha * (block + 1) / blocks)
        layers.append(PyramidBlock(before, after, stride=2 if block in (blocks // 3, 2 * blocks // 3) else 1))
        before = after
    layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(before, num_classes))


def pyramidnet110(alpha: float = 270, num_classes: int = 100, channels: int = 3) -> nn.Sequential:
    """`pyramidnet` with 110 layers: 28,511,307 parameters with the defaults."""
    return pyramidnet(110, alpha, num_classes, channels)
