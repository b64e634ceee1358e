"""Repulsive ensembles and SVGD sample: against posteriors that are known in closed form."""

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
        task = be.Task(lambda: nn.Linear(self.dim, 1, bias=False).double(), be.Gaussian(1.0))
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
        (be.Stein(num_members=100, **COMMON), 0.25),
    ],
    ids=["kde", "ssge", "ssge uncalibrated", "svgd"],
)
def test_two_dimensions_and_many_members_give_the_posterior(method, band):
    problem = Linear(2, 6)
    w = problem.members(method, 200)
    error = (w.mean(0) - problem.mean) / problem.covariance.diagonal().sqrt()
    assert error.abs().max() < 4 / 10, "the mean of 100 independent draws would lie within 4 standard errors"
    assert (covariance(w) - problem.covariance).norm() < band * problem.covariance.norm()


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
