import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.training.afterwards.calibration import Calibration
from helpers import quick_fit, table


def linear() -> nn.Module:
    return nn.Linear(4, 2)


TASK = be.Task(linear, be.Categorical())
METHOD = be.DeepEnsemble(num_members=6)


def part(start: int, stop: int, task: be.Task = TASK, method: be.Method = METHOD, **options) -> be.Ensemble:
    return quick_fit(task, table(), method, members=range(start, stop), **options)


@pytest.fixture(scope="module")
def first() -> be.Ensemble:
    return part(0, 2)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: part(2, 4, be.Task(linear, be.Categorical(), temperature=0.5)), "have other tasks"),
        (lambda: part(2, 4, method=be.DeepEnsemble(num_members=6, learning_rate=0.1)), "have other methods"),
        (lambda: part(2, 4, method=be.DeepEnsemble(num_members=7)), "have other methods"),
        (lambda: part(2, 4, seed=1), "have other seeds: 0 of members 0 to 1 of 6, 1 of members 2 to 3 of 6"),
        (lambda: part(2, 4, epochs=3), "have other numbers of epochs"),
        (lambda: part(1, 3), "member 1 is there twice"),
        (lambda: part(3, 4), r"train members=range\(2, 3\) too"),
        (lambda: quick_fit(TASK, table(), METHOD), "what fit.*gave, with its numbers"),
        (lambda: part(2, 4).keep([0]), "what fit.*gave, with its numbers"),
        (lambda: replace(part(2, 4), method=be.MCDropout(num_members=2)), "another method than they have now"),
        (lambda: part(2, 4).reweight([1, 2]), "weigh differently; reweight the whole"),
        (lambda: replace(part(2, 4), calibration=Calibration()), "calibrate what concat gives instead"),
    ],
)
def test_what_does_not_belong_together_is_refused(first, other, words):
    with pytest.raises(SettingError, match=words):
        be.Ensemble.concat([first, other()])
    with pytest.raises(SettingError, match="at least one"):
        be.Ensemble.concat([])


def test_parts_of_parts(first):
    whole = quick_fit(TASK, table(), METHOD)
    some = be.Ensemble.concat([part(2, 4), first])
    assert some.part.numbers == range(4)
    assert some.num_members == some.method.num_members == 4
    joined = be.Ensemble.concat([part(4, 6), some])
    assert torch.equal(joined.state.members.params["weight"], whole.state.members.params["weight"])
    assert torch.equal(joined.state.members.weights, whole.state.members.weights)
    assert joined.history[-1]["loss"] == whole.history[-1]["loss"]


def test_a_member_that_was_left_behind_stays_so():
    absurd = be.DeepEnsemble(num_members=4, learning_rate=[0.1, 0.1, 1e38, 0.1], optimizer="sgd", momentum=0.0)
    with pytest.warns(UserWarning, match="no longer finite"):
        whole = quick_fit(TASK, table(), absurd, epochs=8, on_nonfinite="drop")
    with pytest.warns(UserWarning, match="no longer finite"):
        parts = [part(a, b, method=absurd, epochs=8, on_nonfinite="drop") for a, b in ((0, 1), (1, 4))]
    joined = be.Ensemble.concat(parts)
    assert torch.equal(joined.state.members.weights, whole.state.members.weights)
    assert [row.get("dropped") for row in joined.history] == [row.get("dropped") for row in whole.history]
    assert math.isnan(joined.history[-1]["loss"][2])
