"""Rows into predictions: batch after batch with the same networks, on the executor that suits them."""

import copy
import gc
import pickle
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.execute.executor import Executor
from bayesemble.training import predictor as training_predictor
from bayesemble.training.predictor import LastPredictor, Predictor
from helpers import norm_mlp, quick_fit, small_mlp, table, with_dropout


def predictor(ensemble: be.Ensemble, num: int | None = None) -> Predictor:
    return Predictor(ensemble.task, ensemble.networks(num), ensemble.executor)


def best_executor(ensemble: be.Ensemble) -> Executor:
    predict = predictor(ensemble)
    return predict._best_executor(next(iter(predict.networks)), table()[0])


@pytest.mark.parametrize("method", [be.DeepEnsemble(num_members=3), be.ECMP(), be.SWAG(start=0.3, rank=2)], ids=str)
def test_batches_of_rows_are_predicted_as_all_rows_are(method):
    ensemble, x = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), method), table()[0]
    predict = predictor(ensemble)
    parts = [predict(x[start : start + 20], number=number) for number, start in enumerate(range(0, 48, 20))]
    whole = ensemble.predict(x)
    torch.testing.assert_close(torch.cat([part.member_probs for part in parts], 1), whole.member_probs)
    assert all(torch.equal(part.weights, whole.weights) for part in parts)


def test_draws_are_run_side_by_side_by_auto_and_members_as_they_were_trained():
    drawn = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.ECMP(select="output"), executor="auto")
    assert drawn.executor == be.Loop(draws_by_vmap=True, threads=1, steps="traced")
    assert best_executor(drawn) == be.Vmap(chunk=16, threads=1)
    members = quick_fit(be.Task(small_mlp, be.Categorical()), table(), executor=be.Loop(draws_by_vmap=True))
    assert best_executor(members) == members.executor


def test_a_loop_that_was_asked_for_is_obeyed_by_draws():
    drawn = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.ECMP(select="output"), executor="loop")
    assert best_executor(drawn) == be.Loop()
    together = replace(drawn, executor=be.Loop(draws_by_vmap=True)).predict(table()[0])
    torch.testing.assert_close(drawn.predict(table()[0]).member_probs, together.member_probs)


class AttentionByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.drop, self.head = nn.Linear(8, 24), nn.Dropout(0.1), nn.Linear(8, 2)

    def forward(self, x):
        query, key, value = self.mix(x).unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return self.head(self.drop(mixed).mean(1))


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("executor", ["auto", be.Loop(draws_by_vmap=True), "loop"], ids=str)
def test_draws_that_vmap_cannot_run_are_looped_over_without_a_word(executor, members):
    x, y = torch.randn(24, 5, 8, generator=torch.Generator().manual_seed(0)), table(24)[1]
    task = be.Task(AttentionByHand, be.Categorical())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = quick_fit(task, (x, y), be.MCDropout(num_members=members), executor=executor)
        found = fitted.predict(x)
    assert torch.equal(found.member_probs, replace(fitted, executor=be.Loop()).predict(x).member_probs)


def test_a_method_that_knows_the_law_of_its_outputs_draws_only_if_asked():
    x, _ = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian()), (x, x[:, :2]), be.Laplace(num_members=2, draws=7))
    assert predictor(ensemble)(x).num_members == 2
    assert predictor(ensemble, 4)(x).num_members == 4
    reduced = ensemble.predict(x, batch_size=20, keep_members=False)
    torch.testing.assert_close(reduced.epistemic, predictor(ensemble)(x).epistemic)
    rows = ensemble.evaluate((x, x[:, :2]), batch_size=20)["nll"]
    assert rows == pytest.approx(-float(predictor(ensemble)(x).log_prob(x[:, :2]).mean()), rel=1e-5)


def test_each_batch_of_rows_drops_other_units():
    ensemble = quick_fit(be.Task(lambda: with_dropout(small_mlp), be.Categorical()), table(), be.MCDropout())
    predict, x = predictor(ensemble, 4), table()[0]
    first, again, other = (predict(x, number=number).member_probs for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(probs.flatten().tolist()) for probs in first}) == 4


def test_rows_without_a_number_are_those_of_the_first_batch():
    task = be.Task(lambda: with_dropout(small_mlp), be.Categorical())
    ensemble, x = quick_fit(task, table(), be.MCDropout(num_members=2)), table()[0]
    assert torch.equal(predictor(ensemble)(x).member_probs, ensemble.predict(x).member_probs)


def test_the_quicker_way_of_a_method_is_taken_for_networks_that_are_drawn(monkeypatch):
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.Laplace()), table()[0]
    asked, quicker = [], be.Laplace.outputs_at_once

    def recorded(self, state, task, members, numbers, inputs):
        asked.append(numbers)
        return quicker(self, state, task, members, numbers, inputs)

    monkeypatch.setattr(be.Laplace, "outputs_at_once", recorded)
    ensemble.predict(x, num_draws=5)
    assert asked == [range(5)]


