"""What is said to round alike at all places does so, and what is not is noticed."""

import pytest
import torch
from torch.nn import functional as F

from bayesemble.execute.rounding import PlaceDependent

PARTS = (1, 3, 37, 150, 611, 40_001)

ALIKE = {
    "arithmetic": lambda x: (x + 1.7) * x / 3.1 - x.square() + x.abs().sqrt() + (x.abs() + 0.1).reciprocal(),
    "bounds": lambda x: x.clamp(-0.5, 0.7) + torch.where(x > 0.2, x, -x) + x.sign(),
    "exp": torch.exp,
    "log": lambda x: (x.abs() + 1e-3).log() + x.abs().log1p(),
    "waves": lambda x: x.sin() + (7 * x).cos(),
    "tanh": torch.tanh,
    "relu": lambda x: F.relu(x) + F.leaky_relu(x, 0.07),
    "lgamma": lambda x: torch.lgamma(x.detach().abs() + 0.5) + x,
}


def gradient(function, x):
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return slope


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("threads", [1, 2])
def test_functions_that_are_said_to_round_alike_at_all_places_do(name, threads, generator):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for what in (ALIKE[name], lambda x: gradient(ALIKE[name], x)):
            parts = [3 * torch.randn(size, generator=generator) for size in PARTS]
            with PlaceDependent() as operations:
                alone = [what(part) for part in parts]
            assert not operations.found
            assert torch.equal(what(torch.cat(parts)), torch.cat(alone))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [7, 10])
def test_softmax_layer_norm_and_sums_of_a_member_do_not_see_the_others(rows, generator):
    members = torch.randn(23, rows, 11, generator=generator)

    def what(x):
        return torch.cat([x.softmax(-1), x.log_softmax(-1), F.layer_norm(x, (11,)), x.sum(1, keepdim=True)], 1)

    with PlaceDependent() as operations:
        alone = [what(part) for part in members.split(2)]
    assert not operations.found
    assert torch.equal(what(members), torch.cat(alone))


@pytest.mark.parametrize("function", [torch.sigmoid, F.gelu, F.silu, F.softplus, F.elu, lambda x: x.abs() ** 1.5])
def test_what_may_round_by_place_is_noticed(function, generator):
    with PlaceDependent() as operations:
        function(torch.randn(5, 3, generator=generator))
    assert operations.found


def test_a_column_of_several_is_taken_number_by_number(generator):
    heads = [torch.randn(size, 9, 2, generator=generator) for size in (2, 3, 5)]
    with PlaceDependent() as operations:
        alone = [F.softplus(part[..., 1:]) for part in heads]
    assert not operations.found
    assert torch.equal(F.softplus(torch.cat(heads)[..., 1:]), torch.cat(alone))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 64, 13), (7, 13, 7), (37, 10, 7), (10, 50, 7), (37, 13, 3)])
def test_a_product_does_not_go_by_where_its_matrices_lie_in_memory(rows, inner, columns, transposed, generator):
    a, b = torch.randn(12, rows, inner, generator=generator), torch.randn(12, columns, inner, generator=generator)
    if not transposed:
        b = b.mT.contiguous().mT
    alone = [torch.bmm(a[n : n + 3].clone(), b[n : n + 3].clone().mT) for n in range(0, 12, 3)]
    assert torch.equal(torch.bmm(a, b.mT), torch.cat(alone))
