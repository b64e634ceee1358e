"""SGLD and SGHMC against laws that are known: of the steps themselves, and of the posterior that small steps lead to.

A linear layer with many outputs that all have the same targets is as many independent chains, so that the last position
of each gives independent draws, and standard errors need no guessing. Every moment must lie within 4 of them, and these
must be small enough to notice a wrong factor in the noise.
"""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.along_training.sgmcmc import CyclicalSGMCMC
from bayesemble.methods.base import Context

NOISE, PRIOR_STD = 0.7, 1.3
MEMBERS, OUTPUTS = 3, 1500

CONSTANT = {"cycles": 1, "floor": 1.0, "exploration": 0.0, "excess_variance": None, "samples_per_cycle": 1}
SAMPLERS = [("sgld", 1.0), ("sghmc", 0.1), ("sghmc", 0.5)]


def run(task: be.Task, x: Tensor, y: Tensor, steps: int, **settings: object) -> tuple[Tensor, Tensor]:
    """Positions and velocities after the last step, `(chain, d)`, from the whole data in every step."""
    method = CyclicalSGMCMC(num_members=MEMBERS, **(CONSTANT | settings))
    task = task.bind(len(x), x)
    state, batch = method.init(task, 0), Batch(x, y[:, None].expand(-1, OUTPUTS))
    for step in range(steps):
        state, _ = method.step(state, batch, Context(task, be.Vmap(), Clock(step, steps, 0)))
    collected = method.networks(state)
    assert torch.equal(collected.params["weight"], state.members.params["weight"])
    velocities = state.slots.get("velocity", {"weight": torch.zeros_like(collected.params["weight"])})
    return collected.params["weight"].flatten(0, 1), velocities["weight"].flatten(0, 1)


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Means, variances and covariances of independent draws `(draw, d)`, within 4 standard errors."""
    scale, num = covariance.diagonal().sqrt(), len(draws)
    standard = (draws - mean) / scale
    assert standard.mean(0).abs().max() < 4 / math.sqrt(num)
    products = standard.unsqueeze(-1) * standard.unsqueeze(-2)
    error = products.std(0) / math.sqrt(num)
    expected = covariance / scale / scale[:, None]
    assert (products.mean(0) - expected).abs().lt(4 * error).all(), f"{products.mean(0)} instead of {expected}"
    assert 4 * error.max() < 0.15, "too few draws to tell a wrong factor"


def regression_data() -> tuple[Tensor, Tensor]:
    """Three inputs, two of them alike, so that their weights are strongly correlated."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 0] + 0.6 * x[:, 1]
    noise = NOISE * torch.randn(15, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + noise


def regression_posterior() -> tuple[Tensor, Tensor]:
    """precision = X'X / s^2 + I / v, mean = precision^-1 X'y / s^2."""
    x, y = regression_data()
    precision = x.T @ x / NOISE**2 + torch.eye(3, dtype=torch.float64) / PRIOR_STD**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2), precision


def regression_task(temperature: float = 1.0) -> be.Task:
    prior = be.NormalPrior(PRIOR_STD)
    model = lambda: nn.Linear(3, OUTPUTS, bias=False).double()  # noqa: E731
    return be.Task(model, be.Gaussian(noise=NOISE), prior, temperature=temperature)


def transition(precision: Tensor, h: float, alpha: float) -> Tensor:
    """The matrix of a step of SGHMC on (position, velocity): v' = (1 - alpha) v - h P w, w' = w + v'."""
    eye, zero = torch.eye(len(precision), dtype=torch.float64), torch.zeros_like(precision)
    velocity = torch.cat([-h * precision, (1 - alpha) * eye], dim=1)
    return torch.cat([velocity + torch.cat([eye, zero], dim=1), velocity])


