"""A surrogate for BoTorch, which the extra `botorch` brings; without it these tests skip, but one."""

import sys

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import MissingExtraError, SettingError
from helpers import oracle, quick_fit, table

X, Y = table()


@pytest.fixture(scope="module")
def ensemble() -> be.Ensemble:
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), be.Gaussian(noise=0.3))
    return quick_fit(task, (X, X[:, :2].sin()), epochs=5).reweight([1, 0, 3])


def test_without_the_extra_it_is_named(ensemble, monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    monkeypatch.setitem(sys.modules, "botorch.models.ensemble", None)
    with pytest.raises(MissingExtraError, match=r"bayesemble\[botorch\]"):
        ensemble.to_botorch()


def test_the_posterior_is_that_of_the_networks_means(ensemble):
    oracle("botorch")
    points = X[:24].reshape(4, 3, 2, 4).double()
    model = ensemble.to_botorch()
    posterior = model.posterior(points)
    assert model.num_outputs == 2
    assert posterior.values.shape == (4, 3, 2, 2, 2)  # networks that weigh anything stand before points and outputs
    assert posterior.mean.dtype == torch.float64
    predictive = ensemble.predict(X[:24])
    assert torch.allclose(posterior.mean.reshape(24, 2).float(), predictive.mean, atol=1e-6)
    unbiased = predictive.epistemic / (1 - 0.25**2 - 0.75**2)
    assert torch.allclose(posterior.variance.reshape(24, 2).float(), unbiased, atol=1e-6)


def test_acquisition_functions_take_it_with_gradients():
    acquisition = oracle("botorch.acquisition")
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), be.Gaussian(noise=0.3))
    model = quick_fit(task, (X, X[:, 0].sin()), epochs=5).to_botorch()
    points = X[:5].unsqueeze(1).double().requires_grad_()
    for function in (
        acquisition.UpperConfidenceBound(model, beta=2.0),
        acquisition.qLogExpectedImprovement(model, best_f=0.1),
    ):
        with torch.random.fork_rng():  # BoTorch draws its samples from torch's global generator
            values = function(points)
        assert values.shape == (5,)
        (slopes,) = torch.autograd.grad(values.sum(), points)
        assert slopes.isfinite().all()
        assert slopes.abs().sum() > 0


def test_classes_are_no_surrogate():
    oracle("botorch")
    classes = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), (X, Y))
    with pytest.raises(SettingError, match="a surrogate predicts numbers"):
        classes.to_botorch()
