import math
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.execute import schedules
from bayesemble.execute.schedules import Constant, Cosine, Cyclical, Exponential, Step, Warmup, resolve


def torch_rates(make_scheduler, total):
    """Learning rates that a scheduler of torch gives to an optimiser of rate 1, step by step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates = make_scheduler(optimizer), []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def rates_of(schedule, total):
    return [schedule(step / total) for step in range(total)]


def test_constant_is_1_throughout():
    assert rates_of(Constant(), 10) == [1.0] * 10


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_the_cosine_annealing_of_torch(floor):
    expected = torch_rates(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=40, eta_min=floor), 40)
    assert rates_of(Cosine(floor=floor), 40) == pytest.approx(expected, abs=1e-12)


def test_cosine_runs_from_1_through_the_middle_to_its_floor():
    schedule = Cosine(floor=0.2)
    assert [schedule(0.0), schedule(0.5), schedule(1.0)] == pytest.approx([1.0, 0.6, 0.2])


def test_warm_up_rises_linearly_from_0_and_meets_the_cosine_at_1():
    schedule = Cosine(warmup=0.25)
    assert [schedule(share) for share in (0.0, 0.0625, 0.125, 0.25)] == pytest.approx([0.0, 0.25, 0.5, 1.0])
    assert schedule(0.25 - 1e-9) == pytest.approx(schedule(0.25), abs=1e-6)
    assert schedule(0.25 + 0.75 / 2) == pytest.approx(0.5)


@pytest.mark.parametrize("final", [0.01, 0.5])
def test_exponential_is_the_exponential_schedule_of_torch(final):
    expected = torch_rates(lambda o: lr_scheduler.ExponentialLR(o, gamma=final ** (1 / 40)), 40)
    assert rates_of(Exponential(final), 40) == pytest.approx(expected, rel=1e-12)
    assert schedules.resolve("exponential")(1.0) == 0.01
    with pytest.raises(SettingError, match="final is a number above 0, got 0"):
        Exponential(final=0.0)


def test_step_is_the_multi_step_schedule_of_torch():
    expected = torch_rates(lambda o: lr_scheduler.MultiStepLR(o, milestones=[8, 12, 14], gamma=0.3), 16)
    assert rates_of(Step((0.5, 0.75, 0.875), 0.3), 16) == pytest.approx(expected)


def test_cyclical_is_the_cosine_with_warm_restarts_of_torch():
    expected = torch_rates(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=8), 32)
    assert rates_of(Cyclical(4), 32) == pytest.approx(expected, abs=1e-12)


def test_one_cycle_is_a_cosine():
    assert rates_of(Cyclical(1), 13) == pytest.approx(rates_of(Cosine(), 13))


@pytest.mark.parametrize("schedule", [Constant(), Cosine(0.1, 0.01), Step(), Cyclical(3)], ids=repr)
def test_the_factor_stays_between_0_and_1(schedule):
    assert all(0 <= rate <= 1 and math.isfinite(rate) for rate in rates_of(schedule, 101))


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_name_stands_for_the_schedule_with_its_defaults(name):
    assert schedules.resolve(name) == schedules.SCHEDULES[name]()


def test_a_schedule_stands_for_itself():
    schedule = Cosine(0.3)
    assert schedules.resolve(schedule) is schedule


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="unknown schedule 'linear'; choose one of constant, cosine"):
        schedules.resolve("linear")


@pytest.mark.parametrize("warmup", [-0.1, 1.0, math.nan])
def test_warm_up_outside_training_is_refused(warmup):
    with pytest.raises(SettingError, match=rf"warmup is a number in \[0, 1\), got {warmup}"):
        Cosine(warmup=warmup)


@pytest.mark.parametrize("at", [(0.0,), (0.5, 1.0), (-1.0,)])
def test_drops_outside_training_are_refused(at):
    with pytest.raises(SettingError, match=r"at is a tuple of numbers in \(0, 1\), got \("):
        Step(at=at)


def test_no_cycles_are_refused():
    with pytest.raises(SettingError, match="cycles is a whole number from 1, got 0"):
        Cyclical(0)


def test_a_warm_up_rises_to_the_schedule_that_comes_after():
    warmup = Warmup(0.2, then=Cosine(floor=0.1))
    assert [warmup(progress) for progress in (0.0, 0.05, 0.1, 0.15)] == pytest.approx([0, 0.25, 0.5, 0.75])
    assert [warmup(0.2 + 0.8 * t) for t in (0.0, 0.3, 0.9)] == pytest.approx(
        [Cosine(floor=0.1)(t) for t in (0, 0.3, 0.9)]
    )
    assert [warmup(progress) for progress in (0.1, 0.6)] == pytest.approx(
        [Cosine(warmup=0.2, floor=0.1)(progress) for progress in (0.1, 0.6)]
    )
    assert resolve("warmup")(0.05) == 0.5
    assert resolve("warmup")(0.7) == 1


def test_a_warm_up_to_nothing_known_is_refused():
    with pytest.raises(SettingError, match="unknown schedule 'linear'"):
        Warmup(0.1, then="linear")
    with pytest.raises(SettingError, match=r"share is a number in \(0, 1\), got 0"):
        Warmup(0.0)


@pytest.mark.parametrize(
    "schedule",
    [lr_scheduler.StepLR, partial(lr_scheduler.StepLR, step_size=3), lambda progress: None, lambda: 1.0],
)
def test_what_gives_no_factor_is_refused_before_training(schedule):
    with pytest.raises(SettingError, match=r"gave none for 0\.0: .* there are be\.schedules\.Step"):
        be.DeepEnsemble(schedule=schedule)


@pytest.mark.parametrize(
    "schedule", ["cosine", Step(), lambda progress: 1 - progress, lambda progress: torch.tensor(0.5)]
)
def test_functions_of_the_share_are_taken(schedule):
    assert be.DeepEnsemble(schedule=schedule).schedule is schedule
