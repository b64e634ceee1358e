import pytest
import scipy.stats
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.task.likelihoods import Quantile
from task.likelihoods.simulate import coverage_on_fresh_rows


def skewed(x, generator):
    return x + 0.5 * torch.empty_like(x).exponential_(generator=generator)


def test_quantiles_hold_their_share_of_skewed_targets():
    likelihood = Quantile((0.1, 0.3, 0.5, 0.7, 0.9), scale=0.1)
    assert coverage_on_fresh_rows(likelihood, 5, skewed, epochs=400) == pytest.approx(0.8, abs=0.04)


def test_outputs_are_the_lowest_quantile_and_gaps(generator):
    outputs = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    predictive = Quantile((0.2, 0.5, 0.6)).predictive(outputs, {}, torch.full((2,), 0.5))
    gaps = torch.nn.functional.softplus(outputs[..., 1:]) + 1e-6
    torch.testing.assert_close(predictive.member_quantiles[..., 0], outputs[..., 0])
    torch.testing.assert_close(predictive.member_quantiles.diff(dim=-1), gaps)


def test_with_many_levels_the_loss_is_the_crps(generator):
    """Of a normal, whose CRPS is known in closed form."""
    levels = tuple((torch.arange(1, 400) / 400).tolist())
    own = torch.as_tensor(scipy.stats.norm.ppf(levels)).unsqueeze(0)
    raw = torch.cat([own[:, :1], torch.log(torch.expm1(own.diff() - 1e-6))], 1)
    target = torch.tensor([[0.7]]).double()
    loss = -Quantile(levels, scale=2.0).log_prob(raw, target, {}) * 2
    assert loss.item() == pytest.approx(be.metrics.crps(be.Predictive.from_normal([0.0], 1.0), [0.7]), abs=2e-3)


def test_one_level_alone_costs_what_the_pinball_score_says():
    quantile = Quantile((0.25, 0.75))
    outputs = torch.tensor([[0.0, 0.0]]).double()
    predictive = quantile.predictive(outputs[None], {}, torch.ones(1))
    scores = [be.metrics.pinball(predictive, [2.0], level) for level in (0.25, 0.75)]
    assert -quantile.log_prob(outputs, torch.tensor([[2.0]]).double(), {}).item() == pytest.approx(sum(scores))


@pytest.mark.parametrize("levels", [(0.5,), (0.5, 0.2), (0.2, 0.2)])
def test_levels_rise_and_are_at_least_two(levels):
    with pytest.raises(SettingError, match="at least two, rising"):
        Quantile(levels)


def test_levels_are_probabilities():
    with pytest.raises(SettingError, match="levels is"):
        Quantile((0.5, 1.0))


def test_a_list_of_levels_will_do():
    assert Quantile([0.2, 0.8]) == Quantile((0.2, 0.8))


def test_there_is_no_curvature_for_a_gaussian(generator):
    x = torch.randn(20, 2, generator=generator)
    task = be.Task(lambda: torch.nn.Linear(2, 5), Quantile())
    with pytest.raises(SettingError, match="has no curvature, so no Gaussian can be made from it"):
        be.fit(task, be.Laplace(), (x, x[:, 0]), epochs=1, progress=False)
