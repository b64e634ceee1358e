import math

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import ModelError
from bayesemble.methods.laplace import gauss_newton
from bayesemble.methods.laplace.gauss_newton import Network, linearised, output_roots, twice_backward
from bayesemble.methods.laplace.gaussian_blocks import Layout
from helpers import norm_mlp, one_network, table, tempered_mlp


def flat_layout(one: Network) -> Layout:
    return Layout(one.names, 1)


def jacobian(one: Network, x: Tensor) -> Tensor:
    """(row, output, number), by reverse mode over the whole batch."""
    found = torch.func.jacrev(lambda chosen: one.outputs(x, chosen))(one.chosen)
    return torch.cat([found[name].flatten(2) for name in one.names], dim=2)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (be.Categorical(), torch.tensor([0, 1, 1])),
        (be.Bernoulli(), torch.tensor([[0.0, 1], [1, 1], [0, 0]])),
        (be.Gaussian(0.3), torch.tensor([[0.0, 1], [1, 1], [0, 0]])),
        (be.Poisson(), torch.tensor([[0.0, 1], [3, 1], [2, 5]])),
    ],
)
def test_the_roots_of_the_second_derivative(likelihood, targets):
    one = one_network(likelihood=likelihood)
    outputs = torch.tensor([[0.3, -1.0], [2.0, 0.1], [-0.5, 0.5]], dtype=torch.float64)
    roots = output_roots(one.task, outputs, targets, one.params)
    for row in range(3):

        def negative(own: Tensor, row: int = row) -> Tensor:
            return -likelihood.log_prob(own.unsqueeze(0), targets[row : row + 1], {}).sum()

        expected = torch.autograd.functional.hessian(negative, outputs[row])
        torch.testing.assert_close(roots[row] @ roots[row].T, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stretch", [1.0, 2.0])
def test_a_normal_with_a_variance_head_has_its_fisher_information(stretch):
    """Of the mean: 1 / v; of what the variance v = s^2 softplus(raw) is made of: (dv / draw)^2 / (2 v^2)."""
    one = one_network(likelihood=be.HeteroscedasticGaussian(stretch=stretch))
    outputs = torch.tensor([[0.3, -1.0], [2.0, 3.1]], dtype=torch.float64)
    roots = output_roots(one.task, outputs, torch.tensor([[50.0], [-2.0]], dtype=torch.float64), one.params)
    variance, slope = (nn.functional.softplus(outputs[:, 1]) + 1e-6) * stretch**2, outputs[:, 1].sigmoid() * stretch**2
    expected = torch.diag_embed(torch.stack([1 / variance, slope**2 / (2 * variance**2)], 1))
    torch.testing.assert_close(roots @ roots.mT, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("degrees", [3, 4, 9])
def test_heavy_tails_with_a_variance_head_have_their_fisher_information(degrees):
    """The mean of the second derivative over targets, by quadrature."""
    likelihood = be.HeteroscedasticStudent(degrees)
    one = one_network(likelihood=likelihood)
    outputs = torch.tensor([0.3, -1.0], dtype=torch.float64)
    roots = output_roots(one.task, outputs[None], torch.tensor([[50.0]], dtype=torch.float64), one.params)[0]
    angles = torch.linspace(-1, 1, 2002, dtype=torch.float64)[1:-1] * math.pi / 2
    targets, sizes = angles.tan()[:, None], math.pi / 2001 / angles.cos().square()

    def log_prob(own: Tensor) -> Tensor:
        return likelihood.log_prob(own.expand(len(targets), 2), targets, {})

    shares = log_prob(outputs).exp() * sizes
    expected = torch.autograd.functional.hessian(lambda own: -(shares * log_prob(own)).sum(), outputs)
    torch.testing.assert_close(roots @ roots.T, expected, rtol=1e-5, atol=1e-5)


def test_learned_noise_counts_for_each_output():
    one = one_network(likelihood=be.Gaussian("learned"), names=["0.weight"])
    one.params["likelihood.log_noise"].copy_(torch.tensor([0.5, -1.0]))
    roots = output_roots(one.task, torch.zeros(1, 2).double(), torch.ones(1, 2).double(), one.params)
    expected = torch.tensor([0.5, -1.0], dtype=torch.float64).mul(-2).exp().diag()
    torch.testing.assert_close(roots[0] @ roots[0].T, expected)


@pytest.mark.parametrize("names", [None, ["2.weight", "2.bias"], ["0.bias"]])
def test_whole_and_diagonal_against_the_formula(names, monkeypatch):
    x, y = table()
    x, one = x.double(), one_network(names=names)
    jacobians, roots = jacobian(one, x), output_roots(one.task, one.outputs(x), y, one.params)
    expected = torch.einsum("nop,nok,nqk,nqr->pr", jacobians, roots, roots, jacobians)
    parts = [(x[:7], y[:7]), (x[7:], y[7:])]
    for budget in (1 << 27, 1 << 12, 1):  # all rows at once, a few, one row and one column
        monkeypatch.setattr(gauss_newton, "BUDGET", budget)
        torch.testing.assert_close(gauss_newton.whole(one, parts, flat_layout(one)).right, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(gauss_newton.diagonal(one, parts, flat_layout(one)).right, expected.diagonal())


def test_a_leaf_without_axes_has_its_curvature():
    x, y = table()
    one = one_network(lambda: tempered_mlp().double(), x=x.double())
    slopes = torch.func.jacrev(lambda chosen: one.outputs(x.double(), chosen))(one.chosen)
    jacobians = torch.cat([slopes[name].reshape(len(x), 2, -1) for name in one.names], dim=2)
    roots = output_roots(one.task, one.outputs(x.double()), y, one.params)
    expected = torch.einsum("nop,nok,nqk,nqr->pr", jacobians, roots, roots, jacobians)
    torch.testing.assert_close(gauss_newton.whole(one, [(x.double(), y)], flat_layout(one)).right, expected)
    torch.testing.assert_close(
        gauss_newton.diagonal(one, [(x.double(), y)], flat_layout(one)).right, expected.diagonal()
    )


def test_jacobians_come_a_few_rows_at_a_time(monkeypatch):
    one, x = one_network(), table()[0].double()
    monkeypatch.setattr(gauss_newton, "BUDGET", 1 << 12)
    parts = list(gauss_newton.jacobians(one, x))
    assert len(parts) > 1
    found = torch.cat([torch.cat([slopes[name].flatten(2) for name in one.names], dim=2) for _, slopes in parts])
    torch.testing.assert_close(found, jacobian(one, x))
    assert torch.equal(torch.cat([outputs for outputs, _ in parts]), one.outputs(x))


def test_gradients_of_rows_fill_the_budget_and_no_more(monkeypatch):
    """A row has two columns of all numbers, and a root of two by two, in double precision."""
    x, y = table(7)
    one, shapes, pulled = one_network(), [], gauss_newton._pulled_back
    monkeypatch.setattr(
        gauss_newton, "_pulled_back", lambda *given: shapes.append(tuple(given[2].shape)) or pulled(*given)
    )
    numbers = sum(leaf.numel() for leaf in one.chosen.values())
    for budget, expected in (
        (3 * 2 * 8 * (numbers + 2), [(3, 2, 2), (3, 2, 2), (1, 2, 2)]),
        (3 * 2 * 8 * (numbers + 2) - 1, [(2, 2, 2)] * 3 + [(1, 2, 2)]),
        (2 * 8 * numbers - 1, [(1, 2, 1)] * 14),
        (1, [(1, 2, 1)] * 14),
    ):
        shapes.clear()
        monkeypatch.setattr(gauss_newton, "BUDGET", budget)
        gauss_newton.diagonal(one, [(x.double(), y)], flat_layout(one))
        assert shapes == expected
    monkeypatch.setattr(gauss_newton, "BUDGET", 3 * 2 * 8 * (numbers + 2))
    assert [len(outputs) for outputs, _ in gauss_newton.jacobians(one, x.double())] == [3, 3, 1]
    monkeypatch.setattr(gauss_newton, "BUDGET", 1)
    assert [len(outputs) for outputs, _ in gauss_newton.jacobians(one, x.double())] == [1] * 7


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unsqueeze(1))[0][:, -1])


def test_what_vmap_cannot_run_goes_row_by_row():
    x, y = table(6)
    one = one_network(lambda: Recurrent().double(), x=x.double())
    roots = output_roots(one.task, one.outputs(x.double()), y, one.params)
    expected = torch.einsum("nop,nok->nkp", jacobian(one, x.double()), roots)
    found = gauss_newton.pulled_back_one_by_one(one, x.double(), roots)
    torch.testing.assert_close(torch.cat([found[name].flatten(2) for name in one.names], 2), expected)
    total = torch.einsum("nkp,nkq->pq", expected, expected)
    torch.testing.assert_close(
        gauss_newton.whole(one, [(x.double(), y)], flat_layout(one)).right, total, rtol=0, atol=1e-10
    )


def test_batch_norm_is_run_in_eval_mode_and_left_alone():
    one = one_network(norm_mlp, x=table()[0])
    before = {name: leaf.clone() for name, leaf in one.buffers.items()}
    block = gauss_newton.whole(one, [table()], flat_layout(one))
    assert all(torch.equal(leaf, before[name]) for name, leaf in one.buffers.items())
    halves = [tuple(part[rows] for part in table()) for rows in (slice(0, 5), slice(5, 48))]
    again = gauss_newton.whole(one, halves, flat_layout(one)).right
    torch.testing.assert_close(block.right, again, rtol=1e-5, atol=1e-6)


def test_the_network_made_linear():
    one, x = one_network(), table()[0].double()
    generator = torch.Generator().manual_seed(0)
    away = {n: torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for n, leaf in one.chosen.items()}
    flat = torch.cat([leaf.flatten() for leaf in away.values()])
    expected = one.outputs(x) + jacobian(one, x) @ flat
    torch.testing.assert_close(linearised(one, x, away), expected)
    torch.testing.assert_close(twice_backward(one, x, away), expected)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Linear(1, 8), nn.Linear(8, 2)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.words(x.unsqueeze(2)))[:, 0])


