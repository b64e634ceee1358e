"""A plain module that says what `predict` says, with gradients."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.methods import METHODS
from bayesemble.training.outgoing.export import Draws, predicted
from bayesemble.training.outgoing.readings import Rules, read
from contract.test_methods import fitted
from helpers import calibrated, quick_fit, table

X, Y = table()
SMOOTH = 1e-6


def uncalibrated(ensemble: be.Ensemble) -> be.Ensemble:
    return replace(ensemble, calibration=None)


def smooth_mlp(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, num_outputs)).double()


def same(ensemble: be.Ensemble, inputs, **options) -> bool:
    module = ensemble.module(**options)
    draws = Draws(options.get("num_draws"), options.get("seed", 0))
    with torch.no_grad():
        found, raw = module(inputs), module.member_outputs(inputs)
    expected = read(
        predicted(ensemble, inputs, draws), raw, list(found), Rules.of(options.get("level"), ensemble.calibration)
    )
    return all(torch.allclose(found[name], expected[name], rtol=1e-6, atol=1e-6) for name in found)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_as_a_module_says_what_predict_says(name):
    ensemble = fitted(name)
    assert same(ensemble, X)
    assert same(ensemble, X, num_draws=2, seed=3, outputs=["probs", "disagreement", "member_std", "outputs"])


@pytest.mark.parametrize(
    "likelihood",
    [
        be.Bernoulli(),
        be.Gaussian(noise="learned"),
        be.HeteroscedasticGaussian(),
        be.HeteroscedasticStudent(),
        be.Poisson(),
        be.GaussianMixture(components=2),
        be.Quantile(levels=(0.1, 0.5, 0.9)),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_every_kind_of_target_with_unequal_weights(likelihood):
    outputs = {"Bernoulli": 1, "Gaussian": 1, "Poisson": 1, "GaussianMixture": 6, "Quantile": 3}
    num = outputs.get(type(likelihood).__name__, 2)
    targets = Y.float() if num == 1 else X[:, 0]
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, num), likelihood), (X, targets))
    assert same(ensemble.reweight([1, 0, 2]), X, level=0.6)


def test_it_is_an_ordinary_module():
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise="learned")), (X, X[:, 0]))
    module = ensemble.module(["mean", "std"])
    assert isinstance(module, nn.Module)
    assert not module.training
    assert {"weights", "likelihood.log_noise", "members.0.weight"} <= module.state_dict().keys()
    other = copy.deepcopy(module)
    with torch.no_grad():
        for leaf in (*other.parameters(), *other.buffers()):
            leaf.zero_()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(X)["std"], module(X)["std"])
    assert module.to(torch.float64)(X.double())["mean"].dtype == torch.float64


@pytest.mark.parametrize(
    ("likelihood", "num", "names"),
    [
        (be.Categorical(), 3, ["probs", "entropy", "aleatoric", "epistemic"]),
        (be.HeteroscedasticGaussian(), 2, ["mean", "std", "low", "high", "aleatoric", "epistemic"]),
    ],
    ids=["classes", "numbers"],
)
def test_gradients_in_the_inputs_are_those_of_finite_differences(likelihood, num, names):
    targets = Y if num == 3 else X[:, 0].double()
    ensemble = quick_fit(be.Task(lambda: smooth_mlp(num), likelihood), (X.double(), targets), epochs=20)
    module = ensemble.reweight([1, 2, 3]).module(names)
    rows = X[:5].double().requires_grad_()
    for name in names:
        assert torch.autograd.gradcheck(lambda x, name=name: module(x)[name], rows, eps=1e-6, atol=SMOOTH), name


def test_a_method_in_closed_form_asks_for_a_number_of_draws():
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=0.5), be.NormalPrior(1.0))
    ensemble = quick_fit(task, (X, X[:, 0]), be.Laplace())
    with pytest.raises(SettingError, match=r"predicts in closed form here.*num_draws=30"):
        ensemble.module()
    assert same(ensemble, X, num_draws=5)


def test_wishes_that_cannot_be_honoured_are_refused():
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), (X, Y))
    with pytest.raises(SettingError, match="no output called 'mean'"):
        ensemble.module(["mean"])
    with pytest.raises(SettingError, match="a list of names"):
        ensemble.module("probs")
    with pytest.raises(SettingError, match="it is empty"):
        ensemble.module([])
    with pytest.raises(SettingError, match="between 0 and 1"):
        ensemble.module(level=1.0)


def test_a_calibrated_ensemble_of_classes_says_its_sets_and_where_it_abstains():
    ensemble, x = calibrated("classes")
    module, predictive = ensemble.module(), ensemble.predict(x)
    with torch.no_grad():
        found = module(x)
    assert list(found) == ["probs", "entropy", "aleatoric", "epistemic", "set", "abstain"]
    assert torch.allclose(found["probs"], predictive.probs, atol=1e-6)
    assert not torch.allclose(found["probs"], uncalibrated(ensemble).predict(x).probs, atol=1e-3)
    assert torch.equal(found["set"], ensemble.calibration.sets(predictive).mask)
    assert torch.equal(found["abstain"], ensemble.calibration.decide(predictive).abstain)
    for decided in (found["set"], found["abstain"]):
        assert decided.any()
        assert not decided.all()


def test_a_calibrated_ensemble_of_numbers_says_its_intervals():
    ensemble, x = calibrated("numbers")
    intervals = ensemble.calibration.intervals(ensemble.predict(x))
    with torch.no_grad():
        found = ensemble.module()(x)
    assert torch.allclose(found["low"].double(), intervals.low, atol=1e-6)
    assert torch.allclose(found["high"].double(), intervals.high, atol=1e-6)
    assert not torch.allclose(found["low"], ensemble.predict(x).interval(0.8)[0], atol=1e-3)
    assert torch.allclose(found["std"], ensemble.predict(x).std, atol=1e-6)
    with pytest.raises(SettingError, match=r"calibrated at level 0\.8, got level=0.9"):
        ensemble.module(level=0.9)


def test_decisions_that_were_not_calibrated_are_refused():
    ensemble, _ = calibrated("classes")
    with pytest.raises(SettingError, match=r"no output called 'abstain' without ensemble\.calibrate"):
        uncalibrated(ensemble).module(["abstain"])
