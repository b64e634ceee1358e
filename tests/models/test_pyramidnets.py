import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.models import pyramidnet, pyramidnet110
from bayesemble.models.pyramidnets import PyramidBlock


def total(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(scope="module")
def full() -> nn.Sequential:
    with scoped(0):
        return pyramidnet110()


def test_pyramidnet110_has_28511307_parameters(full):
    layers = list(full.modules())
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert (len(convolutions), sum(map(total, convolutions))) == (109, 28_432_809)
    assert (len(norms), sum(layer.num_features for layer in norms), sum(map(total, norms))) == (164, 24_899, 49_798)
    assert total(full[-1]) == 28_700
    assert total(full) == 28_511_307


def test_each_of_54_blocks_adds_five_channels_and_two_of_them_halve_the_image(full):
    blocks = [layer for layer in full if isinstance(layer, PyramidBlock)]
    assert [block.second.out_channels for block in blocks] == list(range(21, 287, 5))
    assert [place for place, block in enumerate(blocks) if block.stride == 2] == [18, 36]


def test_pyramidnet110_runs(full, generator):
    x = torch.randn(2, 3, 8, 8, generator=generator)
    with torch.no_grad():
        assert full[:-4](x).shape == (2, 286, 2, 2)
        assert full(x).shape == (2, 100)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_shortcut_is_the_mean_of_each_square_with_zero_channels(size, stride, generator):
    """Squares of 2x2 pixels at strides; at an odd edge, of the pixels there are."""
    with scoped(0):
        block = PyramidBlock(3, 5, stride)
    nn.init.zeros_(block.second_norm.weight)
    x = torch.randn(2, 3, size, size, generator=generator)
    out = block(x)
    corners = range(0, size, stride)
    naive = torch.stack(
        [torch.stack([x[:, :, i : i + stride, j : j + stride].mean((2, 3)) for j in corners], -1) for i in corners], -2
    )
    torch.testing.assert_close(out[:, :3], naive)
    assert out[:, 3:].abs().max() == 0


def test_the_block_is_norm_convolution_norm_relu_convolution_norm(generator):
    with scoped(0):
        block = PyramidBlock(3, 3, 1)
    x = torch.randn(4, 3, 5, 5, generator=generator)
    weights = {name: block.get_parameter(f"{name}.weight") for name in ("first", "second")}

    def normalised(z: torch.Tensor) -> torch.Tensor:
        variance = z.var((0, 2, 3), correction=0, keepdim=True)
        return (z - z.mean((0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()

    hidden = normalised(nn.functional.conv2d(normalised(x), weights["first"], padding=1)).relu()
    branch = normalised(nn.functional.conv2d(hidden, weights["second"], padding=1))
    torch.testing.assert_close(block(x), x + branch)


def test_the_gradient_reaches_every_parameter(generator):
    with scoped(0):
        network = pyramidnet(14, 10.0, 3, channels=1)
    assert [layer.second.out_channels for layer in network if isinstance(layer, PyramidBlock)] == [
        18,
        19,
        21,
        23,
        24,
        26,
    ]
    network(torch.randn(4, 1, 9, 9, generator=generator)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_alpha_zero_keeps_sixteen_channels(generator):
    with scoped(0):
        network = pyramidnet(8, 0, 3)
    assert network[:-4](torch.randn(1, 3, 8, 8, generator=generator)).shape == (1, 16, 2, 2)


def test_other_depths_and_negative_alpha_are_refused():
    with pytest.raises(be.SettingError, match=r"8, 14, 20, 26, 32, \.\.\., got 18"):
        pyramidnet(18, 48, 10)
    with pytest.raises(be.SettingError, match="not negative, got -1"):
        pyramidnet110(-1)
