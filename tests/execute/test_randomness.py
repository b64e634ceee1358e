import torch
from torch import nn

from bayesemble.core.seeds import scoped
from bayesemble.execute.randomness import per_member


class Noisy(nn.Module):
    """Draws random numbers in every way a network may: by shape, like a tensor, in place, and by dropout."""

    def forward(self, x):
        x = nn.functional.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(x.shape)
        x = x + torch.empty_like(x).normal_() * torch.bernoulli(torch.sigmoid(x))
        return x + torch.randint(5, (x.shape[-1],)) + nn.functional.dropout1d(x[None], 0.5)[0]


def alone(x, seed):
    with scoped(seed):
        return Noisy()(x)


def together(x, seeds):
    with per_member(seeds):
        return torch.vmap(Noisy(), randomness="different")(x)


def test_each_member_sees_the_random_numbers_it_would_see_alone(generator):
    x = torch.randn(3, 5, 4, generator=generator)
    expected = torch.stack([alone(x[i], seed) for i, seed in enumerate((11, 22, 33))])
    assert torch.equal(together(x, [11, 22, 33]), expected)


def test_masks_of_different_members_differ(generator):
    x = torch.ones(2, 100, 4)
    first, second = together(x, [1, 2])
    assert not torch.equal(first, second)


def test_without_seeds_numbers_are_those_of_torch_itself():
    def draw():
        return torch.cat(
            [torch.randn(3), torch.rand(2), torch.empty(2).normal_(), nn.functional.dropout(torch.ones(9))]
        )

    with scoped(5):
        expected = draw()
    with scoped(5), per_member(None):
        assert torch.equal(draw(), expected)
