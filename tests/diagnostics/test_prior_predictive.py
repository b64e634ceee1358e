import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.models import mlp


def task(std: float = 1.0) -> be.Task:
    return be.Task(lambda: nn.Linear(3, 1).double(), be.Gaussian(0.5), be.NormalPrior(std=std))


def test_functions_of_a_linear_model_have_the_covariance_of_the_prior():
    """f(x) = w x + b with w, b ~ Normal(0, 4): variance 4 (|x|^2 + 1), within 4 standard errors."""
    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = be.prior_predictive(task(2.0), None, x, num=2000).member_mean.squeeze(-1)
    expected = 4 * (x.square().sum(1) + 1)
    error = expected * (2 / 2000) ** 0.5
    assert ((found.var(0) - expected).abs() < 4 * error).all()
    assert (found.mean(0).abs() < 4 * (expected / 2000).sqrt()).all()


@pytest.mark.parametrize("method", [be.EMP(components=3), be.Explicit(components=3)], ids=["emp", "explicit"])
def test_few_components_give_few_functions(method):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = be.prior_predictive(task(), method, x, num=60).member_mean.squeeze(-1)
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_every_form_of_the_family_gives_functions():
    x = torch.linspace(-2, 2, 7).unsqueeze(1)
    network = be.Task(lambda: mlp(1, [20, 20], 1, norm=True), be.Gaussian())
    for method in (be.EMP(), be.ECMP(), be.Dropout(), be.DropConnect(), be.Explicit(), be.DeepEnsemble(), None):
        found = be.prior_predictive(network, method, x, num=12)
        assert found.member_mean.shape[:2] == (12, 7)
        assert len({tuple(row) for row in found.member_mean.squeeze(-1).tolist()}) > 1
        again = be.prior_predictive(network, method, x, num=12)
        assert torch.equal(found.member_mean, again.member_mean)


def test_it_needs_a_prior():
    flat = be.Task(lambda: nn.Linear(3, 1), be.Gaussian(), None)
    with pytest.raises(SettingError, match="the task has none"):
        be.prior_predictive(flat, None, torch.zeros(2, 3))
