"""Residual networks for small images, with 6n + 2 layers: three stages of n basic blocks.

Reference: He et al. (2016), "Deep residual learning for image recognition", section 4.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.settings import require


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut that skips pixels and adds zero channels (option A)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels_out)
        self.stride = stride
        self.added_channels = channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, channels_in, height, width)` -> `(batch, channels_out, height / stride, width / stride)`."""
        out = torch.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        # Pooling over one pixel is slicing, but its gradient keeps a channels-last layout.
        shortcut = F.avg_pool2d(x, 1, self.stride) if self.stride > 1 else x
        if self.added_channels:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.added_channels))
        return torch.relu(out + shortcut)


def resnet(depth: int, num_classes: int, width: int = 16, channels: int = 3) -> nn.Sequential:
    """A residual network of `depth` = 6n + 2 layers whose stages have `width`, 2 `width` and 4 `width` channels.

    Shape: in `(batch, channels, height, width)`, out `(batch, num_classes)`.
    """
    require(depth >= 8 and depth % 6 == 2, f"depth is 8, 14, 20, 26, 32, ..., got {depth}")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(3):
        after = width * 2**stage
        for block in range((depth - 2) // 6):
            layers.append(BasicBlock(before, after, stride=2 if stage and not block else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))
