"""Steps from a record are the steps that Python takes, bit for bit; compiled ones up to rounding."""

import logging
import shutil

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import ExecutionError, TrainingError
from bayesemble.core.members import State
from bayesemble.execute.programs import compiled
from bayesemble.execute.programs.program import replayed
from bayesemble.methods import METHODS, make_method
from bayesemble.methods import method_class as class_of
from bayesemble.training.stepping import steps
from contract.test_methods import small
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table

RECORDED = [
    name for name in METHODS if class_of(name).kind_of_step is not be.Method.kind_of_step and not METHODS[name].fixed
]


def leaves(ensemble: be.Ensemble) -> list[Tensor]:
    return [leaf for group in ensemble.state.groups().values() for leaf in group.values()]


def fitted(method: be.Method, way: str = "traced", make=norm_mlp, **options) -> be.Ensemble:
    task = be.Task(make, be.Categorical())
    return quick_fit(task, table(), method, executor=be.Vmap(steps=way), **({"epochs": 4} | options))


def same(one: be.Ensemble, other: be.Ensemble) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


@pytest.fixture(autouse=True)
def _short_runs_are_recorded_too(monkeypatch) -> None:
    monkeypatch.setattr(steps, "_FEWEST_STEPS", 1)


@pytest.fixture
def told(caplog) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "bayesemble")
    return caplog


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("batch_size", [16, 20])
def test_steps_from_a_record_are_those_of_python(name, batch_size, told):
    method = small(name)
    assert same(fitted(method, batch_size=batch_size), fitted(method, "eager", batch_size=batch_size))
    assert "not re" not in told.text


@pytest.mark.parametrize(
    "settings",
    [
        {"bootstrap": True},
        {"anchored": True},
        {"adversarial": 0.1},
        {"clip": 0.1, "optimizer": "sgd"},
        {"schedule": "cosine", "optimizer": "adamw"},
    ],
    ids=str,
)
def test_whatever_the_settings(settings, told):
    method = be.DeepEnsemble(num_members=3, **settings)
    assert same(fitted(method), fitted(method, "eager"))
    assert "not re" not in told.text


@pytest.mark.parametrize("kind", [be.Repulsive, be.Stein])
@pytest.mark.parametrize(
    "settings",
    [
        {"space": "function"},
        {"space": "function", "function_prior": False, "anneal": "linear"},
        {"anneal": "tanh", "driving": 0.5, "measure_every": 3},
        {"calibrate": False, "kernel": "laplace"},
    ],
    ids=str,
)
def test_members_that_feel_one_another_too(kind, settings, told):
    method = kind(num_members=4, **settings)
    assert same(fitted(method, make=small_mlp, epochs=6), fitted(method, "eager", small_mlp, epochs=6))
    assert "not re" not in told.text


def test_steps_on_which_a_prior_over_functions_acts_are_recorded_too(monkeypatch):
    taken, step = [], be.Repulsive.step

    def noted(self, state, batch, context):
        taken.append(context.clock.step)
        return step(self, state, batch, context)

    method = be.Repulsive(num_members=3, space="function", prior_every=4)
    eager = fitted(method, "eager", small_mlp, epochs=12)
    monkeypatch.setattr(be.Repulsive, "step", noted)
    assert same(fitted(method, make=small_mlp, epochs=12), eager)
    # The first step is on its own; of the others with the prior, the first is recorded, the 1st, 2nd, 4th ... checked.
    assert [number for number in taken if number % 4 == 0] == [0, 4, 4, 8, 16, 32]


def test_what_a_recorded_step_stumbles_over_is_told_in_the_words_of_the_method():
    method = be.Repulsive(num_members=3, learning_rate=1e30, optimizer="sgd")
    with pytest.raises(TrainingError, match="the weights of member 0 are not finite any more at step"):
        fitted(method, make=small_mlp)


@pytest.mark.parametrize(("way", "wanted"), [("traced", 7), ("compiled", 6)])
def test_most_steps_are_taken_from_the_record(way, wanted, monkeypatch):
    monkeypatch.setattr(steps, "compiled", replayed)
    taken = 0
    step = be.DeepEnsemble.step

    def counted(*arguments):
        nonlocal taken
        taken += 1
        return step(*arguments)

    monkeypatch.setattr(be.DeepEnsemble, "step", counted)
    # 60 steps: recorded once, checked at 1, 2, 4, 8, 16 and 32; a compiled one at first by what it was recorded from.
    fitted(be.DeepEnsemble(num_members=2), way, epochs=20)
    assert taken == wanted


def test_a_first_step_that_compiled_comes_to_other_numbers_ends_the_run(monkeypatch):
    def wrong(record):
        right = replayed(record)
        return lambda *tensors: tuple(one + 1 for one in right(*tensors))

    monkeypatch.setattr(steps, "compiled", wrong)
    with pytest.raises(TrainingError, match="step 1 of DeepEnsemble came to other numbers than its record"):
        fitted(be.DeepEnsemble(num_members=2), "compiled")