def stationary(precision: Tensor, h: float, alpha: float) -> Tensor:
    """Covariance of (position, velocity) that a step of SGHMC leaves as it is; alpha = 1 is SGLD.

    It solves the discrete Lyapunov equation S = A S A' + 2 h alpha B, with B the covariance of (e, e).
    """
    eye = torch.eye(len(precision), dtype=torch.float64)
    noise = 2 * h * alpha * torch.cat([torch.cat([eye, eye], dim=1)] * 2)
    return torch.from_numpy(solve_discrete_lyapunov(transition(precision, h, alpha).numpy(), noise.numpy()))


def widened(precision: Tensor, h: float, alpha: float) -> Tensor:
    """The same covariance of the positions, in closed form: 1/c / (1 - h c / (4 - 2 alpha)) along each eigenvector."""
    curvature, directions = torch.linalg.eigh(precision)
    return directions @ torch.diag(1 / curvature / (1 - h * curvature / (4 - 2 * alpha))) @ directions.T


def twin(precision: Tensor, mean: Tensor, h: float, alpha: float, factor: float, steps: int) -> Tensor:
    """Ten naive lines: as many chains, with noise off by a factor in its variance."""
    generator = torch.Generator().manual_seed(5)
    position = torch.zeros(MEMBERS * OUTPUTS, len(mean), dtype=torch.float64)
    velocity = torch.zeros_like(position)
    for _ in range(steps):
        noise = torch.randn(position.shape, generator=generator, dtype=torch.float64)
        force = (mean - position) @ precision
        velocity = (1 - alpha) * velocity + h * force + math.sqrt(2 * h * alpha * factor) * noise
        position = position + velocity
    return position


def steps_to_forget(precision: Tensor, h: float, alpha: float) -> int:
    """Steps after which what is left of the start is e^-8."""
    slowest = torch.linalg.eigvals(transition(precision, h, alpha)).abs().max().item()
    return math.ceil(-8 / math.log(slowest))


