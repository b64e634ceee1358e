import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.models import resnet, resnet18, resnet20, resnet32
from bayesemble.models.resnets import ProjectionBlock
from bayesemble.task.networks import new_module


def total(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def count(depth: int, width: int) -> int:
    with scoped(0):
        return total(resnet(depth, 10, width))


def without_gradient(network: nn.Module) -> set[str]:
    return {n for n, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()}


@pytest.fixture(scope="module")
def eighteen() -> nn.Sequential:
    with scoped(0):
        return resnet18()


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


def test_names_of_parameters_and_buffers_stay_as_they_are():
    with scoped(0):
        network = resnet(8, 10)
    block = ["first.weight", "first_norm.weight", "first_norm.bias", "second.weight"]
    block += ["second_norm.weight", "second_norm.bias"]
    names = ["0.weight", "1.weight", "1.bias", *(f"{i}.{name}" for i in (3, 4, 5) for name in block)]
    assert [name for name, _ in network.named_parameters()] == [*names, "8.weight", "8.bias"]
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    norms = ["1", *(f"{i}.{name}" for i in (3, 4, 5) for name in ("first_norm", "second_norm"))]
    assert [name for name, _ in network.named_buffers()] == [f"{norm}.{name}" for norm in norms for name in statistics]


@pytest.mark.parametrize(("make", "depth"), [(resnet20, 20), (resnet32, 32)])
@pytest.mark.parametrize("norm", [True, False])
def test_named_depths_are_resnet_of_that_depth(make, depth, norm):
    with scoped(0):
        named = make(width=4, norm=norm).state_dict()
    with scoped(0):
        general = resnet(depth, 10, 4, norm=norm).state_dict()
    assert list(named) == list(general)
    assert all(torch.equal(named[name], general[name]) for name in general)


def test_without_norm_biases_take_the_place_of_1136_norm_channels():
    with scoped(0):
        network = resnet32(norm=False)
    assert total(network) == 463_018 == 464_154 - 2 * 1_136 + 1_136
    assert not list(network.buffers())


def test_without_norm_a_new_network_is_its_shortcuts(generator):
    """Stem, every fourth pixel, zero channels, mean, linear layer; also when the network is re-initialised."""
    with scoped(0):
        network = resnet(14, 10, width=4, norm=False)
        again = new_module(network)
    x = torch.randn(2, 3, 16, 16, generator=generator)
    for one in (network, again):
        mean = one[0](x).relu()[:, :, ::4, ::4].mean((2, 3))
        torch.testing.assert_close(one(x), one[-1](nn.functional.pad(mean, (0, 12))))
    assert not torch.equal(network[3].first.weight, again[3].first.weight)


def test_without_norm_the_gradient_reaches_all_but_first_convolutions_at_once_and_those_after_a_step(generator):
    with scoped(0):
        network = resnet(8, 10, width=4, norm=False)
    x = torch.randn(4, 3, 8, 8, generator=generator)
    network(x).square().sum().backward()
    assert without_gradient(network) == {f"{i}.first.{leaf}" for i in (3, 4, 5) for leaf in ("weight", "bias")}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.01 * parameter.grad
    network.zero_grad()
    network(x).square().sum().backward()
    assert not without_gradient(network)


def test_with_norm_the_gradient_reaches_every_parameter(generator):
    with scoped(0):
        network = resnet20(width=4)
    network(torch.randn(4, 3, 8, 8, generator=generator)).square().sum().backward()
    assert not without_gradient(network)


def test_resnet18_has_the_11689512_parameters_of_the_paper(eighteen):
    layers = list(eighteen.modules())
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert (len(convolutions), sum(map(total, convolutions))) == (20, 11_166_912)
    assert (len(norms), sum(layer.num_features for layer in norms), sum(map(total, norms))) == (20, 4_800, 9_600)
    assert total(eighteen[-1]) == 513_000
    assert total(eighteen) == 11_689_512


def test_resnet18_divides_images_by_32_and_its_gradient_reaches_every_parameter(eighteen, generator):
    x = torch.randn(2, 3, 64, 64, generator=generator)
    assert eighteen[:4](x).shape == (2, 64, 16, 16)
    assert eighteen[:-3](x).shape == (2, 512, 2, 2)
    out = eighteen(x)
    assert out.shape == (2, 1000)
    out.square().sum().backward()
    assert not without_gradient(eighteen)


def test_resnet18_projects_where_the_shape_changes(eighteen, generator):
    blocks = eighteen[4:-3]
    projected = [isinstance(block.projection, nn.Sequential) for block in blocks]
    assert projected == [False, False, True, False, True, False, True, False]
    block = blocks[2]
    x = torch.randn(2, 64, 6, 6, generator=generator)
    convolution, norm = block.projection
    naive = torch.einsum("oi,nihw->nohw", convolution.weight[:, :, 0, 0], x[:, :, ::2, ::2])
    torch.testing.assert_close(block.shortcut(x), norm(naive), rtol=1e-4, atol=1e-5)


def test_the_small_stem_keeps_the_size_of_small_images(generator):
    with scoped(0):
        network = resnet18(10, stem="small", channels=1)
    assert total(network) == 11_689_512 - 9_408 + 9 * 64 - 513_000 + 5_130
    x = torch.randn(2, 1, 32, 32, generator=generator)
    assert network[:4](x).shape == (2, 64, 32, 32)
    assert network(x[:, :, ::2, ::2]).shape == (2, 10)


def test_other_stems_are_refused():
    with pytest.raises(be.SettingError, match='"imagenet" or "small", got \'large\''):
        resnet18(stem="large")


@pytest.mark.parametrize(("channels", "stride"), [(4, 2), (8, 1), (8, 2)])
def test_a_shortcut_is_projected_where_size_or_channels_change(channels, stride, generator):
    with scoped(0):
        block = ProjectionBlock(4, channels, stride)
    assert block(torch.randn(2, 4, 6, 6, generator=generator)).shape == (2, channels, 6 // stride, 6 // stride)
    assert len(block.projection) == 2


def test_the_stem_for_large_images_pools_over_three_pixels_around_every_second(eighteen, generator):
    x = torch.randn(1, 64, 8, 8, generator=generator)
    torch.testing.assert_close(eighteen[3](x), nn.functional.max_pool2d(x, 3, 2, 1), rtol=0, atol=0)
