import importlib.util
import math

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods.laplace import gauss_newton
from bayesemble.methods.laplace.gauss_newton import Network, linearised, output_roots, twice_backward
from bayesemble.methods.laplace.gaussian_blocks import (
    Block,
    Layout,
    best_scale,
    deviation,
    layouts,
    log_evidence,
    memory,
    spectrum,
)
from bayesemble.methods.laplace.kronecker import kronecker
from helpers import norm_convnet, norm_mlp, small_mlp, table

needs_curvlinops = pytest.mark.skipif(
    importlib.util.find_spec("curvlinops") is None, reason="curvlinops-for-pytorch, the extra 'laplace', is missing"
)


def smooth_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def network(model=smooth_mlp, likelihood=None, names=None, x=None) -> Network:
    x = table()[0].double() if x is None else x
    task = be.Task(model, likelihood or be.Categorical()).bind(len(x), x)
    params, buffers = task.new_member(seed=0)
    return Network(task, params, buffers, tuple(names or task.shapes))


def flat_layout(one: Network) -> Layout:
    return Layout(one.names, 1)


def jacobian(one: Network, x: Tensor) -> Tensor:
    """(row, output, number), by reverse mode over the whole batch."""
    found = torch.func.jacrev(lambda chosen: one.outputs(x, chosen))(one.chosen)
    return torch.cat([found[name].flatten(2) for name in one.names], dim=2)


# --- what the likelihood says ---


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
    one = network(likelihood=likelihood)
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
    one = network(likelihood=be.HeteroscedasticGaussian(stretch=stretch))
    outputs = torch.tensor([[0.3, -1.0], [2.0, 3.1]], dtype=torch.float64)
    roots = output_roots(one.task, outputs, torch.tensor([[50.0], [-2.0]], dtype=torch.float64), one.params)
    variance, slope = (nn.functional.softplus(outputs[:, 1]) + 1e-6) * stretch**2, outputs[:, 1].sigmoid() * stretch**2
    expected = torch.diag_embed(torch.stack([1 / variance, slope**2 / (2 * variance**2)], 1))
    torch.testing.assert_close(roots @ roots.mT, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("degrees", [3, 4, 9])
def test_heavy_tails_with_a_variance_head_have_their_fisher_information(degrees):
    """The mean of the second derivative over targets, by quadrature."""
    likelihood = be.HeteroscedasticStudent(degrees)
    one = network(likelihood=likelihood)
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
    one = network(likelihood=be.Gaussian("learned"), names=["0.weight"])
    one.params["likelihood.log_noise"].copy_(torch.tensor([0.5, -1.0]))
    roots = output_roots(one.task, torch.zeros(1, 2).double(), torch.ones(1, 2).double(), one.params)
    expected = torch.tensor([0.5, -1.0], dtype=torch.float64).mul(-2).exp().diag()
    torch.testing.assert_close(roots[0] @ roots[0].T, expected)


# --- the matrix ---


@pytest.mark.parametrize("names", [None, ["2.weight", "2.bias"], ["0.bias"]])
def test_whole_and_diagonal_against_the_formula(names, monkeypatch):
    x, y = table()
    x, one = x.double(), network(names=names)
    jacobians, roots = jacobian(one, x), output_roots(one.task, one.outputs(x), y, one.params)
    expected = torch.einsum("nop,nok,nqk,nqr->pr", jacobians, roots, roots, jacobians)
    parts = [(x[:7], y[:7]), (x[7:], y[7:])]
    for budget in (1 << 27, 1 << 12, 1):  # all rows at once, a few, one row and one column
        monkeypatch.setattr(gauss_newton, "_BUDGET", budget)
        torch.testing.assert_close(gauss_newton.whole(one, parts, flat_layout(one)).right, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(gauss_newton.diagonal(one, parts, flat_layout(one)).right, expected.diagonal())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unsqueeze(1))[0][:, -1])


