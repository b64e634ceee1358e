import math

import pytest
import scipy.stats
import torch

from bayesemble.errors import SettingError
from bayesemble.metrics import Spread, coverage, fit_spread, nll
from bayesemble.predictive import PoissonPredictive, Predictive, StudentPredictive


def too_sure(generator, factor, rows=4000, members=3):
    """Means that differ a little, targets with unequal noise, and standard deviations that are `factor` too small."""
    means = torch.randn(rows, generator=generator, dtype=torch.float64)
    stds = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    targets = means + stds * torch.randn(rows, generator=generator, dtype=torch.float64)
    shifts = 0.01 * torch.randn(members, rows, generator=generator, dtype=torch.float64)
    return Predictive.from_normal(means + shifts, stds / factor, [1.0, 2.0, 3.0][:members]), targets


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_spread_that_is_missing_is_found(factor, generator):
    predictive, targets = too_sure(generator, factor)
    found = fit_spread(predictive, targets)
    assert found.value == pytest.approx(factor, rel=0.05)
    corrected = found.apply(predictive)
    assert nll(corrected, targets) <= nll(predictive, targets)
    torch.testing.assert_close(corrected.mean, predictive.mean)
    torch.testing.assert_close(corrected.epistemic, predictive.epistemic)
    torch.testing.assert_close(corrected.aleatoric, found.value**2 * predictive.aleatoric)


def test_the_spread_of_one_normal_is_its_root_mean_square_error_in_standard_deviations(generator):
    predictive, targets = too_sure(generator, 2.0, members=1)
    score = (targets - predictive.means[0]) / predictive.stds[0]
    assert fit_spread(predictive, targets).value == pytest.approx(score.square().mean().sqrt().item(), rel=1e-5)


def test_the_spread_of_heavy_tails_is_found_on_draws(generator):
    means, weights = torch.zeros(1, 4000, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    drawn = StudentPredictive(weights, means, 3 * torch.ones_like(means), 4).sample(1, generator)[0]
    narrow = StudentPredictive(weights, means, torch.ones_like(means), 4)
    assert fit_spread(narrow, drawn).value == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_the_spread_of_a_level_lets_intervals_hold_their_share(level, factor, generator):
    predictive, targets = too_sure(generator, factor)
    found = fit_spread(predictive, targets, level)
    assert found.value == pytest.approx(factor, rel=0.1)
    assert level <= coverage(found.apply(predictive), targets, level) < level + 1e-3
    assert coverage(Spread(found.value * (1 - 1e-6)).apply(predictive), targets, level) < level


def test_the_spread_of_a_level_is_a_quantile_of_the_errors_of_one_normal(generator):
    predictive, targets = too_sure(generator, 2.0, rows=99, members=1)
    score = ((targets - predictive.means[0]) / predictive.stds[0]).abs().sort().values
    expected = score[math.ceil(0.9 * 99) - 1].item() / scipy.stats.norm.ppf(0.95)
    assert fit_spread(predictive, targets, level=0.9).value == pytest.approx(expected, rel=1e-9)
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        fit_spread(predictive, targets, level=1.0)


def test_classes_counts_and_dropped_members_have_no_spread(generator):
    classes, labels = Predictive.from_probs([[0.5, 0.5]] * 10), torch.ones(10)
    counts = PoissonPredictive(torch.ones(1), torch.ones(1, 10))
    for predictive, targets in ((classes, labels), (counts, torch.ones(10))):
        with pytest.raises(SettingError, match="a spread is for real numbers, got"):
            fit_spread(predictive, targets)
    reduced = too_sure(generator, 1.0)[0].reduce()
    with pytest.raises(SettingError, match="a spread needs the members, which this prediction dropped"):
        Spread(2.0).apply(reduced)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_spread_that_is_no_number_above_0_is_refused(value):
    with pytest.raises(SettingError, match=f"a spread is a number above 0, got {value}"):
        Spread(value)