def test_rows_of_each_members_own_need_members():
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0]
    own = torch.stack([x, x + 1, x + 2])
    found = predictor(ensemble)(own, per_member=True)
    for index in range(3):
        torch.testing.assert_close(found.member_probs[index], ensemble.predict(own[index]).member_probs[index])
    drawn = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.ECMP(select="output"))
    with pytest.raises(be.DataError, match=r"networks that are drawn share their data; .*keep"):
        predictor(drawn)(own, per_member=True)


def test_rows_that_the_network_cannot_run_on_are_refused():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    with pytest.raises(be.DataError, match=r"cannot run on inputs of shape \[\(5, 3\)\]"):
        predictor(ensemble)(torch.zeros(5, 3))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_predictions_have_single_precision_at_least(dtype, expected):
    x, y = table()
    ensemble = quick_fit(be.Task(lambda: small_mlp().to(dtype), be.Categorical()), (x, y))
    probs = ensemble.predict(x).probs
    assert probs.dtype == expected
    torch.testing.assert_close(probs.sum(-1), torch.ones(48, dtype=expected), atol=1e-6, rtol=0)
    learned = be.Task(lambda: torch.nn.Linear(4, 1).to(dtype), be.Gaussian(noise="learned"))
    predictive = quick_fit(learned, (x, x.sum(1))).predict(x)
    assert (predictive.mean.dtype, predictive.std.dtype) == (expected, expected)


class Mixing(nn.Module):
    """The batch is normalised by its own mean and variance, in prediction too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(x))


def test_rows_at_a_time_go_by_the_network_where_that_changes_nothing():
    x, y = table()

    def rows(method, model=small_mlp, **changes):
        ensemble = quick_fit(be.Task(model, be.Categorical()), (x, y), method, executor="loop")
        task = replace(ensemble.task, **changes)
        return predictor(replace(ensemble, task=task)).rows_at_a_time

    assert rows(be.DeepEnsemble(num_members=2)) == 1 << 14
    assert rows(be.DeepEnsemble(num_members=2), lambda: nn.Sequential(nn.Linear(4, 5000), nn.Linear(5000, 2))) == 419
    assert rows(be.ECMP()) == 1024
    assert rows(be.MCDropout(), lambda: with_dropout(small_mlp)) == 1024
    assert rows(be.DeepEnsemble(num_members=2), Mixing) == 1024
    assert rows(be.DeepEnsemble(num_members=2), example=None) == 1024


def test_rows_are_split_into_as_many_as_suit_the_network_unless_told_otherwise(monkeypatch):
    ensemble, x, seen = quick_fit(be.Task(small_mlp, be.Categorical()), table()), table()[0], []
    call = Predictor.__call__
    monkeypatch.setattr(Predictor, "rows_at_a_time", 20)
    monkeypatch.setattr(
        Predictor, "__call__", lambda self, inputs, **more: seen.append(len(inputs)) or call(self, inputs, **more)
    )
    whole = ensemble.predict(x).probs
    torch.testing.assert_close(ensemble.predict(x, batch_size=40).probs, whole)
    torch.testing.assert_close(ensemble.predict(x[:16]).probs, whole[:16])
    ensemble.evaluate(table())
    assert seen == [20, 20, 8, 40, 8, 16, 20, 20, 8]


@pytest.mark.parametrize("asked", [True, False])
def test_many_rows_get_more_than_the_one_thread_of_a_step_unless_it_was_asked_for(asked, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=3), executor="auto")
    assert ensemble.executor.threads == 1
    if asked:
        ensemble = replace(ensemble, execution="as asked for")
    used.clear()
    ensemble.predict(torch.zeros(100, 4))
    ensemble.predict(torch.zeros(1, 4))
    few = list(used)
    ensemble.predict(torch.zeros(10_000, 4))
    assert few[-2:] == [1, 2]
    assert (len(used) > len(few)) == asked


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
    monkeypatch.setattr(training_predictor, "_MOST_BYTES_KEPT", 100)
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


@pytest.mark.parametrize("method", [be.DeepEnsemble(num_members=2), be.ECMP(select="output")], ids=str)
def test_an_ensemble_that_has_predicted_is_freed_with_its_last_name(method):
    ensemble, x = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method), table()[0]
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):  # from the fourth time on it predicts from a record
            ensemble.predict(x)
        state = weakref.ref(ensemble.state)
        del ensemble
        assert state() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("method", [be.DeepEnsemble(num_members=2), be.Laplace()], ids=["networks", "closed form"])
def test_inputs_of_another_number_of_axes_are_refused(method, generator):
    x = torch.randn(20, 4, generator=generator)
    found = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Gaussian(0.5)), (x, x[:, :2]), method)
    for rows in (x[0], x[None]):
        with pytest.raises(
            DataError, match=r"are not rows as in training: .*single row is x\[None\]|cannot run on inputs"
        ):
            found.predict(rows)
    assert found.predict(x[:1]).mean.shape == (1, 2)
    classes = quick_fit(be.Task(small_mlp, be.Categorical()), table(20))
    with pytest.raises(DataError, match=r"for 4 rows there are outputs \(2,\), in training \(2,\) for each row"):
        classes.predict(table(20)[0][0])