def test_short_runs_are_not_recorded(monkeypatch):
    monkeypatch.setattr(steps, "_FEWEST_STEPS", 13)
    monkeypatch.setattr(steps, "Recorder", lambda *_: pytest.fail("a step was recorded"))
    fitted(be.DeepEnsemble(num_members=2))  # 12 steps
    with pytest.raises(pytest.fail.Exception, match="a step was recorded"):
        fitted(be.DeepEnsemble(num_members=2), epochs=5)


class Hooked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2))
        self.calls = 0
        self.register_forward_hook(self.count)

    def count(self, *_) -> None:
        self.calls += 1


@pytest.mark.parametrize(
    ("make", "words"),
    [(dropout_mlp, "draws random numbers"), (Hooked, "has hooks, which a record would not call")],
)
def test_networks_that_cannot_be_recorded_are_run_as_ever(make, words, told):
    assert same(
        fitted(be.DeepEnsemble(num_members=2), make=make), fitted(be.DeepEnsemble(num_members=2), "eager", make)
    )
    assert f"steps are not recorded: the network {words}" in told.text


class Counting(nn.Module):
    """A network that goes by a count of its calls: another way from the given one on."""

    changes_at = 0
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += self.training
        return self.layer(x) * (1.0 if Counting.calls < Counting.changes_at else 0.5)


def test_a_network_that_goes_by_something_else_than_its_inputs_is_not_repeated(monkeypatch):
    monkeypatch.setattr(Counting, "changes_at", 10**9)
    fitted(be.DeepEnsemble(num_members=2), make=Counting, epochs=20)
    seldom = Counting.calls  # the record is made and checked
    monkeypatch.setattr(Counting, "calls", 0)
    monkeypatch.setattr(Counting, "changes_at", seldom - 2)
    with pytest.raises(TrainingError, match="such as a count of its calls"):
        fitted(be.DeepEnsemble(num_members=2), make=Counting, epochs=20)


def test_a_method_with_a_step_of_its_own_is_recorded_only_if_it_says_so():
    class Own(be.DeepEnsemble):
        def step(self, state, batch, context):
            return super().step(state, batch, context)

    class Said(Own):
        def kind_of_step(self, context):
            return "mine"

    assert Own().kind_of_step(None) is None
    assert Said().kind_of_step(None) == "mine"
    assert be.DeepEnsemble().kind_of_step(None) == ""


def test_hooks_on_all_modules_count_too(told):
    seen: list[int] = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        fitted(be.DeepEnsemble(num_members=2), epochs=8)
    finally:
        handle.remove()
    assert len(seen) >= 24
    assert "has hooks, which a record would not call" in told.text


@pytest.mark.parametrize(
    ("method", "make", "words"),
    [
        (be.DeepEnsemble(num_members=2), dropout_mlp, "the network draws random numbers"),
        (be.CyclicalSGMCMC(num_members=2, cycles=1), small_mlp, "no two steps of CyclicalSGMCMC are alike"),
    ],
)
def test_what_was_to_be_compiled_and_cannot_be_is_told_and_is_what_the_run_says(method, make, words, told):
    found = fitted(method, "compiled", make)
    assert found.executor == be.Vmap(steps="eager")
    assert [one.levelname for one in told.records if words in one.message] == ["WARNING"]


def test_large_members_are_not_recorded(monkeypatch, told):
    monkeypatch.setitem(steps._MOST_BYTES, "traced", 100)
    monkeypatch.setattr(steps, "Recorder", lambda *_: pytest.fail("a step was tried on a copy"))
    assert same(fitted(be.DeepEnsemble(num_members=2)), fitted(be.DeepEnsemble(num_members=2), "eager"))
    assert "too large to gain from it" in told.text


def test_in_a_loop_too(told):
    task, method = be.Task(norm_mlp, be.Categorical()), be.DeepEnsemble(num_members=2)
    one, other = (quick_fit(task, table(), method, executor=be.Loop(steps=way)) for way in ("eager", "traced"))
    assert same(one, other)
    assert "not re" not in told.text


