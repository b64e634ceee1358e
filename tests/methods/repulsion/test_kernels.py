import math
import statistics

import pytest
import torch

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.methods.repulsion.interacting import products
from bayesemble.methods.repulsion.kernels import (
    KERNELS,
    RBF,
    Laplace,
    Linear,
    OfDistances,
    distances_of_gram,
    resolve,
    squared_distances,
)

over_kernels = pytest.mark.parametrize("kernel", [RBF(), Laplace(), RBF(1.7), Laplace(0.8)], ids=str)
by_median = pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=str)


def normal(*shape, name="samples"):
    return torch.randn(*shape, generator=seeds.generator(0, name), dtype=torch.float64)


def naive_length(kernel, y):
    """The docstring's rule, from the sorted list of all distances."""
    if kernel.bandwidth != "median":
        return kernel.bandwidth
    distances = [math.dist(a, b) for a in y.tolist() for b in y.tolist()]
    if isinstance(kernel, Laplace):
        return statistics.median(distances) / math.log(len(y) + 1)
    return math.sqrt(statistics.median(d**2 for d in distances) / (2 * math.log(len(y) + 1)))


def naive_value(kernel, a, b, length):
    distance = math.dist(a, b)
    return math.exp(-distance / length if isinstance(kernel, Laplace) else -(distance**2) / (2 * length**2))


def test_golden_values_of_three_particles():
    x = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    assert float(RBF().length(squared_distances(x, x)) ** 2) == pytest.approx(0.36067376, abs=1e-8)
    near, far, farthest = 0.25, 0.00390625, 3.8147e-6
    expected = torch.tensor([[1, near, farthest], [near, 1, far], [farthest, far, 1]], dtype=torch.float64)
    torch.testing.assert_close(RBF()(x), expected, atol=1e-10, rtol=0)


@over_kernels
def test_the_kernel_matrix_is_that_of_a_loop_over_pairs(kernel):
    x, y = normal(4, 3, name="x"), normal(7, 3, name="y")
    for one, other in ((x, y), (y, y)):
        length = naive_length(kernel, other)
        naive = [[naive_value(kernel, a, b, length) for b in other.tolist()] for a in one.tolist()]
        torch.testing.assert_close(kernel(one, other), torch.tensor(naive, dtype=torch.float64))
    assert torch.equal(kernel(y), kernel(y, y))


@pytest.mark.parametrize("count", [3, 5, 8])
def test_the_median_counts_the_zeros_of_the_diagonal_and_lies_between_the_two_middle_distances(count):
    x = normal(count, 2)
    assert float(RBF().length(squared_distances(x, x))) == pytest.approx(naive_length(RBF(), x), rel=1e-12)


@pytest.mark.parametrize("count", [3, 4, 5, 9, 10])
def test_the_median_rule_of_the_laplace_kernel_is_that_of_the_distances(count):
    x = normal(count, 2)
    assert float(Laplace().length(squared_distances(x, x))) == pytest.approx(naive_length(Laplace(), x), rel=1e-12)


def test_the_median_of_two_particles_is_half_their_squared_distance():
    squared = torch.tensor([[0.0, 4.0], [4.0, 0.0]], dtype=torch.float64)
    assert float(RBF().length(squared) ** 2) == pytest.approx(2 / (2 * math.log(3)))


@over_kernels
def test_the_coupling_gives_the_gradient_that_autograd_finds(kernel):
    """Of the kernel in its first argument; the second, and with it the bandwidth, is held fixed."""
    x = normal(4, 3).requires_grad_()
    for y in (x.detach(), normal(5, 3, name="y")):
        squared, length = squared_distances(x, y).detach(), kernel.length(squared_distances(y, y))
        found = -kernel.couple(squared, length)[1].unsqueeze(2) * (x.detach().unsqueeze(1) - y)
        value = kernel(x, y)
        for i in range(4):
            for j in range(len(y)):
                (slope,) = torch.autograd.grad(value[i, j], x, retain_graph=True)
                torch.testing.assert_close(found[i, j], slope[i], atol=1e-12, rtol=1e-9)


def test_the_gradient_of_the_laplace_kernel_is_a_unit_vector_over_the_length_and_zero_at_the_kink():
    squared = torch.tensor([[0.0, 9.0]], dtype=torch.float64)
    value, coupling = Laplace(2.0).couple(squared, torch.tensor(2.0, dtype=torch.float64))
    assert value.tolist() == [[1.0, pytest.approx(math.exp(-1.5))]]
    assert (coupling * squared.sqrt()).tolist() == [[0.0, pytest.approx(math.exp(-1.5) / 2)]]
    assert coupling[0, 0] == 0


@by_median
def test_the_bandwidth_is_no_part_of_any_gradient(kernel):
    x = normal(4, 3).requires_grad_()
    squared = squared_distances(x, x)
    assert squared.requires_grad
    assert not kernel.length(squared).requires_grad


@over_kernels
def test_the_matrix_is_symmetric_with_ones_on_its_diagonal_and_positive_definite(kernel):
    matrix = kernel(normal(6, 3))
    torch.testing.assert_close(matrix, matrix.T)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(6, dtype=torch.float64))
    assert torch.linalg.eigvalsh(matrix).min() > 0