@pytest.mark.parametrize(("sampler", "alpha"), SAMPLERS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_linear_regression_has_the_law_of_the_steps_exactly(sampler, alpha, temperature):
    """Steps so large that the widening shows: the law of a linear chain is normal, of known covariance."""
    mean, precision = regression_posterior()
    precision = precision / temperature
    h = 1.2 / torch.linalg.eigvalsh(precision).max().item()
    both = stationary(precision, h, alpha)
    torch.testing.assert_close(both[:3, :3], widened(precision, h, alpha))
    x, y = regression_data()
    steps = steps_to_forget(precision, h, alpha)
    settings = {"sampler": sampler, "alpha": alpha, "learning_rate": h * len(x)}
    positions, velocities = run(regression_task(temperature), x, y, steps, **settings)
    assert_moments(positions, mean, both[:3, :3])
    with pytest.raises(AssertionError, match="instead of"):
        assert_moments(positions, mean, precision.inverse())
    if sampler == "sghmc":
        assert_moments(torch.cat([positions, velocities], dim=1), torch.cat([mean, torch.zeros(3)]), both)


@pytest.mark.parametrize(("sampler", "alpha"), SAMPLERS[:2])
def test_small_steps_lead_to_the_posterior(sampler, alpha):
    mean, precision = regression_posterior()
    h = 0.05 / torch.linalg.eigvalsh(precision).max().item()
    x, y = regression_data()
    settings = {"sampler": sampler, "alpha": alpha, "learning_rate": h * len(x)}
    positions, _ = run(regression_task(), x, y, steps_to_forget(precision, h, alpha), **settings)
    assert_moments(positions, mean, precision.inverse())


@pytest.mark.parametrize(("_", "alpha"), SAMPLERS)
def test_a_wrong_factor_in_the_noise_would_be_noticed(_, alpha):
    """Its variance off by 2 or sqrt 2 either way, which multiplies all variances by as much."""
    mean, precision = regression_posterior()
    h = 1.2 / torch.linalg.eigvalsh(precision).max().item()
    steps, expected = steps_to_forget(precision, h, alpha), stationary(precision, h, alpha)[:3, :3]
    assert_moments(twin(precision, mean, h, alpha, 1.0, steps), mean, expected)
    for factor in (0.5, math.sqrt(0.5), math.sqrt(2), 2.0):
        wrong = twin(precision, mean, h, alpha, factor, steps)
        torch.testing.assert_close(wrong.var(0) / expected.diagonal(), torch.full_like(mean, factor), rtol=0.15, atol=0)
        with pytest.raises(AssertionError, match="instead of"):
            assert_moments(wrong, mean, expected)


def grid_moments(log_density: Callable[[Tensor], Tensor], low: float, high: float, num: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a density of two numbers, by a sum over a grid; it must be negligible at the rim."""
    axis = torch.linspace(low, high, num, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    weights = torch.softmax(log_density(points), 0)
    table = weights.reshape(num, num)
    assert table[[0, -1]].sum() + table[:, [0, -1]].sum() < 1e-8
    mean = weights @ points
    return mean, (points - mean).T @ ((points - mean) * weights[:, None])


@pytest.mark.parametrize(("sampler", "alpha"), SAMPLERS[:2])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logistic_regression(sampler, alpha, temperature):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1.5])
    y = (x[:, 0] + 0.5 * x[:, 1] + torch.randn(12, generator=generator, dtype=torch.float64) > 0).double()

    def log_density(points: Tensor) -> Tensor:
        likelihood = nn.functional.logsigmoid((2 * y - 1) * (points @ x.T)).sum(1)
        return (likelihood - points.square().sum(1) / (2 * 1.5**2)) / temperature

    mean, covariance = grid_moments(log_density, -6.0, 10.0, num=600)
    largest = (x.T @ x / 4 + torch.eye(2, dtype=torch.float64) / 1.5**2) / temperature  # the curvature is so at 0
    h = 0.08 / torch.linalg.eigvalsh(largest).max().item()
    model = lambda: nn.Linear(2, OUTPUTS, bias=False).double()  # noqa: E731
    task = be.Task(model, be.Bernoulli(), be.NormalPrior(std=1.5), temperature=temperature)
    settings = {"sampler": sampler, "alpha": alpha, "learning_rate": h * len(x)}
    positions, _ = run(task, x, y, steps_to_forget(covariance.inverse() / 1.5, h, alpha), **settings)
    assert_moments(positions, mean, covariance)


def ratios(fitted: be.Ensemble, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared distance from the true mean over the true variance, with its standard error over chains."""
    chains = fitted.state.members.num_members
    draws = torch.cat([leaf.flatten(1) for leaf in fitted.draw().params.values()], 1).unflatten(0, (chains, -1))
    own = ((draws - mean) ** 2 / covariance.diagonal()).mean(1)
    return own.mean(0), own.std(0) / math.sqrt(chains)


@pytest.mark.parametrize("steps", [300, 1000])
def test_the_default_samples_a_small_posterior(steps):
    """Logistic regression with 25 rows; with the cosine alone, variances are .1 to .3 of the true ones."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(25, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    y = (x.sum(1) + torch.randn(25, generator=generator, dtype=torch.float64) > 0).double()

    def log_density(points: Tensor) -> Tensor:
        likelihood = nn.functional.logsigmoid((2 * y - 1) * (points @ x.T)).sum(1)
        return likelihood - points.square().sum(1) / (2 * 1.5**2)

    mean, covariance = grid_moments(log_density, -7.0, 9.0, num=500)
    task = be.Task(lambda: nn.Linear(2, 1, bias=False).double(), be.Bernoulli(), be.NormalPrior(1.5))

    def fitted(**settings: object) -> be.Ensemble:
        method = CyclicalSGMCMC(num_members=40, **settings)
        return be.fit(task, method, (x, y), epochs=steps, executor="vmap", progress=False)

    found, error = ratios(fitted(), mean, covariance)
    assert (found + 4 * error > 0.9).all()
    assert (found - 4 * error < 1.2).all()
    assert ((found > 0.7) & (found < 1.4)).all()
    if steps == 300:
        alone = fitted(excess_variance=None, exploration=0.8).draw().params["weight"].flatten(1)
        assert (alone.var(0) < 0.5 * covariance.diagonal()).all()


@pytest.mark.parametrize("sampler", ["sgld", "sghmc"])
@pytest.mark.parametrize("excess", [0.1, 0.5])
@pytest.mark.parametrize(("rows", "rate"), [(15, 1e-9), (15, 1e9), (5, 1e-9), (5, 1e9)])
def test_steps_of_sampling_follow_from_the_curvature(sampler, excess, rows, rate):
    """h C (1 / (4 - 2 alpha) + (N / B - 1) / (2 alpha)) is the excess; for large learning rates with B = N."""
    x, y = regression_data()
    x, y = x[:rows].repeat(15 // rows, 1), y[:rows].repeat(15 // rows)
    task = be.Task(lambda: nn.Linear(3, 1, bias=False).double(), be.Gaussian(noise=NOISE), be.NormalPrior(PRIOR_STD))
    task = task.bind(15, x)
    settings = {"cycles": 1, "exploration": 0.0, "learning_rate": rate, "excess_variance": excess, "alpha": 0.3}
    method = CyclicalSGMCMC(num_members=2, sampler=sampler, **settings)
    state = method.init(task, 0)
    before = state.members.params["weight"].clone()
    after, _ = method.step(state, Batch(x[:rows], y[:rows, None]), Context(task, be.Loop(), Clock(0, 10, 7)))
    alpha = 0.3 if sampler == "sghmc" else 1.0
    of_batches = (15 / rows - 1) / (2 * alpha) if rate < 1 else 0.0
    steps = excess / after.slots["stiffness"]["largest"] / (1 / (4 - 2 * alpha) + of_batches)
    for chain, (w, h) in enumerate(zip(before, steps, strict=True)):
        uphill = (y - x @ w[0]) @ x / NOISE**2 - w[0] / PRIOR_STD**2
        noise = torch.randn(1, 3, generator=seeds.generator(7, "member", chain, "noise", 0), dtype=torch.float64)[0]
        expected = h * uphill + torch.sqrt(2 * h * alpha) * noise
        moved = after.members.params["weight"][chain, 0] - w[0]
        torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize(("sampler", "alpha"), SAMPLERS)
def test_a_run_is_the_textbook_one(sampler, alpha):
    """Naive lines from the same noise, chain by chain, through exploration and sampling of two cycles."""
    x, y = regression_data()
    task = be.Task(lambda: nn.Linear(3, 1, bias=False).double(), be.Gaussian(noise=NOISE), be.NormalPrior(PRIOR_STD))
    task = task.bind(15, x)
    settings = {"sampler": sampler, "alpha": alpha, "learning_rate": 0.1, "clip": None, "excess_variance": None}
    method = CyclicalSGMCMC(num_members=3, cycles=2, exploration=0.6, samples_per_cycle=2, **settings)
    state = method.init(task, 5)
    starts = state.members.params["weight"].flatten(1).clone()
    for step in range(20):
        state, _ = method.step(state, Batch(x, y[:, None]), Context(task, be.Loop(), Clock(step, 20, 7)))
    drawn = method.networks(state).params["weight"].flatten(1).unflatten(0, (3, 4))

    def log_joint(w: Tensor) -> Tensor:
        return -(x @ w - y).square().sum() / (2 * NOISE**2) - w.square().sum() / (2 * PRIOR_STD**2)

    for chain, w in enumerate(starts):
        v, kept = torch.zeros(3, dtype=torch.float64), []
        for step in range(20):
            rate = 0.1 / 2 * (math.cos(math.pi * (step % 10) / 10) + 1)
            v = (1 - alpha) * v + rate / 15 * torch.func.grad(log_joint)(w)
            if step % 10 >= 6:
                own = seeds.generator(7, "member", chain, "noise", step)
                noise = torch.randn(1, 3, generator=own, dtype=torch.float64)[0]
                v = v + math.sqrt(2 * rate * alpha / 15) * noise
            w = w + v
            if step in (8, 9, 18, 19):
                kept.append(w)
        torch.testing.assert_close(drawn[chain], torch.stack(kept))
