"""Hamiltonian Monte Carlo against posteriors whose moments are known: a formula, or a sum over a fine grid.

Every estimate must lie within 4 of its standard errors, sd / sqrt(ESS), and these must be small enough to notice a
wrong factor.
"""

import math

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.diagnostics.convergence import effective_sample_size
from bayesemble.methods.along_training.hmc import leapfrog
from bayesemble.methods.base import Context

NOISE, PRIOR_STD = 0.7, 1.3


def sample(task: be.Task, data: tuple[Tensor, Tensor], epochs: int = 120, **settings: object) -> be.Ensemble:
    method = be.HMC(**({"num_members": 80, "step_size": 0.1, "num_draws": epochs} | settings))
    return be.fit(task, method, data, epochs=epochs, executor="vmap", progress=False)


def draws_of(ensemble: be.Ensemble, *names: str) -> Tensor:
    """Parameters, `(chain, draw, number)`."""
    params = ensemble.draw().params
    flat = torch.cat([params[name].reshape(len(params[name]), -1) for name in names], dim=1)
    return flat.unflatten(0, (ensemble.num_members, -1))


def assert_means(values: Tensor, expected: Tensor, resolution: float) -> None:
    """Means over `(chain, draw)`, within 4 standard errors; four of these are below the resolution."""
    error = values.flatten(0, 1).std(0) / effective_sample_size(values).sqrt()
    assert (4 * error < resolution).all(), f"too few draws to tell: {error}"
    found = values.mean((0, 1))
    assert (found - expected).abs().lt(4 * error).all(), f"{found} instead of {expected}, standard error {error}"


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Means to a fifth of a standard deviation, all variances and covariances to a fifth of the variances."""
    scale = covariance.diagonal().sqrt()
    standard = (draws - mean) / scale
    assert_means(standard, torch.zeros_like(mean), resolution=0.2)
    products = standard.unsqueeze(-1) * standard.unsqueeze(-2)
    assert_means(products.flatten(2), (covariance / scale / scale[:, None]).flatten(), resolution=0.2)


def regression_data() -> tuple[Tensor, Tensor]:
    """Three inputs, two of them nearly the same, so that their weights are strongly correlated."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 0] + 0.3 * x[:, 1]
    noise = NOISE * torch.randn(15, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 + noise


def regression_posterior() -> tuple[Tensor, Tensor]:
    """covariance = (X'X / s^2 + I / v)^-1, mean = covariance X'y / s^2, of (weights, bias)."""
    x, y = regression_data()
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    precision = design.T @ design / NOISE**2 + torch.eye(4, dtype=torch.float64) / PRIOR_STD**2
    covariance = precision.inverse()
    return covariance @ design.T @ y / NOISE**2, covariance


def regression_task(**options: float) -> be.Task:
    return be.Task(lambda: nn.Linear(3, 1).double(), be.Gaussian(noise=NOISE), be.NormalPrior(PRIOR_STD), **options)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_posterior_of_linear_regression(temperature):
    mean, covariance = regression_posterior()
    correlation = covariance / covariance.diagonal().sqrt() / covariance.diagonal().sqrt()[:, None]
    assert correlation[0, 1] < -0.8
    # A step so large that many trajectories are refused: without the refusal the moments would be wrong.
    fitted = sample(regression_task(temperature=temperature), regression_data(), acceptance=0.6)
    assert_moments(draws_of(fitted, "weight", "bias"), mean, temperature * covariance)


class Funnel(nn.Module):
    """f = b exp(a): where a is large, b has little room."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.b * self.a.exp() * x


def grid_moments(log_density, low: float, high: float, num: int = 1200) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a density of two numbers, by a sum over a grid; it must be negligible at the rim."""
    axis = torch.linspace(low, high, num, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    weights = torch.softmax(log_density(points), 0)
    assert weights.reshape(num, num)[[0, -1]].sum() + weights.reshape(num, num)[:, [0, -1]].sum() < 1e-8
    mean = weights @ points
    return mean, (points - mean).T @ ((points - mean) * weights[:, None])


def normal(values: Tensor, std: float) -> Tensor:
    """Log density up to a constant."""
    return -values.square() / (2 * std**2)


def test_a_funnel():
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)

    def log_density(points: Tensor) -> Tensor:
        a, b = points.unbind(1)
        return normal(a, 0.5) + normal(b, 1.0) + normal(b * a.exp() - 3.0, 0.8)

    mean, covariance = grid_moments(log_density, -6.0, 6.0)
    assert mean.abs().min() > 0.2  # the prior alone has mean 0
    task = be.Task(Funnel, be.Gaussian(noise=0.8), be.NormalPrior(std={"a": 0.5, "b": 1.0}))
    fitted = sample(task, (x, y), acceptance=0.9)
    assert_moments(draws_of(fitted, "a", "b"), mean, covariance)


def test_logistic_regression():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(25, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 3.0])
    y = (x[:, 0] + 0.5 * x[:, 1] + torch.randn(25, generator=generator, dtype=torch.float64) > 0).double()

    def log_density(points: Tensor) -> Tensor:
        logits = points @ x.T
        signs = 2 * y - 1
        return nn.functional.logsigmoid(signs * logits).sum(1) + normal(points, 2.0).sum(1)

    mean, covariance = grid_moments(log_density, -4.0, 12.0, num=800)
    task = be.Task(lambda: nn.Linear(2, 1, bias=False).double(), be.Bernoulli(), be.NormalPrior(std=2.0))
    assert_moments(draws_of(sample(task, (x, y)), "weight"), mean, covariance)