@by_median
def test_by_the_median_rule_units_do_not_matter(kernel):
    x = normal(6, 3)
    torch.testing.assert_close(kernel(1000 * x + 5), kernel(x), atol=1e-9, rtol=0)


@pytest.mark.parametrize("cls", [RBF, Laplace])
def test_a_fixed_length_is_taken_as_it_is_in_the_number_type_of_the_samples(cls):
    for dtype in (torch.float32, torch.float64):
        length = cls(2).length(torch.ones(3, 3, dtype=dtype))
        assert length.dtype == dtype
        assert float(length) == 2


@by_median
def test_where_the_median_is_zero_the_length_is_the_smallest_and_nothing_is_nan(kernel):
    most_equal = torch.tensor([[1.0], [1], [1], [1], [7]], dtype=torch.float64)
    for x in (normal(1, 3), normal(1, 3).expand(4, 3), most_equal):
        squared = squared_distances(x, x)
        length = kernel.length(squared)
        assert float(length) == pytest.approx(max(1e-6, 1e-3 * float(squared.max()) ** 0.5))
        assert all(part.isfinite().all() for part in kernel.couple(squared, length))
    assert kernel(most_equal)[0].tolist() == [1, 1, 1, 1, 0]


def test_kernels_have_names():
    assert [type(resolve(name, "median")) for name in KERNELS] == [RBF, Laplace, Linear]
    assert resolve("laplace", 2.0) == Laplace(2.0)
    assert resolve(RBF(0.3), "median") == RBF(0.3)


@pytest.mark.parametrize("bandwidth", ["median", 1.7])
def test_a_function_of_squared_distances_gives_the_kernels_that_are_known(bandwidth):
    """exp(-s / 2) is the RBF kernel under the same median rule; exp(-sqrt(s)) the Laplace kernel of the same length."""
    x = normal(6, 3)
    squared = squared_distances(x, x)
    gaussian = resolve(lambda s: torch.exp(-s / 2), bandwidth)
    assert torch.equal(gaussian.length(squared), RBF(bandwidth).length(squared))
    length = gaussian.length(squared)
    for own, known in ((gaussian, RBF()), (OfDistances(function=lambda s: torch.exp(-s.sqrt())), Laplace())):
        for found, expected in zip(own.couple(squared, length), known.couple(squared, length), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_function_that_is_no_kernel_is_refused():
    squared = squared_distances(normal(4, 2), normal(4, 2))
    for function, came in ((lambda s: s.sum(), r"shape \(\)"), (lambda s: 1.0, "a float"), (torch.zeros_like, "shape")):
        with pytest.raises(SettingError, match=f"takes a tensor of squared distances.*{came}"):
            OfDistances(function=function).couple(squared, torch.tensor(1.0))
    with pytest.raises(SettingError, match="was not saved with the ensemble"):
        OfDistances(function={"function": "mine"}).couple(squared, torch.tensor(1.0))


def test_the_linear_kernel_has_products():
    x, y = normal(3, 4), normal(5, 4, name="y")
    torch.testing.assert_close(Linear(0.5)(x, y), x @ y.T + 0.5)
    with pytest.raises(SettingError, match="offset is a number from 0, got -1"):
        Linear(-1.0)


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan, math.inf, True, None, "mean", "1"], ids=str)
@pytest.mark.parametrize("cls", [RBF, Laplace])
def test_any_other_bandwidth_is_refused(cls, bandwidth):
    with pytest.raises(SettingError, match=f"bandwidth is 'median' or a number above 0, got {bandwidth!r}"):
        cls(bandwidth)


def test_squared_distances_are_those_of_a_loop():
    x, y = normal(3, 4), normal(5, 4, name="y")
    naive = [[math.dist(a, b) ** 2 for b in y.tolist()] for a in x.tolist()]
    torch.testing.assert_close(squared_distances(x, y), torch.tensor(naive, dtype=torch.float64))


def test_products_give_distances_without_touching_the_products():
    x = normal(6, 4)
    centred = x - x.mean(0)
    gram = centred @ centred.T
    before = gram.clone()
    torch.testing.assert_close(distances_of_gram(gram), torch.cdist(x, x).square(), atol=1e-12, rtol=1e-10)
    assert torch.equal(gram, before)


def test_distances_from_products_are_never_negative_and_zero_on_the_diagonal():
    gram = torch.tensor([[1.0, 1 + 1e-9, -1.0], [1 + 1e-9, 1.0, -1.0], [-1.0, -1.0, 1.0]], dtype=torch.float64)
    squared = distances_of_gram(gram)
    assert squared.tolist() == [[0, 0, 4], [0, 0, 4], [4, 4, 0]]


def test_members_that_are_large_and_close_together_keep_their_distances():
    """Without centring, float32 products would lose all digits of them."""
    offset = 100 * normal(2000, name="offset")
    members = (offset + 1e-2 * normal(5, 2000)).float()
    exact = torch.cdist(members.double(), members.double()).square()
    others = ~torch.eye(5, dtype=torch.bool)

    def largest_error(gram):
        return float(((distances_of_gram(gram) - exact).abs() / exact)[others].max())

    gram, dim = products([members[:, :1200].reshape(5, 30, 40), members[:, 1200:]])
    assert dim == 2000
    assert largest_error(gram) < 1e-5
    assert largest_error(members @ members.T) > 1
