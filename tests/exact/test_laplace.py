"""The Laplace approximation is exact for linear regression, and its precision is a formula for logistic regression."""

import importlib.util
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import bayesemble as be
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.methods.laplace.laplace import SLOT, Laplace

NOISE = 0.7
STDS = {"weight": 1.3, "bias": 0.4}


def regression(num_rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 0.1])
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3
    return x, (y + NOISE * torch.randn(num_rows, generator=generator, dtype=torch.float64)).unsqueeze(1)


def need_curvlinops() -> None:
    if importlib.util.find_spec("curvlinops") is None:
        pytest.skip("curvlinops-for-pytorch, the extra 'laplace', is not installed")


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def linear_task(outputs: int = 1, likelihood=None, prior=None, **options) -> be.Task:
    prior = prior or be.NormalPrior(std=STDS)
    return be.Task(lambda: nn.Linear(3, outputs).double(), likelihood or be.Gaussian(NOISE), prior, **options)


def approximated(method: Laplace, task: be.Task, x: Tensor, y: Tensor, place=None) -> be.Ensemble:
    """The method at given weights `(output, input and bias)` instead of trained ones, the data in batches of five."""
    task = task.bind(len(x), x)
    state = method.init(task, 0)
    if place is not None:
        state.members.params["weight"].copy_(place[:, :-1])
        state.members.params["bias"].copy_(place[:, -1])

    def data():
        return (Batch(x[rows], y[rows]) for rows in torch.arange(len(x)).split(5))

    return be.Ensemble(task, method, method.finish(state, data, Context(task, be.Loop(), Clock(1, 1, 0))), be.Loop())


def covariance(state: State, member: int = 0) -> Tensor:
    """Of (weight, bias), the weight row by row, from what draws are made of."""
    slot = {name: leaf[member] for name, leaf in state.slots[SLOT].items()}
    rows, columns = slot["std.0"].shape
    left, right = slot.get("left.0", torch.eye(rows)), slot.get("right.0", torch.eye(columns))
    root = torch.kron(left.double(), right.double()) * slot["std.0"].flatten()
    found = root @ root.T
    if "left.0" not in slot:
        return found
    by_output = torch.arange(rows * columns).reshape(rows, columns)  # the bias is the last column there
    order = torch.cat([by_output[:, :-1].flatten(), by_output[:, -1]])
    return found[order][:, order]


def prior_precision() -> Tensor:
    return torch.tensor([STDS["weight"]] * 3 + [STDS["bias"]], dtype=torch.float64) ** -2


def ridge(precision: Tensor) -> Tensor:
    x, y = regression()
    design = with_ones(x)
    return torch.linalg.solve(design.T @ design / NOISE**2 + torch.diag(precision), design.T @ y / NOISE**2).T


def exact_log_evidence(variance: Tensor) -> float:
    """log Normal(y; 0, noise^2 I + X V X')."""
    x, y = regression()
    design = with_ones(x)
    marginal = NOISE**2 * torch.eye(len(x), dtype=torch.float64) + design * variance @ design.T
    return float(MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), marginal).log_prob(y[:, 0]))


@pytest.mark.parametrize(("temperature", "num_data"), [(1.0, None), (0.25, None), (1.0, 36)])
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_covariance_of_linear_regression(structure, temperature, num_data):
    """Also with a prior of its own for the bias; the Kronecker product of one layer with one output is exact too."""
    if structure == "kron":
        need_curvlinops()
    x, y = regression()
    task = linear_task(temperature=temperature, num_data=num_data)
    found = covariance(approximated(Laplace(structure=structure), task, x, y).state)
    count = 1 if num_data is None else num_data / len(x)
    precision = count * with_ones(x).T @ with_ones(x) / NOISE**2 + torch.diag(prior_precision())
    torch.testing.assert_close(found, temperature * precision.inverse(), rtol=0, atol=1e-10)


def test_the_diagonal_is_that_of_the_precision():
    x, y = regression()
    found = covariance(approximated(Laplace(structure="diag"), linear_task(), x, y).state)
    precision = (with_ones(x).T @ with_ones(x)).diagonal() / NOISE**2 + prior_precision()
    torch.testing.assert_close(found, torch.diag(1 / precision), rtol=0, atol=1e-12)


def test_several_outputs_with_fixed_noise_are_a_kronecker_product():
    need_curvlinops()
    x, y = regression()
    whole, product = (
        covariance(approximated(Laplace(structure=structure), linear_task(2), x, y.expand(-1, 2)).state)
        for structure in ("full", "kron")
    )
    torch.testing.assert_close(product, whole, rtol=0, atol=1e-10)


