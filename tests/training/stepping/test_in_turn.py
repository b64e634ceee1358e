"""Chunks that take their whole steps one after the other come to what all at once do."""

import shutil

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import ExecutionError
from bayesemble.execute.programs import compiled
from bayesemble.execute.programs.program import replayed
from bayesemble.training.stepping import steps
from bayesemble.training.stepping.in_turn import StepsInTurn, steps_of
from bayesemble.training.stepping.steps import Steps
from helpers import all_leaves, dropout_mlp, norm_mlp, quick_fit, small_mlp, table


@pytest.fixture(autouse=True)
def _short_runs_are_recorded_too(monkeypatch) -> None:
    monkeypatch.setattr(steps, "_FEWEST_STEPS", 1)


def fitted(method, executor, make=norm_mlp, prior=None, **options):
    task = be.Task(make, be.Categorical(), **({} if prior is None else {"prior": prior}))
    return quick_fit(task, table(), method, executor=executor, **({"epochs": 4, "batch_size": 20} | options))


def same(one, other) -> bool:
    pairs = zip(all_leaves(one).items(), all_leaves(other).items(), strict=True)
    return all(name == there and torch.equal(leaf, own) for (name, leaf), (there, own) in pairs)


METHODS = {
    "plain": be.DeepEnsemble(num_members=5),
    "schedule-free": be.DeepEnsemble(num_members=5, optimizer="schedule_free_adamw"),
    "rows of their own": be.DeepEnsemble(num_members=5, bootstrap=True, clip=0.1),
    "rates of their own": be.DeepEnsemble(num_members=5, rate_per_member=(1.0, 2.0, 3.0, 4.0, 5.0)),
    "rates that are drawn": be.DeepEnsemble(num_members=5, learning_rate=(1e-4, 1e-2), own_order=True),
    "anchored": be.DeepEnsemble(num_members=5, anchored=True, schedule="cosine"),
    "adversarial": be.DeepEnsemble(num_members=5, adversarial=0.1, optimizer="sgd"),
    "laplace": be.Laplace(num_members=5, structure="diag"),
}


@pytest.mark.parametrize("name", METHODS)
def test_chunk_after_chunk_is_all_at_once(name):
    method, make = METHODS[name], small_mlp if name in ("schedule-free", "laplace") else norm_mlp
    whole, parts = fitted(method, be.Vmap(), make), fitted(method, be.Vmap(chunk=2), make)
    assert [row["loss"] for row in parts.history] == [
        pytest.approx(row["loss"], rel=1e-4, abs=1e-6) for row in whole.history
    ]
    for key, leaf in all_leaves(whole).items():
        torch.testing.assert_close(all_leaves(parts)[key], leaf, rtol=1e-3, atol=1e-4)
    assert same(fitted(method, be.Vmap(chunk=2, steps="eager"), make), parts)


def test_what_is_random_in_a_network_and_priors_of_their_own_are_those_of_each_member():
    prior = be.NormalPrior(std=[0.5, 1.0, 2.0, 1.0, 0.7])
    for method in (be.DeepEnsemble(num_members=5), be.MCDropout(num_members=5)):
        whole, parts = (fitted(method, be.Vmap(chunk=chunk), dropout_mlp, prior) for chunk in (None, 2))
        for key, leaf in all_leaves(whole).items():
            torch.testing.assert_close(all_leaves(parts)[key], leaf, rtol=1e-3, atol=1e-4)


def test_what_all_have_together_is_counted_once():
    found = fitted(be.DeepEnsemble(num_members=5), be.Vmap(chunk=2))
    assert found.state.slots["steps"]["step"] == 12  # four epochs of three batches


def test_rows_that_members_have_alone_reach_theirs():
    x, y = table()
    rolled = torch.stack([x.roll(i, 0) for i in range(5)]), torch.stack([y.roll(i, 0) for i in range(5)])
    task, method = be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(num_members=5)
    whole, parts = (
        quick_fit(task, be.PerMember(*rolled), method, executor=be.Vmap(chunk=chunk), epochs=3) for chunk in (None, 2)
    )
    for key, leaf in all_leaves(whole).items():
        torch.testing.assert_close(all_leaves(parts)[key], leaf, rtol=1e-3, atol=1e-4)


