"""What is kept between predictions: the same numbers as without it, and nothing that is no longer true."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import bayesemble as be
from bayesemble.training import last_predictor
from bayesemble.training.last_predictor import LastPredictor
from helpers import norm_mlp, quick_fit, small_mlp, table

METHODS = [
    be.DeepEnsemble(num_members=3),
    be.ECMP(num_members=2),
    be.SWAG(start=0.3, rank=2),
    be.Snapshot(num_members=2, snapshots=2),
]


def fitted(method: be.methods.Method, model=norm_mlp) -> be.Ensemble:
    return quick_fit(be.Task(model, be.Categorical()), table(), method)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_predictions_row_by_row_are_those_of_an_ensemble_that_keeps_nothing(method):
    ensemble, x = fitted(method), table()[0][:6]
    kept = [ensemble.predict(row[None]).member_probs for row in x]
    fresh = [replace(ensemble).predict(row[None]).member_probs for row in x]
    assert all(torch.equal(one, other) for one, other in zip(kept, fresh, strict=True))


def test_networks_are_drawn_once_for_all_calls_that_ask_for_the_same(monkeypatch):
    ensemble, x, drawn = fitted(be.ECMP()), table()[0], []
    draw = be.ECMP.draw
    monkeypatch.setattr(
        be.ECMP, "draw", lambda self, state, numbers, seed: drawn.append(numbers) or draw(self, state, numbers, seed)
    )
    ensemble.predict(x)
    first = len(drawn)
    ensemble.predict(x[:1])
    ensemble.evaluate(table())
    assert len(drawn) == first > 0
    ensemble.predict(x, seed=1)
    ensemble.predict(x, seed=1, num_draws=3)
    assert len(drawn) == 3 * first


@pytest.mark.parametrize("change", ["in place", "another tensor", "weights"])
def test_a_changed_state_is_predicted_with_anew(change):
    ensemble, x = fitted(be.ECMP(num_members=2)), table()[0]
    before = ensemble.predict(x).probs
    members = ensemble.state.members
    if change == "in place":
        members.params["3.weight"].mul_(2)
    elif change == "another tensor":
        members.params["3.weight"] = 2 * members.params["3.weight"]
    else:
        members.weights.copy_(torch.tensor([0.0, 1.0]))
    after = ensemble.predict(x)
    assert not torch.equal(after.probs, before)
    assert torch.equal(after.probs, replace(ensemble).predict(x).probs)


def test_large_networks_are_not_kept(monkeypatch):
    ensemble, x = fitted(be.ECMP()), table()[0]
    ensemble.predict(x)
    assert ensemble.predictor() is ensemble.predictor()
    monkeypatch.setattr(last_predictor, "_MOST_BYTES", 100)
    known = ensemble.predictor()
    ensemble.predict(x)
    assert ensemble.predictor() is not known
    members = fitted(be.DeepEnsemble(num_members=3))  # take no memory beside the state
    known = members.predictor()
    members.predict(x)
    assert members.predictor() is known


def test_a_copy_of_an_ensemble_begins_with_nothing():
    assert isinstance(pickle.loads(pickle.dumps(LastPredictor())), LastPredictor)
    ensemble, x = fitted(be.ECMP(), small_mlp), table()[0]
    expected = ensemble.predict(x).probs
    for other in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        assert other._last_predictor._kept is None
        assert torch.equal(other.predict(x).probs, expected)


def test_threads_that_ask_for_different_draws_get_their_own():
    ensemble, x = fitted(be.ECMP(), small_mlp), table()[0]
    alone = [replace(ensemble).predict(x, seed=seed, num_draws=3).probs for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: ensemble.predict(x, seed=index % 4, num_draws=3).probs, range(40)))
    assert all(torch.equal(one, alone[index % 4]) for index, one in enumerate(found))


def test_tensors_of_inference_mode_cannot_say_whether_they_changed():
    ensemble, x = fitted(be.ECMP()), table()[0]
    with torch.inference_mode():
        frozen = replace(ensemble, state=ensemble.state.clone())
    assert torch.equal(frozen.predict(x).probs, ensemble.predict(x).probs)
    assert frozen.predictor() is not frozen.predictor()
