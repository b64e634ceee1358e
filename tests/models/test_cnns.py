import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.models import cnn, medium_cnn, small_cnn
from helpers import quick_fit


def made(make, **options) -> nn.Module:
    with scoped(0):
        return make(**options)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_medium_network_has_the_parameters_of_the_released_one():
    assert count(made(medium_cnn)) == 971_146
    by_hand = (3 * 16 + 16 * 32 + 32 * 32) * 9 + 16 + 32 + 32 + 4 * 4 * 32 * 10 + 10
    assert count(made(small_cnn)) == by_hand


@pytest.mark.parametrize(("make", "stages"), [(small_cnn, 3), (medium_cnn, 4)])
def test_stages_are_convolution_dropout_pooling_and_a_relu_but_for_the_last(make, stages):
    network = made(make)
    names = [type(layer).__name__ for layer in network]
    one = ["GlorotConv2d", "Dropout", "MaxPool2d", "ReLU"]
    assert names == [*(one * stages)[:-1], "Flatten", "GlorotLinear"]
    assert {layer.p for layer in network if isinstance(layer, nn.Dropout)} == {0.1}
    with torch.no_grad(), scoped(0):
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_other_images_and_classes_fit_too():
    network = made(small_cnn, num_classes=7, channels=1, size=28)
    with torch.no_grad(), scoped(0):
        assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    with pytest.raises(SettingError, match="at least one width"):
        cnn(())


def test_weights_start_by_the_rule_of_glorot_also_when_they_are_reset():
    network = made(medium_cnn)
    with scoped(1):
        for layer in network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    layer = network[4]  # 64 to 128 channels
    bound = math.sqrt(6 / (9 * (64 + 128)))
    weight, bias = layer.weight.detach(), layer.bias.detach()
    assert float(weight.abs().max()) <= bound
    assert float(weight.var()) == pytest.approx(bound**2 / 3, rel=0.02)
    assert float(bias.abs().max()) <= math.sqrt(6 / 129)
    assert float(bias.var()) == pytest.approx(6 / 129 / 3, rel=0.4)


def test_it_trains_by_any_method():
    x = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    task = be.Task(lambda: cnn((2, 3), 2, channels=1, size=8), be.Categorical())
    ensemble = quick_fit(task, (x, (x.mean((1, 2, 3)) > 0).long()), be.MeanField(), epochs=1)
    assert set(ensemble.state.slots["noisy_layers"]) == {"0", "4", "8"}