@pytest.mark.parametrize("wanted", [0.8, 0.95])
def test_dual_averaging_reaches_the_wanted_acceptance(wanted):
    fitted = sample(regression_task(), regression_data(), acceptance=wanted, num_members=10)
    reached = be.convergence(fitted, regression_data()[0])["acceptance"]
    assert reached == pytest.approx(wanted, abs=0.08)


INVERSE_MASS = torch.tensor([1.0, 0.3, 2.0], dtype=torch.float64)


def potential(position: Tensor) -> Tensor:
    """Neither quadratic nor separable, and high everywhere far out."""
    return position.square().sum(-1).square() / 8 + position.prod(-1) / 2 + position.square().sum(-1) / 2


def quartic_pull(position: Tensor) -> tuple[Tensor, Tensor]:
    square = position.square().sum(-1, keepdim=True)
    others = torch.stack(
        [position[..., 1] * position[..., 2], position[..., 0] * position[..., 2], position[..., 0] * position[..., 1]],
        dim=-1,
    )
    return -potential(position), -(position * square / 2 + others / 2 + position)


def follow(position: Tensor, momentum: Tensor, step_size: float, num: int) -> tuple[Tensor, Tensor]:
    gradient = quartic_pull(position)[1]
    steps = torch.full((len(position),), step_size, dtype=torch.float64)
    return leapfrog(quartic_pull, position, momentum, gradient, INVERSE_MASS, steps, num)[:2]


def phase_points(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
    points = torch.randn(2, num, 3, generator=generator, dtype=torch.float64)
    return points[0], points[1]


def test_the_integrator_is_reversible(generator):
    position, momentum = phase_points(generator, 20)
    there = follow(position, momentum, 0.1, 25)
    assert (there[0] - position).abs().max() > 1
    back = follow(there[0], -there[1], 0.1, 25)
    torch.testing.assert_close(back[0], position, atol=1e-11, rtol=0)
    torch.testing.assert_close(back[1], -momentum, atol=1e-11, rtol=0)


def test_the_integrator_keeps_volumes(generator):
    point = torch.cat(phase_points(generator, 1), dim=1)[0]

    def flow(both: Tensor) -> Tensor:
        return torch.cat(follow(both[None, :3], both[None, 3:], 0.2, 7), dim=1)[0]

    jacobian = torch.autograd.functional.jacobian(flow, point)
    assert (jacobian - torch.eye(6)).abs().max() > 0.5
    assert torch.linalg.det(jacobian).item() == pytest.approx(1.0, abs=1e-11)


def test_the_energy_is_off_by_the_square_of_the_step(generator):
    position, momentum = phase_points(generator, 50)

    def energy(q: Tensor, p: Tensor) -> Tensor:
        return potential(q) + (p.square() * INVERSE_MASS).sum(-1) / 2

    def error(num: int) -> float:
        end = follow(position, momentum, 1.0 / num, num)
        return (energy(*end) - energy(position, momentum)).square().mean().sqrt().item()

    assert error(40) / error(80) == pytest.approx(4.0, rel=0.05)
    assert error(80) / error(160) == pytest.approx(4.0, rel=0.05)


def test_a_transition_is_the_textbook_one(generator):
    """Ten naive lines of Neal (2011) from the same momenta and uniforms, chain by chain."""
    from bayesemble.core import seeds
    from bayesemble.core.types import Batch, Clock

    x, y = regression_data()
    task = regression_task().bind(len(x), x)
    method, clock = be.HMC(num_members=8, step_size=0.14, trajectory=1.5, warmup=0.0), Clock(0, 10, 7)
    state = method.init(task, 5)
    starts = torch.cat([state.members.params["bias"], state.members.params["weight"].flatten(1)], dim=1)
    state, info = method.step(state, Batch(x, y[:, None]), Context(task, be.Vmap(), clock))
    ends = torch.cat([state.members.params["bias"], state.members.params["weight"].flatten(1)], dim=1)
    design = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)

    def log_joint(w: Tensor) -> Tensor:
        return normal(design @ w - y, NOISE).sum() + normal(w, PRIOR_STD).sum()

    slope = torch.func.grad(log_joint)
    uniform = torch.rand((), generator=seeds.generator(7, "trajectory", 0)).item()
    num, e, variance = round((0.5 + uniform) * 1.5 / 0.14), 0.14, PRIOR_STD**2
    outcomes = []
    for chain, start in enumerate(starts):
        own = seeds.generator(7, "member", chain, "hmc", 0)
        first = p = torch.randn(4, generator=own, dtype=torch.float64) / PRIOR_STD
        q = start
        for _ in range(num):
            p = p + e / 2 * slope(q)
            q = q + e * variance * p
            p = p + e / 2 * slope(q)
        gain = log_joint(q) - log_joint(start) - variance * (p @ p - first @ first) / 2
        accept = torch.rand((), generator=own, dtype=torch.float64) < gain.exp()
        outcomes.append(bool(accept))
        torch.testing.assert_close(ends[chain], q if accept else start)
        assert info["acceptance"][chain].item() == pytest.approx(min(1.0, math.exp(gain)))
    assert any(outcomes)
    assert not all(outcomes)
