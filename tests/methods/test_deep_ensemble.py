import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.methods import make_method
from helpers import largest_difference, quick_fit, small_mlp, table


def test_map_is_the_first_member_of_any_ensemble():
    task, data = be.Task(small_mlp, be.Categorical()), table()
    single = quick_fit(task, data, make_method("map"))
    several = quick_fit(task, data, make_method("deep_ensemble", num_members=4))
    assert single.num_members == 1
    assert largest_difference(single.state.members.params, several.state.members.params, members=1) == 0


def test_averaging_cannot_have_a_worse_log_score_than_its_members_have_on_average():
    """Jensen: -log mean p <= mean -log p."""
    x, y = table(200)
    fitted = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y), epochs=5)
    predictive = fitted.predict(x)
    members = [be.metrics.nll(predictive.member(i), y) for i in range(3)]
    assert be.metrics.nll(predictive, y) <= sum(members) / 3


def test_the_2017_recipe_finds_noise_that_depends_on_the_input(generator):
    """Mean and variance heads, log score, adversarial examples: the noise is 0.1 on the left and 0.5 on the right.

    A mean and a deviation of n rows have the standard errors deviation / sqrt(n) and deviation / sqrt(2 n).
    """
    x = torch.tensor([-1.0, 1.0]).repeat(300).unsqueeze(1)
    noise = torch.where(x < 0, 0.1, 0.5)
    y = x + noise * torch.randn(600, 1, generator=generator)
    task = be.Task(lambda: nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 2)), be.HeteroscedasticGaussian())
    method = be.DeepEnsemble(num_members=3, learning_rate=0.01, adversarial=0.01, schedule="cosine")
    fitted = quick_fit(task, (x, y), method, epochs=40, batch_size=100, executor="vmap")
    predictive = fitted.predict(torch.tensor([[-1.0], [1.0]]))
    for row, truth in enumerate((0.1, 0.5)):
        assert predictive.aleatoric[row].sqrt().item() == pytest.approx(truth, abs=4 * truth / math.sqrt(600))
        assert predictive.mean[row].item() == pytest.approx(2 * row - 1, abs=4 * truth / math.sqrt(300))


def test_learned_noise_is_the_spread_of_the_residuals(generator):
    x = torch.randn(400, 2, generator=generator)
    y = x @ torch.tensor([1.0, -1.0]) + 0.3 * torch.randn(400, generator=generator)
    task = be.Task(lambda: nn.Linear(2, 1), be.Gaussian(noise="learned"), prior=None)
    method = be.DeepEnsemble(num_members=2, learning_rate=0.1, schedule="cosine")
    fitted = quick_fit(task, (x, y), method, epochs=60, batch_size=100)
    predictive = fitted.predict(x)
    residuals = (predictive.mean - y).square().mean().sqrt()
    assert predictive.aleatoric.sqrt().mean().item() == pytest.approx(residuals.item(), rel=0.02)


def test_counts_and_yes_no_targets(generator):
    x = torch.randn(300, 2, generator=generator)
    counts = torch.poisson(torch.exp(0.5 + x[:, 0]), generator=generator)
    fitted = quick_fit(
        be.Task(lambda: nn.Linear(2, 1), be.Poisson()),
        (x, counts),
        be.DeepEnsemble(learning_rate=0.02),
        epochs=40,
    )
    weight = fitted.state.members.params["weight"][:, 0]
    rows, rates = torch.cat([x, torch.ones(300, 1)], 1), torch.exp(0.5 + x[:, 0])
    errors = torch.linalg.inv((rows * rates.unsqueeze(1)).T @ rows).diagonal().sqrt()[:2]  # of the best weights
    assert ((weight - torch.tensor([1.0, 0.0])).abs() < 4 * errors).all()
    answers = quick_fit(be.Task(lambda: nn.Linear(2, 1), be.Bernoulli()), (x, x[:, 0] > 0), epochs=40)
    assert be.metrics.accuracy(answers.predict(x), x[:, 0] > 0) > 0.9