def test_what_vmap_cannot_run_goes_row_by_row():
    x, y = table(6)
    one = network(lambda: Recurrent().double(), x=x.double())
    roots = output_roots(one.task, one.outputs(x.double()), y, one.params)
    expected = torch.einsum("nop,nok->nkp", jacobian(one, x.double()), roots)
    found = gauss_newton.pulled_back_one_by_one(one, x.double(), roots)
    torch.testing.assert_close(torch.cat([found[name].flatten(2) for name in one.names], 2), expected)
    total = torch.einsum("nkp,nkq->pq", expected, expected)
    torch.testing.assert_close(
        gauss_newton.whole(one, [(x.double(), y)], flat_layout(one)).right, total, rtol=0, atol=1e-10
    )


def test_batch_norm_is_run_in_eval_mode_and_left_alone():
    one = network(norm_mlp, x=table()[0])
    before = {name: leaf.clone() for name, leaf in one.buffers.items()}
    block = gauss_newton.whole(one, [table()], flat_layout(one))
    assert all(torch.equal(leaf, before[name]) for name, leaf in one.buffers.items())
    halves = [tuple(part[rows] for part in table()) for rows in (slice(0, 5), slice(5, 48))]
    again = gauss_newton.whole(one, halves, flat_layout(one)).right
    torch.testing.assert_close(block.right, again, rtol=1e-5, atol=1e-6)


def test_the_network_made_linear():
    one, x = network(), table()[0].double()
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
    one = network(lambda: Attention().double(), x=x)
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
    one = network(OldStyle, x=x)
    with torch.no_grad(), pytest.raises(ModelError, match="predict='samples'"):
        linearised(one, x, one.chosen)
    plain = Network(be.Task(lambda: nn.Linear(4, 2), be.Categorical()).bind(6, x), {}, {}, ("weight", "bias"))
    plain.params.update({name.removeprefix("head."): 2 * leaf for name, leaf in one.params.items()})
    expected = 4 * gauss_newton.whole(plain, [(x, y)], flat_layout(plain)).right
    torch.testing.assert_close(
        gauss_newton.whole(one, [(x, y)], flat_layout(one)).right, expected, rtol=1e-5, atol=1e-6
    )


# --- Kronecker products ---


def kfac_of(one: Network, x: Tensor, loss: nn.Module, y: Tensor) -> tuple[dict, dict]:
    """What the package gives for a loss that it knows, with its own second derivatives."""
    from curvlinops import KFACLinearOperator

    module = one.task.module
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(one.params[name])
    found = KFACLinearOperator(
        module.eval(), loss, [module.get_parameter(name) for name in one.names], [(x, y)],
        fisher_type="type-2", separate_weight_and_bias=False, check_deterministic=False,
    )  # fmt: skip
    found.compute_kronecker_factors()
    return found.state_dict()["gradient_covariances"], found.state_dict()["input_covariances"]


@needs_curvlinops
@pytest.mark.parametrize("model", [smooth_mlp, lambda: norm_convnet().double()], ids=["dense", "conv"])
def test_products_are_those_of_the_cross_entropy(model):
    x, y = table()
    if model is not smooth_mlp:
        with scoped(0):
            x = torch.rand(48, 3, 8, 8)
    x = x.double()
    module = be.Task(model, be.Categorical()).module
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    one = network(model, names=names, x=x)
    plan = layouts("kron", one.task.module, names)
    blocks = kronecker(one, lambda: iter([(x[:9], y[:9]), (x[9:], y[9:])]), plan, len(x))
    left, right = kfac_of(one, x, nn.CrossEntropyLoss(reduction="sum"), y)
    for block in blocks:
        layer = block.layout.names[0].rpartition(".")[0]
        torch.testing.assert_close(block.left, left[layer], rtol=0, atol=1e-10)
        torch.testing.assert_close(block.right, right[layer], rtol=0, atol=1e-10)


