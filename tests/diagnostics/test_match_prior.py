"""Priors over functions, against kernels in closed form and against the priors that made the examples."""

import math

import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError

X = torch.linspace(-2, 2, 7).unsqueeze(1)


class Erf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


def network(hidden: int = 60, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(1, hidden), Erf(), nn.Linear(hidden, outputs))


def task(**options) -> be.Task:
    return be.Task(network, be.Gaussian(0.1), **options)


def erf_kernel(x: Tensor, weight: float, bias: float, out: float, out_bias: float, hidden: int) -> Tensor:
    """Second moments of a network of one hidden layer with erf units, whatever their number: Williams (1998)."""
    rows = torch.cat([x.double(), torch.ones_like(x.double())], 1)
    inner = rows @ torch.diag(torch.tensor([weight**2, bias**2], dtype=torch.float64)) @ rows.T
    size = 1 + 2 * inner.diagonal()
    return hidden * out**2 * 2 / math.pi * torch.asin(2 * inner / (size[:, None] * size).sqrt()) + out_bias**2


def moments(prior: be.NormalPrior, num: int) -> tuple[Tensor, Tensor]:
    """Of fresh functions, with their standard errors."""
    drawn = be.prior_predictive(task(prior=prior), None, X, num=num, seed=7).member_mean.double()
    products = drawn[:, :, None] * drawn[:, None]
    return products.mean(0), products.std(0) / num**0.5


@pytest.mark.parametrize("distance", ["moments", "wasserstein"])
def test_a_wide_network_comes_to_the_moments_and_scales_of_a_kernel_that_it_can_have(distance):
    """From scales far off, to all entries of the kernel within the sampling errors of the fit and of the check."""
    kernel = erf_kernel(X, 1.5, 0.6, 0.1, 0.3, hidden=60)
    found = be.match_prior(task(prior=be.NormalPrior()), inputs=X, kernel=kernel, distance=distance, num=400)
    measured, error = moments(found.prior, 400)
    assert (measured - kernel).abs().lt(4.5 * 2**0.5 * error).all()
    assert found.prior.std == pytest.approx({"0.weight": 1.5, "0.bias": 0.6, "2.weight": 0.1, "2.bias": 0.3}, rel=0.2)
    assert found.distance_before > 10
    assert found.distance_after < 0.03
    assert found.task.prior == found.prior


@pytest.mark.parametrize("kind", ["normal", "laplace"])
def test_the_scales_of_a_prior_that_made_the_functions_are_found_again(kind):
    scales = {"0.weight": 2.0, "0.bias": 0.7, "2.weight": 0.15, "2.bias": 0.4}
    truth = be.NormalPrior(std=scales) if kind == "normal" else be.LaplacePrior(scale=scales)
    start = be.NormalPrior(scaling="fan_in") if kind == "normal" else be.LaplacePrior(scale=0.5)
    functions = be.prior_predictive(task(prior=truth), None, X, num=1000, seed=3).member_mean
    found = be.match_prior(task(prior=start), inputs=X, functions=functions)
    assert type(found.prior) is type(truth)
    assert (found.prior.std if kind == "normal" else found.prior.scale) == pytest.approx(
        scales, rel=0.2 if kind == "normal" else 0.45
    ), "heavy tails take more functions"
    assert abs(found.distance_after) < 0.03


def test_from_the_vague_prior_it_comes_to_one_that_is_stated():
    kernel = erf_kernel(X, 1.5, 0.6, 0.1, 0.3, hidden=60)
    found = be.match_prior(task(), inputs=X, kernel=kernel, num=200)
    assert type(found.prior) is be.NormalPrior
    assert found.distance_after < min(0.1, found.distance_before)


def test_several_outputs_are_independent_processes():
    def wide() -> nn.Module:
        return network(outputs=2)

    kernel = erf_kernel(X, 1.5, 0.6, 0.1, 0.3, hidden=60)
    found = be.match_prior(be.Task(wide, be.Gaussian(0.1), None), inputs=X, kernel=kernel, num=300)
    assert found.wanted.shape == found.after.shape == (10, 7, 2)
    assert abs(found.distance_after) < 0.05
    assert found.prior.std["2.weight"] == pytest.approx(0.1, rel=0.4)


def test_draws_of_the_process_have_its_covariance_and_seeds_decide():
    kernel = RBF(0.8)(X.numpy())
    from bayesemble.diagnostics.match_prior import _Wanted

    drawn = _Wanted.process(torch.tensor(kernel), (7, 1)).draw(4000, 1)
    assert (drawn.T @ drawn / 4000 - torch.tensor(kernel)).abs().max() < 5 * (2 / 4000) ** 0.5
    by_function = be.match_prior(task(), inputs=X, kernel=RBF(0.8), num=40, steps=3)
    by_matrix = be.match_prior(task(), inputs=X, kernel=kernel, num=40, steps=3)
    assert by_function.prior.std == pytest.approx(by_matrix.prior.std, rel=1e-4)
    again = be.match_prior(task(), inputs=X, kernel=kernel, num=40, steps=3)
    assert again.prior == by_matrix.prior
    assert be.match_prior(task(), inputs=X, kernel=kernel, num=40, steps=3, seed=1).prior != again.prior


def test_networks_that_vmap_cannot_run_do_too():
    def recurrent() -> nn.Module:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 1)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.cell(x)[0][:, -1])

        return Last()

    x = torch.randn(4, 5, 1, generator=torch.Generator().manual_seed(0))
    found = be.match_prior(be.Task(recurrent, be.Gaussian(0.1)), inputs=x, kernel=torch.eye(4), num=20, steps=3)
    assert found.distance_after < found.distance_before


def test_what_cannot_be_matched_is_refused():
    with pytest.raises(SettingError, match="either a kernel or functions"):
        be.match_prior(task(), inputs=X)
    with pytest.raises(SettingError, match="distance is one of moments, wasserstein, not 'kl'"):
        be.match_prior(task(), inputs=X, kernel=torch.eye(7), distance="kl")
    with pytest.raises(SettingError, match="not a covariance: its smallest eigenvalue is -1"):
        be.match_prior(task(), inputs=X, kernel=-torch.eye(7))
    with pytest.raises(DataError, match=r"symmetric matrix \(7, 7\) at the inputs, got \(3, 3\)"):
        be.match_prior(task(), inputs=X, kernel=torch.eye(3))
    with pytest.raises(DataError, match=r"shape \(7, 1\) of the network's outputs .* got \(5, 3\)"):
        be.match_prior(task(), inputs=X, functions=torch.zeros(5, 3))
    with pytest.raises(SettingError, match="at least 4 functions"):
        be.match_prior(task(), inputs=X, kernel=torch.eye(7), num=2)
