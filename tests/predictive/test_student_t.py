import math

import pytest
import scipy.stats
import torch

from bayesemble.core.errors import SettingError
from bayesemble.predictive import NormalPredictive, StudentPredictive
from bayesemble.predictive.student_t import standard_log_density, student_cdf

DEGREES = pytest.mark.parametrize("degrees", [3, 4, 5, 8, 31])
GRID = torch.linspace(-60, 60, 601, dtype=torch.float64)


def students(generator, degrees, shape=(3, 6)):
    means, stds = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return StudentPredictive(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), means, stds.exp(), degrees)


def same(predictive):
    """The members by scipy: standard deviations become scales."""
    scale = math.sqrt((predictive.degrees - 2) / predictive.degrees)
    return scipy.stats.t(predictive.degrees, predictive.means.numpy(), scale * predictive.stds.numpy())


@DEGREES
def test_the_sums_over_cosines_are_the_distribution_function(degrees):
    expected = torch.from_numpy(scipy.stats.t(degrees).cdf(GRID.numpy()))
    torch.testing.assert_close(student_cdf(GRID, degrees), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@DEGREES
def test_the_distribution_function_of_huge_numbers_is_0_or_1(degrees, dtype):
    huge = torch.tensor([-math.inf, -1e30, 1e30, math.inf], dtype=dtype)
    torch.testing.assert_close(student_cdf(huge, degrees), torch.tensor([0, 0, 1, 1], dtype=dtype), rtol=0, atol=1e-6)


@DEGREES
def test_the_standard_density_has_variance_one(degrees):
    density = scipy.stats.t(degrees, scale=math.sqrt((degrees - 2) / degrees))
    assert density.var() == pytest.approx(1)
    torch.testing.assert_close(standard_log_density(GRID, degrees), torch.from_numpy(density.logpdf(GRID.numpy())))


@DEGREES
def test_members_are_those_of_scipy(degrees, generator):
    predictive, values = students(generator, degrees), torch.randn(6, generator=generator, dtype=torch.float64) * 3
    members = same(predictive)
    torch.testing.assert_close(predictive.member_log_prob(values), torch.from_numpy(members.logpdf(values.numpy())))
    torch.testing.assert_close(predictive.member_cdf(values), torch.from_numpy(members.cdf(values.numpy())))
    torch.testing.assert_close(predictive.member_variance, torch.from_numpy(members.var()))


@DEGREES
@pytest.mark.parametrize("level", [0.001, 0.3, 0.95])
def test_quantiles_undo_the_distribution_function(degrees, level, generator):
    predictive = students(generator, degrees)
    torch.testing.assert_close(predictive.cdf(predictive.quantile(level)), torch.full((6,), level).double())


def test_quantiles_of_one_member_are_those_of_scipy(generator):
    predictive = students(generator, 4).member(1)
    torch.testing.assert_close(predictive.quantile(0.95), torch.from_numpy(same(predictive).ppf(0.95)[0]))


@pytest.mark.parametrize("degrees", [4, 5])
def test_draws_have_the_distribution(degrees):
    predictive = StudentPredictive(torch.ones(1), torch.full((1, 1), 2.0), torch.full((1, 1), 3.0), degrees)
    drawn = predictive.sample(20_000, torch.Generator().manual_seed(0)).flatten()
    scale = 3 * math.sqrt((degrees - 2) / degrees)
    assert scipy.stats.kstest(drawn.numpy(), scipy.stats.t(degrees, 2, scale).cdf).pvalue > 0.01


def test_many_degrees_are_a_normal(generator):
    predictive = students(generator, 100_001)
    normal = NormalPredictive(predictive.weights, predictive.means, predictive.stds)
    values = torch.randn(6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(predictive.log_prob(values), normal.log_prob(values), rtol=1e-3, atol=1e-3)


def test_doubts_are_those_of_a_normal_with_the_same_moments(generator):
    predictive = students(generator, 4, (3, 6, 2))
    normal = NormalPredictive(predictive.weights, predictive.means, predictive.stds)
    for name in ("mean", "aleatoric", "epistemic", "variance"):
        torch.testing.assert_close(getattr(predictive, name), getattr(normal, name))
    assert predictive.member_log_prob(torch.zeros(6, 2)).shape == (3, 6)


def test_an_outlier_costs_its_logarithm():
    one = StudentPredictive(torch.ones(1), torch.zeros(1, 3), torch.ones(1, 3), 4)
    near, far, farther = one.log_prob(torch.tensor([0.0, 1e3, 1e6])).tolist()
    assert near > far
    assert far - farther == pytest.approx(5 * math.log(1e3), rel=1e-4)
    normal = NormalPredictive(one.weights, one.means, one.stds)
    twenty = torch.full((3,), 20.0)
    assert [-p.log_prob(twenty)[0].item() for p in (normal, one)] == pytest.approx([201, 14], abs=0.2)


def test_what_is_done_to_a_prediction_keeps_its_degrees(generator):
    predictive = students(generator, 7)
    changed = [
        predictive.rescale(1.0, -2.0),
        predictive.reduce(),
        predictive.take([0, 2]),
        predictive.reweight([1, 1, 2]),
        StudentPredictive.concat([predictive, predictive]),
    ]
    assert [one.degrees for one in changed] == [7] * 5
    assert [one.num_rows for one in changed] == [6, 6, 6, 6, 12]
    torch.testing.assert_close(
        changed[0].log_prob(1 - 2 * torch.arange(6.0)), predictive.log_prob(torch.arange(6.0)) - math.log(2)
    )
    torch.testing.assert_close(changed[1].variance, predictive.variance)


@pytest.mark.parametrize("degrees", [2, 4.5, "4"])
def test_degrees_without_a_variance_are_refused(degrees):
    with pytest.raises(SettingError, match="degrees of freedom are a whole number from 3, got"):
        StudentPredictive(torch.ones(1), torch.zeros(1, 1), torch.ones(1, 1), degrees)
