import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.methods.noisy_layers import LOCAL, SIGNS, Noise, kinds_of_layers, noise_of_layer, noisy
from helpers import images, norm_convnet, table


class Odd(nn.Module):
    """Layers that noise cannot come into row by row, beside one that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.named, self.unused, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.unused.weight
        self.across = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.named(input=self.twice(self.twice(x)))
        x = F.linear(x, self.unused.weight, self.unused.bias) + self.tied(x)
        return self.head(x) + self.across(x.unflatten(1, (2, 2)).transpose(0, 1)).sum(0).repeat(1, 2)


def half_frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    network[0].bias.requires_grad_(False)
    return network


def patched() -> nn.Module:
    """A layer whose forward was put into it."""
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    network[0].forward = lambda x, plain=network[0].forward: plain(x).square()
    return network


def kinds(model, x: Tensor) -> dict[str, int]:
    return kinds_of_layers(be.Task(model, be.Categorical()).bind(len(x), x))


def test_it_is_seen_which_layers_take_noise_row_by_row_and_how():
    assert kinds(norm_convnet, images()[0]) == {"0": SIGNS, "3": SIGNS, "8": LOCAL}
    assert kinds(Odd, table()[0]) == {"head": LOCAL}
    assert kinds(half_frozen, table()[0]) == {"1": LOCAL}
    assert kinds(patched, table()[0]) == {"1": LOCAL}
    assert kinds(lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 2)), table()[0]) == {"1": SIGNS}
    assert kinds([lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 2))], table()[0]) == {}


def noisy_outputs(layer: nn.Module, kind: int, x: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Outputs `(draw, number)` of a layer with noise, all rows in a line; and the stds of its leaves."""
    generator, module, found = torch.Generator().manual_seed(1), nn.Sequential(layer), []
    stds = {name: torch.rand(p.shape, generator=generator).double() + 0.1 for name, p in layer.named_parameters()}
    with torch.no_grad(), scoped(0):
        for _ in range(num):
            drawn = {name: torch.randn(std.shape, generator=generator).double() for name, std in stds.items()}
            with noisy(module, {"0": kind}, {"0": noise_of_layer("", stds, drawn)}):
                found.append(module(x).flatten())
    return torch.stack(found), torch.cat([std.flatten() for std in stds.values()])


@pytest.mark.parametrize(
    ("layer", "kind", "shape"),
    [
        (nn.Linear(3, 2), LOCAL, (2, 3)),
        (nn.Linear(3, 2, bias=False), LOCAL, (2, 3)),
        (nn.Linear(3, 2), SIGNS, (2, 2, 3)),
        (nn.Conv2d(2, 2, 2, padding=1), SIGNS, (2, 2, 2, 2)),
        (nn.Conv1d(2, 2, 2, groups=2, padding=1, padding_mode="circular", bias=False), SIGNS, (2, 2, 3)),
    ],
    ids=["dense", "no bias", "dense at places", "convolution", "groups"],
)
def test_each_row_has_the_law_of_random_weights_and_rows_are_uncorrelated(layer, kind, shape):
    """Outputs are linear in the weights, f = J w: each row has the covariance J diag(std^2) J', places included."""
    layer, num = layer.double(), 800
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    found, stds = noisy_outputs(layer, kind, x, num)
    names = [name for name, _ in layer.named_parameters()]
    sizes = [p.numel() for p in layer.parameters()]

    def outputs(flat: Tensor) -> Tensor:
        parts = zip(names, flat.split(sizes), layer.parameters(), strict=True)
        return torch.func.functional_call(layer, {n: part.reshape(p.shape) for n, part, p in parts}, (x,)).flatten()

    point = torch.cat([p.detach().flatten() for p in layer.parameters()])
    jacobian = torch.func.jacrev(outputs)(point)
    of_row = torch.arange(len(jacobian)) // (len(jacobian) // len(x))
    covariance = jacobian @ stds.square().diag() @ jacobian.T * (of_row[:, None] == of_row)
    variance = covariance.diagonal()
    assert (found.mean(0) - outputs(point)).abs().lt(4.5 * (variance / num).sqrt()).all()
    # Products of signs have up to three times the variance of a normal product of equal covariance.
    error = (3 * (variance[:, None] * variance + covariance.square()) / num).sqrt()
    assert (found.T.cov() - covariance).abs().lt(4 * error).all()
    assert (covariance - covariance.diagonal().diag()).abs().gt(3 * error).any() == (kind == SIGNS), "places are tied"


def test_a_row_of_zeros_has_finite_slopes():
    with scoped(0):
        layer = nn.Sequential(nn.Linear(3, 2, bias=False))
    std = torch.full((2, 3), 0.1, requires_grad=True)
    x = torch.zeros(1, 3, requires_grad=True)
    with scoped(0), noisy(layer, {"0": LOCAL}, {"0": Noise(std, None, torch.zeros(2, 3), None)}):
        layer(x).sum().backward()
    assert std.grad.isfinite().all()
    assert x.grad.isfinite().all()


def test_outside_the_block_the_network_is_as_before():
    with scoped(0):
        layer, x = nn.Sequential(nn.Linear(3, 2)), torch.ones(1, 3)
    before = layer(x)
    std = torch.ones(2, 3)
    with scoped(0), noisy(layer, {"0": LOCAL}, {"0": Noise(std, None, std, None)}):
        assert not torch.equal(layer(x), before)
    assert torch.equal(layer(x), before)
