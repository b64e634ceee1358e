"""Whole predictions from a record are those made without one, to the last bit, and are made anew where they must."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.execute.programs.predictions import _Program
from bayesemble.predictive import Predictive
from helpers import quick_fit, small_mlp, table


def recorded(ensemble: be.Ensemble) -> bool:
    known = ensemble.predictor()._predictions._of.values()
    return any(isinstance(one, _Program) for programs in known for one in programs.values())


def tensors(prediction: Predictive) -> dict[str, Tensor]:
    return {n: value for n, value in vars(prediction).items() if isinstance(value, Tensor)} | prediction.kept


def check_same(found: Predictive, expected: Predictive) -> None:
    ours, theirs = tensors(found), tensors(expected)
    assert type(found) is type(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


LIKELIHOODS = [be.Categorical(), be.Bernoulli(), be.Gaussian(0.3), be.HeteroscedasticStudent(), be.Poisson()]


@pytest.mark.parametrize("keep_members", [True, False])
@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(chunk=2)], ids=str)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: type(one).__name__)
def test_bits_are_those_of_an_ensemble_that_never_predicted(likelihood, executor, keep_members):
    x, y = table()
    targets = y if isinstance(likelihood, be.Categorical) else torch.stack([y, 1 - y], 1).float()
    targets = targets[:, :1] if isinstance(likelihood, be.HeteroscedasticStudent) else targets
    ensemble = quick_fit(be.Task(small_mlp, likelihood), (x, targets), executor=executor)
    for start in range(6):
        rows = x[start : start + 1]
        found = ensemble.predict(rows, keep_members=keep_members)
        check_same(found, replace(ensemble).predict(rows, keep_members=keep_members))
        if isinstance(likelihood, be.Categorical):
            assert torch.equal(found.entropy, replace(ensemble).predict(rows, keep_members=keep_members).entropy)
    # The standard deviation of real numbers is looked at, whether it is too large.
    assert recorded(ensemble) == (keep_members or isinstance(likelihood, be.Categorical | be.Bernoulli | be.Poisson))


def predict_often(ensemble: be.Ensemble, x: Tensor) -> Predictive:
    for _ in range(4):
        found = ensemble.predict(x)
    assert recorded(ensemble)
    return found


def test_changed_weights_rows_and_layers_are_noticed():
    x, y = table()
    ensemble = quick_fit(be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2)),
                                 be.Categorical()), (x, y))  # fmt: skip
    before = predict_often(ensemble, x).probs
    with pytest.raises(be.DataError, match="finite"):
        ensemble.predict(torch.full_like(x, float("nan")))
    ensemble.state.members.params["0.weight"].mul_(2)
    check_same(ensemble.predict(x), replace(ensemble).predict(x))
    assert not torch.equal(ensemble.predict(x).probs, before)
    predict_often(ensemble, x)
    ensemble.task.module[1].negative_slope = 0.9
    check_same(ensemble.predict(x), replace(ensemble).predict(x))
    heard = []
    predict_often(ensemble, x)
    with ensemble.task.module[1].register_forward_hook(lambda *_: heard.append(1)):
        ensemble.predict(x)
    assert heard


def test_what_somebody_does_to_a_prediction_does_not_change_the_next():
    x, y = table()
    for likelihood, targets in ((be.Categorical(), y), (be.Gaussian(0.3), x[:, :2])):
        ensemble = quick_fit(be.Task(small_mlp, likelihood), (x, targets), be.DeepEnsemble(num_members=1))
        predict_often(ensemble, x[:1])
        for value in tensors(ensemble.predict(x[:1])).values():
            value.mul_(3)
        check_same(ensemble.predict(x[:1]), replace(ensemble).predict(x[:1]))


@dataclass(frozen=True)
class Tempered(be.Categorical):
    """A likelihood whose setting somebody changes."""

    heat: float = 1.0

    def predictive(self, outputs, leaves, weights):
        return super().predictive(outputs / self.heat, leaves, weights)


def test_a_likelihood_that_is_changed_is_noticed():
    ensemble = quick_fit(be.Task(small_mlp, Tempered()), table())
    x = table()[0]
    before = predict_often(ensemble, x).probs
    object.__setattr__(ensemble.task.likelihood, "heat", 3.0)
    assert not torch.equal(ensemble.predict(x).probs, before)


def test_members_without_weight_do_not_count():
    x, y = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y)).reweight([0, 1, 1])
    ensemble.state.members.params["0.weight"][0] = float("nan")
    expected = ensemble.keep([1, 2]).predict(x).probs
    for _ in range(5):
        torch.testing.assert_close(ensemble.predict(x).probs, expected)


def test_rows_with_gradients_are_predicted_as_ever():
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0]
    predict_often(ensemble, x)
    check_same(ensemble.predict(x.clone().requires_grad_()), ensemble.predict(x))
    slopes = torch.func.grad(lambda rows: ensemble.predict(rows).probs.sum())(x)
    assert not slopes.any()
