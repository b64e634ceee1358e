import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import DataError
from task.likelihoods.simulate import coverage_on_fresh_rows


def negative_binomial(x, generator):
    rates = torch._standard_gamma(torch.full_like(x, 2.0), generator=generator) / 2 * torch.exp(2 + x)
    return torch.poisson(rates, generator=generator)


def zero_inflated(x, generator):
    counts = torch.poisson(torch.exp(1.5 + x), generator=generator)
    return counts * (torch.rand(x.shape, generator=generator) > 0.3)


@pytest.mark.parametrize(
    ("likelihood", "draw"), [(be.NegativeBinomial(), negative_binomial), (be.ZeroInflatedPoisson(), zero_inflated)]
)
def test_quantiles_hold_their_share_of_simulated_counts_and_a_poisson_does_not(likelihood, draw):
    assert coverage_on_fresh_rows(likelihood, 2, draw) == pytest.approx(0.8, abs=0.04)
    assert coverage_on_fresh_rows(be.Poisson(), 1, draw) < 0.7


@pytest.mark.parametrize("likelihood", [be.NegativeBinomial(), be.ZeroInflatedPoisson()])
def test_what_is_no_count_is_refused_by_row(likelihood):
    with pytest.raises(DataError, match=r"a count 0, 1, 2, .*row 1 has"):
        likelihood.check_targets(torch.tensor([1.0, -1.0]), (2,))
    with pytest.raises(DataError, match=r"a count 0, 1, 2, .*row 0 has"):
        likelihood.check_targets(torch.tensor([0.5, 1.0]), (2,))


def test_crps_of_counts_is_the_sum_over_all_of_them(generator):
    predictive = be.NegativeBinomial().predictive(
        torch.randn(2, 5, 2, generator=generator, dtype=torch.float64), {}, torch.tensor([0.4, 0.6]).double()
    )
    targets = torch.tensor([0.0, 1.0, 2.0, 5.0, 30.0])
    grid = torch.arange(3000).double()
    cdf = torch.stack([predictive.cdf(torch.full((5,), count)) for count in grid])
    expected = (cdf - (grid[:, None] >= targets).double()).square().sum(0).mean()
    assert be.metrics.crps(predictive, targets) == pytest.approx(float(expected), rel=1e-9)
