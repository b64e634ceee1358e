import pytest
import torch
from torch import nn

from bayesemble.core.seeds import scoped
from bayesemble.models import mlp
from bayesemble.task.networks import new_module


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_784_100_100_100_10_has_99710_parameters_and_flattens_images():
    with scoped(0):
        network = mlp(784, [100] * 3, 10)
    assert count(network) == 99_710
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_without_hidden_layers_it_is_linear():
    with scoped(0):
        network = mlp(3, [], 2)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(network(x), network[1](x))


def test_without_options_layers_names_and_values_are_those_of_plain_torch():
    with scoped(0):
        network = mlp(3, [5, 4], 2)
    with scoped(0):
        plain = nn.Sequential(
            nn.Flatten(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)
        ).state_dict()
    assert list(network.state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"]
    assert all(torch.equal(leaf, plain[name]) for name, leaf in network.state_dict().items())


def test_a_hundred_layers_without_biases_and_with_99_norms_have_1009900_parameters():
    """Input 1, 99 hidden layers of 100, output 100: 100 + 98 * 10,000 + 10,000 weights and 99 * 200 of batch norm."""
    with scoped(0):
        network = mlp(1, [100] * 99, 100, norm=True, bias=False)
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network if isinstance(layer, nn.BatchNorm1d)]
    assert (len(linear), sum(map(count, linear))) == (100, 990_100)
    assert (len(norms), sum(map(count, norms))) == (99, 19_800)
    assert count(network) == 1_009_900
    patched = sum(map(count, norms)) + count(linear[-1])
    assert count(network) + 4 * patched == 1_129_100  # with five components of batch norm and output


def test_norms_stand_after_the_input_and_between_linear_layer_and_activation():
    with scoped(0):
        network = mlp(3, [5, 4], 2, norm=True, input_norm=True, activation=nn.Tanh)
    kinds = [nn.Flatten, nn.BatchNorm1d, *[nn.Linear, nn.BatchNorm1d, nn.Tanh] * 2, nn.Linear]
    assert len(network) == len(kinds)
    assert all(isinstance(layer, kind) for layer, kind in zip(network, kinds, strict=True))
    assert [layer.num_features for layer in network if isinstance(layer, nn.BatchNorm1d)] == [3, 5, 4]


def test_the_forward_pass_is_the_formula(generator):
    with scoped(0):
        network = mlp(3, [5], 2, norm=True, input_norm=True, bias=False, norm_scale=0.2)
    x = torch.randn(16, 3, generator=generator)

    def normalised(z: torch.Tensor) -> torch.Tensor:
        return 0.2 * (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()

    first, second = (layer.weight for layer in network if isinstance(layer, nn.Linear))
    expected = normalised(normalised(x) @ first.T).relu() @ second.T
    torch.testing.assert_close(network(x), expected)


def test_gamma_starts_at_the_scale_also_when_a_network_is_reinitialised():
    with scoped(0):
        network = mlp(3, [5], 2, norm=True, input_norm=True, norm_scale=0.2)
        again = new_module(network)
    for one in (network, again):
        norms = [layer for layer in one if isinstance(layer, nn.BatchNorm1d)]
        assert len(norms) == 2
        for layer in norms:
            assert torch.equal(layer.weight, torch.full_like(layer.weight, 0.2))
            assert layer.bias.abs().max() == 0
    assert not torch.equal(network[2].weight, again[2].weight)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_reaches_every_parameter(bias, generator):
    with scoped(0):
        network = mlp(3, [8, 8], 2, norm=True, input_norm=True, bias=bias)
    network(torch.randn(16, 3, generator=generator)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