def test_a_run_that_is_resumed_and_one_that_leaves_members_behind_go_on_to_the_same_bits(tmp_path):
    method, executor = be.DeepEnsemble(num_members=5, learning_rate=0.01), be.Vmap(chunk=2)
    whole = fitted(method, executor)
    for epochs in (1, 4):
        resumed = fitted(method, executor, epochs=epochs, checkpoint=tmp_path / "run", resume=True)
    assert same(resumed, whole)
    rates = (0.01, 1e30, 0.01, 0.01, 0.01)
    with pytest.warns(UserWarning, match="member 1 is no longer finite"):
        left = fitted(
            be.DeepEnsemble(num_members=5, optimizer="sgd", rate_per_member=rates),
            executor,
            small_mlp,
            on_nonfinite="drop",
        )
    assert left.state.members.weights.tolist() == [0.25, 0, 0.25, 0.25, 0.25]


def test_gaussians_around_members_are_gone_once_these_move_on(tmp_path):
    method, executor = be.Laplace(num_members=5, structure="diag"), be.Vmap(chunk=2)
    whole = fitted(method, executor, small_mlp)
    for epochs in (1, 4):
        resumed = fitted(method, executor, small_mlp, epochs=epochs, checkpoint=tmp_path / "run", resume=True)
    assert same(resumed, whole)
    for one, other in zip(whole.state.slots.values(), resumed.state.slots.values(), strict=True):
        assert all(torch.equal(one[name], leaf) for name, leaf in other.items())


def test_only_chunks_of_members_that_know_nothing_of_one_another_go_in_turn():
    task = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])

    def kind(method, executor) -> type:
        return type(steps_of(method, task, executor, method.init(task, seed=0), fresh=True))

    plain = be.DeepEnsemble(num_members=5)
    assert kind(plain, be.Vmap(chunk=2)) is kind(plain, be.Vmap(chunk=5)) is StepsInTurn
    assert kind(plain, be.Vmap()) is kind(plain, be.Loop()) is Steps
    assert kind(be.Repulsive(num_members=5), be.Vmap(chunk=2)) is Steps


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_chunks_of_one_size_share_what_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path))
    method = be.DeepEnsemble(num_members=4)
    found = fitted(method, be.Vmap(chunk=2, steps="compiled"), small_mlp, batch_size=16)
    assert len(list(tmp_path.iterdir())) == 1
    assert found.executor == be.Vmap(chunk=2, steps="compiled")
    for key, leaf in all_leaves(fitted(method, be.Vmap(), small_mlp, batch_size=16)).items():
        torch.testing.assert_close(all_leaves(found)[key], leaf, rtol=1e-3, atol=1e-4)


def test_once_a_chunk_is_compiled_the_others_have_to_be(monkeypatch):
    def refused_if_alone(record):
        if record.layouts[0].shape[0] == 1:
            raise ExecutionError("one member cannot be compiled")
        return replayed(record)

    monkeypatch.setattr(steps, "compiled", refused_if_alone)
    with pytest.raises(ExecutionError, match="steps of this run are compiled, but one cannot be: one member"):
        fitted(be.DeepEnsemble(num_members=5), be.Vmap(chunk=2, steps="compiled"), small_mlp)


def test_once_a_chunk_cannot_be_compiled_the_others_are_traced_too(monkeypatch):
    def refused_if_not_alone(record):
        if record.layouts[0].shape[0] > 1:
            raise ExecutionError("two members cannot be compiled")
        return pytest.fail("one member was compiled")

    monkeypatch.setattr(steps, "compiled", refused_if_not_alone)
    method = be.DeepEnsemble(num_members=5)
    found = fitted(method, be.Vmap(chunk=2, steps="compiled"), small_mlp)
    assert found.executor == be.Vmap(chunk=2)
    assert same(found, fitted(method, be.Vmap(chunk=2), small_mlp))
