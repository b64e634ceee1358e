"""Residual networks: those for small images with 6n + 2 layers (three stages of n basic blocks), and ResNet-18.

Reference: He et al. (2016), "Deep residual learning for image recognition", sections 4.2 and 4.1.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesemble.core.settings import require


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut that skips pixels and adds zero channels (option A).

    Without `norm`, the convolutions have biases, and the second one starts at zero.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=not norm)
        self.first_norm = _norm(channels_out, norm)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=not norm)
        self.second_norm = _norm(channels_out, norm)
        self.stride = stride
        self.added_channels = channels_out - channels_in
        self.norm = norm
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Without batch norm, set the second convolution to zero; to be called after its own reset."""
        if not self.norm:
            for parameter in self.second.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, channels_in, height, width)` -> `(batch, channels_out, height / stride, width / stride)`."""
        out = torch.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return torch.relu(out + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """What the convolutions' result is added to; same shapes as `forward`."""
        # Pooling over one pixel is slicing, but its gradient keeps a channels-last layout.
        x = F.avg_pool2d(x, 1, self.stride) if self.stride > 1 else x
        return F.pad(x, (0, 0, 0, 0, 0, self.added_channels)) if self.added_channels else x


class ProjectionBlock(BasicBlock):
    """A basic block whose shortcut is a 1x1 convolution with batch norm where the shape changes (option B)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, stride)
        self.projection: nn.Module = nn.Identity()
        if stride > 1 or self.added_channels:
            convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.projection = nn.Sequential(convolution, nn.BatchNorm2d(channels_out))

    def shortcut(self, x: Tensor) -> Tensor:
        """What the convolutions' result is added to; same shapes as `forward`."""
        projected: Tensor = self.projection(x)
        return projected


def resnet(depth: int, num_classes: int, width: int = 16, channels: int = 3, norm: bool = True) -> nn.Sequential:
    """A residual network of `depth` = 6n + 2 layers whose stages have `width`, 2 `width` and 4 `width` channels.

    Without `norm` there is no batch norm, the convolutions have biases instead, and the last convolution of every
    block starts at zero. Each block then starts as its shortcut, so that the signal has the same size at the start
    whatever the depth; this is meant for deep networks. The first convolutions of the blocks have zero gradient in
    the very first step. Compare Zhang et al. (2019), "Fixup initialization: residual learning without normalization".

    Shape: in `(batch, channels, height, width)`, out `(batch, num_classes)`.
    """
    require(depth >= 8 and depth % 6 == 2, f"depth is 8, 14, 20, 26, 32, ..., got {depth}")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, padding=1, bias=not norm),
        _norm(width, norm),
        nn.ReLU(),
    ]
    before = width
    for stage in range(3):
        after = width * 2**stage
        for block in range(depth // 6):
            layers.append(BasicBlock(before, after, stride=2 if stage and not block else 1, norm=norm))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))


def resnet20(num_classes: int = 10, width: int = 16, channels: int = 3, norm: bool = True) -> nn.Sequential:
    """`resnet` with 20 layers: 269,722 parameters with the defaults."""
    return resnet(20, num_classes, width, channels, norm)


def resnet32(num_classes: int = 10, width: int = 16, channels: int = 3, norm: bool = True) -> nn.Sequential:
    """`resnet` with 32 layers: 464,154 parameters with the defaults, 463,018 without batch norm."""
    return resnet(32, num_classes, width, channels, norm)


def resnet18(
    num_classes: int = 1000, *, stem: Literal["imagenet", "small"] = "imagenet", channels: int = 3
) -> nn.Sequential:
    """ResNet-18: four stages of two blocks with 64, 128, 256 and 512 channels; 11,689,512 parameters by default.

    The "imagenet" stem, a 7x7 convolution and a 3x3 max pool, divides height and width by four. The "small" stem, a
    3x3 convolution, keeps them: it is for images of about 32x32 pixels.

    Shape: in `(batch, channels, height, width)`, out `(batch, num_classes)`.
    """
    require(stem in ("imagenet", "small"), f'stem is "imagenet" or "small", got {stem!r}')
    small = stem == "small"
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        if small
        else nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1),
    ]
    before = 64
    for stage in range(4):
        after = 64 * 2**stage
        layers += [ProjectionBlock(before, after, stride=2 if stage else 1), ProjectionBlock(after, after, stride=1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))