def test_weight_alone_and_bias_alone():
    need_curvlinops()
    x, y = regression()
    for wish in ("weight", "bias"):
        found = [
            approximated(Laplace(structure=kind, select=wish), linear_task(), x, y).state.slots[SLOT]
            for kind in ("full", "kron")
        ]
        whole, product = (one["right.0"][0] * one["std.0"][0] for one in found)
        torch.testing.assert_close(product @ product.T, whole @ whole.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_predictive_distribution_is_that_of_bayesian_linear_regression(structure):
    """Normal with the variance x' S x + noise^2; 20,000 draws agree within their standard errors."""
    x, y = regression()
    mean = ridge(prior_precision())
    ensemble = approximated(Laplace(structure=structure), linear_task(), x, y, mean)
    far = torch.tensor([[3.0, -3.0, 3.0], [0.1, 0.0, 0.0]], dtype=torch.float64)
    precision = with_ones(x).T @ with_ones(x) / NOISE**2 + torch.diag(prior_precision())
    expected = (with_ones(far) @ precision.inverse() * with_ones(far)).sum(1)
    exact = ensemble.predict(far)
    torch.testing.assert_close(exact.mean, (with_ones(far) @ mean.T)[:, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(exact.epistemic, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(exact.aleatoric, torch.full((2,), NOISE**2, dtype=torch.float64))
    targets = torch.tensor([1.0, -0.3], dtype=torch.float64)
    density = torch.distributions.Normal(exact.mean, (expected + NOISE**2).sqrt()).log_prob(targets)
    torch.testing.assert_close(exact.log_prob(targets), density)
    if structure == "full":
        num = 20_000
        drawn = ensemble.predict(far, num_draws=num)
        assert (drawn.epistemic / expected - 1).abs().max() < 4 * math.sqrt(2 / num)
        assert ((drawn.mean - exact.mean).abs() < 4 * (expected / num).sqrt()).all()


def test_the_predictive_variance_of_several_outputs_and_a_diagonal():
    x, y = regression()
    outputs, diagonal = (
        approximated(method, linear_task(2), x, y.expand(-1, 2)).predict(x).epistemic
        for method in (Laplace(), Laplace(structure="diag"))
    )
    precision = with_ones(x).T @ with_ones(x) / NOISE**2 + torch.diag(prior_precision())
    expected = (with_ones(x) @ precision.inverse() * with_ones(x)).sum(1)
    torch.testing.assert_close(outputs, torch.stack([expected, expected], 1), rtol=1e-10, atol=1e-12)
    expected = with_ones(x).square() @ (1 / precision.diagonal())
    torch.testing.assert_close(diagonal, torch.stack([expected, expected], 1), rtol=1e-10, atol=1e-12)


def test_the_precision_of_logistic_regression():
    x, y = regression()
    weights = torch.tensor([[1.0, -0.5, 2.0, 0.3]], dtype=torch.float64)
    task = linear_task(likelihood=be.Bernoulli())
    found = covariance(approximated(Laplace(), task, x, (y > 0).double(), weights).state)
    probability = torch.sigmoid(with_ones(x) @ weights.T)
    precision = with_ones(x).T @ (probability * (1 - probability) * with_ones(x)) + torch.diag(prior_precision())
    torch.testing.assert_close(found.inverse(), precision, rtol=0, atol=1e-10)


def test_the_precision_of_softmax_regression():
    x, _ = regression()
    weights = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    labels = torch.arange(len(x)) % 3
    found = covariance(approximated(Laplace(), linear_task(3, be.Categorical()), x, labels, weights).state)
    precision = torch.diag(torch.cat([prior_precision()[:3].repeat(3), prior_precision()[3:].repeat(3)]))
    for row in with_ones(x):
        probs = (weights @ row).softmax(0)
        curvature = torch.diag(probs) - torch.outer(probs, probs)
        jacobian = torch.cat([torch.block_diag(*[row[:3].unsqueeze(0)] * 3), torch.eye(3, dtype=torch.float64)], dim=1)
        precision += jacobian.T @ curvature @ jacobian
    torch.testing.assert_close(found.inverse(), precision, rtol=0, atol=1e-10)


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_evidence_of_linear_regression(structure):
    if structure == "kron":
        need_curvlinops()
    x, y = regression()
    ensemble = approximated(Laplace(structure=structure), linear_task(), x, y, ridge(prior_precision()))
    found = ensemble.state.slots[SLOT]["log_evidence"].item()
    assert found == pytest.approx(exact_log_evidence(1 / prior_precision()), abs=1e-9)


def chosen_precision(weights: Tensor, **options) -> float:
    x, y = regression()
    method = Laplace(prior="marginal_likelihood", **options)
    return approximated(method, linear_task(), x, y, weights).state.slots[SLOT]["prior_precision"].item()


def test_the_chosen_precision_maximises_the_evidence_at_the_weights():
    x, _ = regression()
    weights = torch.tensor([[1.0, -0.5, 2.0, 0.3]], dtype=torch.float64)
    curvature = with_ones(x).T @ with_ones(x) / NOISE**2
    grid = torch.linspace(-3, 3, 60001, dtype=torch.float64).exp()
    identity = torch.eye(4, dtype=torch.float64)
    prior = 2 * grid.log() - grid * weights.square().sum() / 2
    values = prior - torch.logdet(curvature + grid[:, None, None] * identity) / 2
    assert chosen_precision(weights) == pytest.approx(grid[values.argmax()].item(), rel=2e-4)


def test_at_its_own_solution_the_chosen_precision_maximises_the_exact_evidence():
    """Choosing and training in turn, as MacKay does, climbs to the maximum of log p(y) over the precision."""
    precision = 1.0
    for _ in range(25):
        precision = chosen_precision(ridge(torch.full((4,), precision, dtype=torch.float64)))
    x, y = regression()
    sizes, directions = torch.linalg.eigh(with_ones(x) @ with_ones(x).T)
    grid = torch.linspace(-3, 3, 60001, dtype=torch.float64).exp()
    variances = NOISE**2 + sizes / grid.unsqueeze(1)  # of y along each direction
    values = -(variances.log() + (directions.T @ y[:, 0]) ** 2 / variances).sum(1) / 2
    assert precision == pytest.approx(grid[values.argmax()].item(), rel=2e-4)


def test_the_chosen_precision_is_the_one_draws_are_made_with():
    x, y = regression()
    weights = torch.tensor([[1.0, -0.5, 2.0, 0.3]], dtype=torch.float64)
    state = approximated(Laplace(prior="marginal_likelihood"), linear_task(), x, y, weights).state
    precision = state.slots[SLOT]["prior_precision"] * torch.eye(4, dtype=torch.float64)
    expected = (with_ones(x).T @ with_ones(x) / NOISE**2 + precision).inverse()
    torch.testing.assert_close(covariance(state), expected, rtol=0, atol=1e-10)
