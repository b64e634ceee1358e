"""Programs for one member serve all: the gradients of the loop, and buffers that change as they do there."""

import pytest
import torch
from torch import Tensor

import bayesemble as be
from bayesemble.core.errors import TrainingError
from bayesemble.core.members import State
from bayesemble.core.types import Batch
from bayesemble.execute.programs import members as module
from bayesemble.execute.programs.members import CompiledLoop
from bayesemble.execute.programs.program import replayed
from helpers import images, norm_convnet


@pytest.fixture(scope="module")
def case() -> tuple[be.Task, State, Batch]:
    x, y = images(12)
    task = be.Task(norm_convnet, be.Categorical()).bind(len(x), x)
    return task, State(task.new_members(3, seed=0)), Batch(x, y)


def outcome(executor: be.Loop, task, state: State, batch: Batch, function=None, seeds=None) -> list[Tensor]:
    """Values, gradients and buffers after three steps' worth of gradients."""
    members, found = executor.arrange(state.clone()).members, []
    for _ in range(3):
        value, slopes = executor.gradients(function or task.mean_log_likelihood, members, batch, seeds)
        found += [value, *slopes.values()]
    return [*found, *members.buffers.values()]


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_are_those_of_the_loop_and_one_record_serves_all_members(case, channels_last, monkeypatch):
    executor = CompiledLoop(channels_last=channels_last, make=replayed)
    expected, found = (outcome(one, *case) for one in (be.Loop(channels_last=channels_last), executor))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    (program,) = executor.programs.values()
    assert program.uses == 9


def test_functions_that_are_made_anew_and_random_ones_are_run_as_ever_and_told_of(case, caplog):
    task = case[0]
    executor = CompiledLoop(make=replayed)

    def other(*arguments) -> Tensor:
        return 2 * task.mean_log_likelihood(*arguments)

    for function, seeds in ((other, None), (None, [1, 2, 3])):
        expected, found = (outcome(one, *case, function, seeds) for one in (be.Loop(), executor))
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert not any(executor.programs.values())
    assert [one.message for one in caplog.records] == [
        "gradients are taken in Python, not compiled: what a member is asked for differs from step to step, as in "
        "adversarial training"
    ]


def test_a_program_that_gives_something_else_is_refused(case):
    def wrong(record):
        replay = replayed(record)
        return lambda *inputs: tuple(2 * one for one in replay(*inputs))

    with pytest.raises(TrainingError, match="differs from that of its compiled form"):
        outcome(CompiledLoop(make=wrong), *case)


def test_what_takes_too_much_memory_is_run_as_ever(case, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    expected, found = (outcome(one, *case) for one in (be.Loop(), CompiledLoop(make=replayed)))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
