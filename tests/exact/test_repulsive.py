"""Repulsive ensembles and SVGD sample: against posteriors that are known in closed form."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be


class Linear:
    """Bayesian linear regression with known noise: a Gaussian posterior."""

    def __init__(self, dim: int, rows: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dim = dim
        self.x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
        noise = torch.randn(rows, generator=generator, dtype=torch.float64)
        self.y = self.x @ torch.randn(dim, generator=generator, dtype=torch.float64) + noise
        precision = self.x.T @ self.x + torch.eye(dim, dtype=torch.float64)
        self.covariance = torch.linalg.inv(precision)
        self.mean = self.covariance @ (self.x.T @ self.y)

    def members(self, method: be.Repulsive | be.Stein | be.DeepEnsemble, steps: int) -> Tensor:
        network = partial(nn.Linear, self.dim, 1, bias=False, dtype=torch.float64)
        task = be.Task(network, be.Gaussian(1.0), be.NormalPrior())
        ensemble = be.fit(task, method, (self.x, self.y), epochs=steps, executor="vmap", progress=False)
        return ensemble.state.members.params["weight"].flatten(1)


def covariance(w: Tensor) -> Tensor:
    return torch.cov(w.T, correction=0)


COMMON = {"learning_rate": 0.1, "schedule": "cosine"}


@pytest.mark.parametrize(
    ("method", "band"),
    [
        (be.Repulsive(num_members=100, **COMMON), 0.05),
        (be.Repulsive(num_members=100, estimator="ssge", **COMMON), 0.05),
        (be.Repulsive(num_members=100, estimator="ssge", calibrate=False, **COMMON), 0.25),
        (be.Stein(num_members=100, **COMMON), 0.1),
    ],
    ids=["kde", "ssge", "ssge uncalibrated", "svgd"],
)
def test_two_dimensions_and_many_members_give_the_posterior(method, band):
    problem = Linear(2, 6)
    w = problem.members(method, 200)
    error = (w.mean(0) - problem.mean) / problem.covariance.diagonal().sqrt()
    assert error.abs().max() < 4 / 10, "the mean of 100 independent draws would lie within 4 standard errors"
    assert (covariance(w) - problem.covariance).norm() < band * problem.covariance.norm()


@pytest.mark.parametrize("kind", [be.Repulsive, be.Stein])
def test_the_strength_of_the_repulsion_is_the_temperature_of_the_ensemble(kind):
    """At strength T members follow the posterior to the power of 1 / T, whose covariance is T times as large."""
    problem = Linear(2, 6)
    w = problem.members(kind(num_members=40, repulsion=0.1, **COMMON), 200)
    assert (covariance(w) - 0.1 * problem.covariance).norm() < 0.1 * 0.1 * problem.covariance.norm()


def test_a_deep_ensemble_has_no_spread_where_a_repulsive_one_has_the_right_one():
    problem = Linear(2, 6)
    alone = covariance(problem.members(be.DeepEnsemble(num_members=50, **COMMON), 200)).trace()
    repelled = covariance(problem.members(be.Repulsive(num_members=50, **COMMON), 200)).trace()
    assert alone < 1e-3 * problem.covariance.trace()
    assert float(repelled) == pytest.approx(float(problem.covariance.trace()), rel=0.05)


@pytest.mark.parametrize(("dim", "steps"), [(10, 200), (50, 200), (200, 250)])
@pytest.mark.parametrize("rows_per_dim", [2, 5])
def test_twenty_members_have_the_total_variance_within_a_factor_of_two(dim, steps, rows_per_dim):
    """The median rule alone gives 0.18, 0.04 and 0.01 of it."""
    problem = Linear(dim, rows_per_dim * dim)
    w = problem.members(be.Repulsive(num_members=20, **COMMON), steps)
    ratio = float(covariance(w).trace() / problem.covariance.trace())
    assert 0.5 < ratio < 2
    if dim < 20:  # fewer coordinates than members: nothing is left out
        torch.testing.assert_close(
            covariance(w), problem.covariance, rtol=0.1, atol=float(0.02 * problem.covariance.max())
        )


def test_the_uncalibrated_form_collapses_in_many_dimensions():
    problem = Linear(50, 500)
    w = problem.members(be.Repulsive(num_members=20, calibrate=False, **COMMON), 200)
    assert float(covariance(w).trace() / problem.covariance.trace()) < 0.1


class TwoWidths(nn.Module):
    """Five weights, two of them with a narrow prior."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(0.3 * torch.randn(2, dtype=torch.float64))
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.narrow, self.wide]).unsqueeze(1)


POINTS = torch.randn(5, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
FUNCTIONS = be.FunctionSpace(function_prior=False, points=lambda generator: POINTS)


@pytest.mark.parametrize(
    "method",
    [
        be.Repulsive(num_members=20, **COMMON),
        be.Stein(num_members=20, **COMMON),
        be.Stein(num_members=20, kernel="laplace", **COMMON),
        be.Stein(num_members=20, space=FUNCTIONS, **COMMON),
    ],
    ids=["repulsive", "svgd", "svgd laplace", "svgd function"],
)
def test_narrow_directions_are_as_right_as_wide_ones(method):
    """A tempered posterior of condition 50; rescaled alone, SVGD collapses to a point in its narrow directions."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64) * torch.tensor([1, 1, 1, 1, 0.5])
    y = x @ torch.tensor([0.3, -0.3, 1.0, -2.0, 0.5], dtype=torch.float64)
    stds = torch.tensor([0.3, 0.3, 2.0, 2.0, 2.0], dtype=torch.float64)
    precision = (x.T @ x / 0.4**2 + torch.diag(stds**-2)) / 0.5
    curvature = torch.linalg.eigvalsh(precision)
    assert curvature[-1] > 30 * curvature[0]
    task = be.Task(TwoWidths, be.Gaussian(0.4), be.NormalPrior({"narrow": 0.3, "wide": 2.0}), temperature=0.5)
    members = be.fit(task, method, (x, y), epochs=500, executor="vmap", progress=False).state.members.params
    w = torch.cat([members["narrow"], members["wide"]], dim=1)
    root = torch.linalg.cholesky(precision).T
    white = (w - torch.linalg.solve(precision, x.T @ y / 0.4**2 / 0.5)) @ root.T
    assert white.mean(0).norm() < 0.1
    widths = torch.linalg.eigvalsh(covariance(white))
    assert 0.85 < widths.min() < widths.max() < 1.15