def test_a_layer_without_forward_mode_is_made_linear_all_the_same():
    x = table(6)[0].double()
    one = one_network(lambda: Attention().double(), x=x)
    flat = torch.cat([leaf.flatten() for leaf in one.chosen.values()])
    with torch.no_grad():
        found = linearised(one, x, one.chosen)
    torch.testing.assert_close(found, one.outputs(x) + jacobian(one, x) @ flat)


class Doubled(torch.autograd.Function):
    """A function in the old style, which has a gradient outside of torch.func only."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


class OldStyle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(self.head(x))


def test_a_network_that_cannot_be_made_linear_still_has_its_curvature():
    x, y = table(6)
    one = one_network(OldStyle, x=x)
    with torch.no_grad(), pytest.raises(ModelError, match="predict='samples'"):
        linearised(one, x, one.chosen)
    plain = Network(be.Task(lambda: nn.Linear(4, 2), be.Categorical()).bind(6, x), {}, {}, ("weight", "bias"))
    plain.params.update({name.removeprefix("head."): 2 * leaf for name, leaf in one.params.items()})
    expected = 4 * gauss_newton.whole(plain, [(x, y)], flat_layout(plain)).right
    torch.testing.assert_close(
        gauss_newton.whole(one, [(x, y)], flat_layout(one)).right, expected, rtol=1e-5, atol=1e-6
    )