@needs_curvlinops
def test_the_products_leave_the_network_of_the_task_alone():
    one = network()
    before = {name: leaf.clone() for name, leaf in one.task.module.state_dict().items()}
    plan = layouts("kron", one.task.module, list(one.names))
    kronecker(one, lambda: iter([(table()[0].double(), table()[1])]), plan, 48)
    assert all(torch.equal(leaf, before[name]) for name, leaf in one.task.module.state_dict().items())
    assert all(parameter.requires_grad for parameter in one.task.module.parameters())


# --- blocks ---


def test_layouts_and_their_splitting():
    module = be.Task(small_mlp, be.Categorical()).module
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert layouts("full", module, names) == [Layout(tuple(names), 1)]
    first, second = layouts("kron", module, names)
    assert (first.rows, second.rows) == (8, 2)
    shapes = {name: tuple(leaf.shape) for name, leaf in module.named_parameters()}
    matrix = torch.arange(18.0).reshape(2, 9)
    parts = second.split(matrix, shapes)
    assert torch.equal(parts["2.weight"], matrix[:, :8])
    assert torch.equal(parts["2.bias"], matrix[:, 8])


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_spectrum_gives_covariance_and_determinant(scale):
    """Against precision = left (x) right + c I (x) diag(d), built out."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (2, 4))
    block = Block(Layout(("weight", "bias"), 2), left @ left.T, right @ right.T)
    shapes, precisions = {"weight": (2, 3), "bias": (2,)}, {"weight": 2.0, "bias": 0.5}
    columns = torch.tensor([2.0, 2.0, 2.0, 0.5], dtype=torch.float64)
    prior = torch.kron(torch.eye(2, dtype=torch.float64), torch.diag(columns))
    precision = torch.kron(block.left, block.right) + scale * prior
    found = spectrum(block, shapes, precisions)
    factors = found.factors(scale, temperature=0.5)
    root = torch.stack([deviation(factors, unit.reshape(2, 4)).flatten() for unit in torch.eye(8).double()], 1)
    torch.testing.assert_close(root @ root.T, 0.5 * precision.inverse())
    weights = torch.arange(8.0, dtype=torch.float64)
    size = float(weights @ prior @ weights)
    gaussian = torch.distributions.MultivariateNormal
    laplace = -3.0 + gaussian(torch.zeros(8).double(), precision_matrix=scale * prior).log_prob(weights)
    laplace = laplace + 4 * math.log(2 * math.pi) - torch.logdet(precision) / 2
    assert log_evidence(-3.0, found.values, size, scale) == pytest.approx(laplace.item())


def test_the_best_scale_has_the_largest_evidence_and_stays_finite():
    values = torch.tensor([0.0, 0.1, 5.0, 300.0], dtype=torch.float64)
    best = best_scale(values, 2.0)
    around = [log_evidence(0.0, values, 2.0, best * step) for step in (0.99, 1.0, 1.01)]
    assert max(around) == around[1]
    assert 0 < best_scale(torch.zeros(3).double(), 1.0) < 1e-11
    assert 1e11 < best_scale(values, 0.0) < math.inf


def test_memory_grows_as_it_should():
    task = be.Task(small_mlp, be.Categorical())
    names = list(task.shapes)

    def need(kind: str, members: int = 1) -> int:
        return memory(kind, layouts(kind, task.module, names), task.shapes, members, 4)

    assert need("diag") < need("kron") < need("full")
    assert need("full", 11) - need("full") == 10 * 4 * (58**2 + 58)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (norm_mlp, "'1' is BatchNorm1d"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))), "'0' is"),
    ],
)
def test_layers_without_a_product_are_named(model, sentence):
    with scoped(0):
        module = model()
    with pytest.raises(SettingError, match=sentence):
        layouts("kron", module, [name for name, _ in module.named_parameters()])


def test_a_tied_weight_has_no_product():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.words.weight

    with scoped(0), pytest.raises(SettingError, match="shares"):
        layouts("kron", Tied(), ["words.weight"])