def test_a_run_that_cannot_be_compiled_is_traced_and_says_so(monkeypatch, tmp_path, told):
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    method = make_method("deep_ensemble", num_members=2)
    found = fitted(method, "compiled")
    assert found.executor.steps == "traced"
    assert "steps are traced, not compiled: there is no C++ compiler" in told.text
    assert same(found, fitted(method, "eager"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_steps_agree_to_rounding_resume_to_the_same_bits_and_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path / "kept"))
    method = be.DeepEnsemble(num_members=2, learning_rate=0.01)
    whole = fitted(method, "compiled", small_mlp)
    for one, other in zip(leaves(whole), leaves(fitted(method, "eager", small_mlp)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    monkeypatch.setattr(compiled, "_compile", lambda *_: pytest.fail("it was compiled again"))
    for epochs in (1, 4):
        resumed = fitted(method, "compiled", small_mlp, epochs=epochs, checkpoint=tmp_path / "run", resume=True)
    assert resumed.executor == whole.executor == be.Vmap(steps="compiled")
    assert same(resumed, whole)

    def refused(*_) -> None:
        raise ExecutionError("there is no C++ compiler")

    monkeypatch.setattr(compiled, "_compile", refused)
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path / "empty"))
    with pytest.raises(ExecutionError, match="steps of this run are compiled, but one cannot be: there is no C"):
        fitted(method, "compiled", small_mlp, epochs=6, checkpoint=tmp_path / "run", resume=True)


@pytest.fixture
def by_few(monkeypatch) -> list[int]:
    """Members count as large; the numbers of members that copies are made of."""
    monkeypatch.setattr(steps, "_LARGE_BYTES", 0)
    copied, clone = list[int](), State.clone

    def noted(state: State) -> State:
        copied.append(state.members.num_members)
        return clone(state)

    monkeypatch.setattr(State, "clone", noted)
    return copied


@pytest.mark.parametrize(
    "settings",
    [
        {"own_order": True},
        {"bootstrap": True},
        {"anchored": True},
        {"adversarial": 0.1},
        {"clip": 0.1, "optimizer": "sgd"},
        {"schedule": "cosine", "optimizer": "adamw"},
        {"optimizer": "lion", "learning_rate": (1e-4, 1e-3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [small_mlp, norm_mlp])
def test_large_members_are_recorded_without_a_copy_of_them(settings, make, by_few, told, monkeypatch):
    method = be.DeepEnsemble(num_members=6, **settings)
    monkeypatch.setattr("bayesemble.execute.programs.workspace._LARGE", 1)
    options = {"epochs": 20, "checkpoint": None}
    found = fitted(method, make=make, **options)
    assert set(by_few) <= {1, 2, 3}
    assert same(found, fitted(method, "eager", make, **options))
    if "learning_rate" not in settings:  # rates of their own are as many operations as members
        assert "not re" not in told.text


def test_of_large_members_others_are_looked_at_each_time(by_few, monkeypatch):
    seen, few = list[int](), steps.SomeMembers.few
    monkeypatch.setattr(steps.SomeMembers, "few", lambda *given: seen.append((found := few(*given)).start) or found)
    fitted(be.DeepEnsemble(num_members=6), make=small_mlp, epochs=20)  # 60 steps
    assert seen == [1, 2, 3, 4, 5, 0]


def test_what_large_members_come_to_is_compared(by_few, monkeypatch):
    def wrong(record, workspace=None):
        right = replayed(record, workspace)

        def replay(*tensors: Tensor) -> tuple[Tensor, ...]:
            found = right(*tensors)
            if workspace is not None:
                tensors[0][:, 0] += 1e-2
            return found

        return replay

    monkeypatch.setattr(steps, "replayed", wrong)
    with pytest.raises(TrainingError, match="step 1 of DeepEnsemble came to other numbers than its record"):
        fitted(be.DeepEnsemble(num_members=6), make=small_mlp)


class Averaged(nn.Module):
    """A network that takes the mean of its inputs to numpy and back, which no record can see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - torch.as_tensor(x.detach().numpy().mean(0)))


def test_a_record_of_large_members_that_goes_by_its_rows_is_not_repeated(by_few, told, monkeypatch):
    method = be.DeepEnsemble(num_members=4)
    found, expected = (fitted(method, way, Averaged) for way in ("traced", "eager"))
    assert same(found, expected)
    assert "it differs from its record when rows are others" in told.text


def test_large_members_that_go_by_something_else_later_end_the_run(by_few, monkeypatch):
    method = be.DeepEnsemble(num_members=4)
    monkeypatch.setattr(Counting, "changes_at", 10**9)
    monkeypatch.setattr(Counting, "calls", 0)
    fitted(method, make=Counting, epochs=20)
    seldom = Counting.calls
    monkeypatch.setattr(Counting, "calls", 0)
    monkeypatch.setattr(Counting, "changes_at", seldom - 2)
    with pytest.raises(TrainingError, match="such as a count of its calls"):
        fitted(method, make=Counting, epochs=20)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_large_members_are_compiled_without_a_copy_too(by_few, monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path))
    method = be.DeepEnsemble(num_members=6)
    found = fitted(method, "compiled", small_mlp)
    assert set(by_few) <= {1, 2}
    assert found.executor.steps == "compiled"
    for one, other in zip(leaves(found), leaves(fitted(method, "eager", small_mlp)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
