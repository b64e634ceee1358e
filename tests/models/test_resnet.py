import pytest
import torch

import bayesemble as be
from bayesemble.models import resnet
from bayesemble.seeds import scoped


def count(depth: int, width: int) -> int:
    with scoped(0):
        return sum(parameter.numel() for parameter in resnet(depth, 10, width).parameters())


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_parameter_counts_are_those_of_the_paper(depth, parameters):
    """0.27 M, 0.46 M and 0.85 M for CIFAR-10 with parameter-free shortcuts."""
    assert count(depth, 16) == parameters


def test_the_shortcut_is_every_second_pixel_with_zero_channels():
    with scoped(0):
        block = resnet(8, 10)[4].eval()
    torch.nn.init.zeros_(block.second.weight)
    x = torch.rand(1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    out = block(x)
    torch.testing.assert_close(out[:, :16], x[:, :, ::2, ::2])
    assert out[:, 16:].abs().max() == 0


def test_other_depths_are_refused():
    with pytest.raises(be.SettingError, match=r"8, 14, 20, 26, 32, \.\.\., got 18"):
        resnet(18, 10)
