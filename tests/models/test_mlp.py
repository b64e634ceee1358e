import torch

from bayesemble.models import mlp
from bayesemble.seeds import scoped


def test_784_100_100_100_10_has_99710_parameters_and_flattens_images():
    with scoped(0):
        network = mlp(784, [100] * 3, 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == 99_710
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_without_hidden_layers_it_is_linear():
    with scoped(0):
        network = mlp(3, [], 2)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(network(x), network[1](x))
