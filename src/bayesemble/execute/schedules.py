"""Learning-rate schedules: pure functions of the share of training that is done, in [0, 1)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require, setting, validate


class Schedule(ABC):
    """A function of the share of training that is done; one of your own derives from this class."""

    @abstractmethod
    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate throughout."""

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        return 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 to `floor`, after a linear warm-up.

    factor = floor + (1 - floor) * (1 + cos(pi t)) / 2

    Reference: Loshchilov & Hutter (2017).
    """

    warmup: float = setting(0.0, "share of training over which the rate first rises linearly from 0", within="[0, 1)")
    floor: float = setting(0.0, "the factor at the end")

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        if progress < self.warmup:
            return progress / self.warmup
        done = (progress - self.warmup) / (1 - self.warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise from 0 over the first share of training, then another schedule over the rest of it."""

    share: float = setting(0.1, "share of training over which the rate rises", within="(0, 1)")
    then: "ScheduleLike" = setting("constant", "the schedule, or its name, that comes after")

    def __post_init__(self) -> None:
        validate(self)
        resolve(self.then)

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        if progress < self.share:
            return progress / self.share
        return resolve(self.then)((progress - self.share) / (1 - self.share))


@dataclass(frozen=True)
class Step(Schedule):
    """The rate is multiplied by `factor` at each of the given shares of training."""

    at: tuple[float, ...] = setting((0.5, 0.75), "shares of training at which the rate drops", within="(0, 1)")
    factor: float = setting(0.1, "what the rate is multiplied by at each drop")

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        return self.factor ** sum(progress >= share for share in self.at)


@dataclass(frozen=True)
class Exponential(Schedule):
    """The rate falls by the same share in every step, from 1 to `final`.

    factor = final ** t
    """

    final: float = setting(0.01, "the factor at the end", above=0)

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        return self.final**progress


@dataclass(frozen=True)
class Cyclical(Schedule):
    """A cosine from 1 to 0, started anew `cycles` times.

    factor = (1 + cos(pi * (cycles * t mod 1))) / 2

    Reference: Huang et al. (2017); Zhang et al. (2020).
    """

    cycles: int = setting(4, "how many times the rate starts anew", least=1)

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, progress: float) -> float:
        """Give the factor on the learning rate."""
        return (1 + math.cos(math.pi * ((self.cycles * progress) % 1.0))) / 2


ScheduleLike = str | Schedule | Callable[[float], float]
"""A schedule, its name, or a function of the share that is done."""

SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "step": Step,
    "exponential": Exponential,
    "cyclical": Cyclical,
    "warmup": Warmup,
}


def resolve(schedule: ScheduleLike) -> Callable[[float], float]:
    """Turn the name of a schedule into the schedule with its default settings."""
    if not isinstance(schedule, str):
        return schedule
    return _named(schedule)


@cache
def _named(schedule: str) -> Schedule:
    require(schedule in SCHEDULES, f"unknown schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule]()


def check(schedule: ScheduleLike) -> None:
    """Refuse what gives no number for the start of training, such as a scheduler of torch, which holds an optimiser."""
    function = resolve(schedule)
    try:
        float(function(0.0))
    except Exception as error:  # whatever was given may go wrong in its own way
        raise SettingError(
            "a schedule is a name, one of be.schedules, or a function of the share of training that is done, in "
            f"[0, 1), which gives the factor on the learning rate; {schedule!r} gave none for 0.0: {error}. For a "
            "scheduler of torch there are be.schedules.Step, Exponential, Cosine and Cyclical"
        ) from error
