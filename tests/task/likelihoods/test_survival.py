import pytest
import scipy.stats
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.task.likelihoods import LogNormal, Weibull
from task.likelihoods.simulate import coverage_on_fresh_rows

OUTPUTS = torch.tensor([[0.3, 0.4], [1.0, -0.5]], dtype=torch.float64)


def members_of(likelihood):
    scale, other = OUTPUTS[:, 0].exp().numpy(), OUTPUTS[:, 1].exp().numpy()
    return (
        scipy.stats.weibull_min(other, scale=scale)
        if likelihood == Weibull()
        else scipy.stats.lognorm(other, scale=scale)
    )


@pytest.mark.parametrize("likelihood", [Weibull(), LogNormal()])
def test_events_have_a_density_and_censored_rows_the_probability_of_more(likelihood):
    times = torch.tensor([0.7, 3.0], dtype=torch.float64)
    member = members_of(likelihood)
    for seen, expected in ((1.0, member.logpdf(times.numpy())), (0.0, member.logsf(times.numpy()))):
        targets = torch.stack([times, torch.full_like(times, seen)], 1)
        torch.testing.assert_close(likelihood.log_prob(OUTPUTS, targets, {}), torch.as_tensor(expected))


def censored(draw):
    def times(x, generator):
        events = draw(x, generator)
        limits = 3 * torch.empty_like(x).exponential_(generator=generator)
        return torch.stack([torch.minimum(events, limits), (events <= limits).float()], 1)

    return times


def weibull(x, generator):
    return torch.exp(x) * torch.empty_like(x).exponential_(generator=generator) ** (1 / 1.5)


def log_normal(x, generator):
    return torch.exp(x + 0.7 * torch.randn(x.shape, generator=generator))


@pytest.mark.parametrize(("likelihood", "draw"), [(Weibull(), weibull), (LogNormal(), log_normal)])
def test_intervals_hold_their_share_of_censored_times(likelihood, draw):
    assert coverage_on_fresh_rows(likelihood, 2, censored(draw)) == pytest.approx(0.8, abs=0.04)


def test_leaving_the_censored_rows_out_is_biased_and_the_likelihood_is_not(generator):
    x = torch.zeros(4000, 1)
    targets = censored(weibull)(x[:, 0], generator)
    seen = targets[:, 1] == 1
    task = be.Task(lambda: nn.Linear(1, 2), Weibull(), be.NormalPrior(10.0))
    method = be.DeepEnsemble(num_members=1, learning_rate=0.05)
    scales = []
    for rows in (torch.ones(4000).bool(), seen):
        data = x[rows], targets[rows]
        ensemble = be.fit(task, method, data, epochs=150, batch_size=4000, executor="loop", progress=False)
        scales.append(float(ensemble.predict(x[:1]).log_scales.exp()))
    assert scales[0] == pytest.approx(1.0, abs=0.06)
    assert scales[1] < 0.9


def test_times_alone_were_all_seen():
    found = Weibull().check_targets(torch.tensor([1.0, 2.0]), (2,))
    assert found.tolist() == [[1.0, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[1.0, 1.0], [0.0, 1.0]], "a positive time.*row 1 has"),
        ([[1.0, 1.0], [2.0, 0.5]], r"1 \(it happened\) or 0 \(not yet\); row 1 has"),
        ([[1.0, 1.0, 1.0]], r"pairs \(rows, 2\) of a time and 1 .* got \(1, 3\)"),
    ],
)
def test_targets_that_make_no_sense_are_refused(targets, message):
    with pytest.raises(DataError, match=message):
        LogNormal().check_targets(torch.tensor(targets), (2,))


def test_rows_that_are_all_censored_are_refused():
    with pytest.raises(DataError, match="at least one event; all 2 rows are censored"):
        Weibull().check_training_targets(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
