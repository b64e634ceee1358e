"""When a checkpoint is due: every so many epochs, steps or seconds."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.training.run_folders.standing import Standing

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(epochs?|steps?|s|seconds?)\s*")
_UNITS = {"epoch": "epochs", "step": "steps", "s": "seconds", "second": "seconds"}


@dataclass(frozen=True)
class Every:
    """How much lies between two checkpoints."""

    count: float
    unit: str
    """"epochs", "steps" or "seconds"."""

    @staticmethod
    def parse(given: Any) -> Every:
        """A whole number of epochs, or a text such as "500 steps" or "60 s"."""
        if isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= 1:
            return Every(int(given), "epochs")
        found = _FORM.fullmatch(given) if isinstance(given, str) else None
        if found is not None:
            count, unit = float(found[1]), _UNITS.get(found[2], found[2])
            if count > 0 and (unit == "seconds" or count == int(count)):
                return Every(count, unit)
        raise SettingError(
            'checkpoint_every is a whole number of epochs from 1, or a text such as "500 steps" or "60 s", '
            f"got {given!r}"
        )

    def after_epoch(self, standing: Standing, steps: int) -> bool:
        """Whether epochs or steps are due after an epoch of so many steps; seconds are a `Timer`'s."""
        return (standing.epoch * (steps if self.unit == "steps" else 1)) % self.count == 0

    def timer(self) -> Timer:
        """What looks at the clock during a run."""
        return Timer(self)


EVERY_EPOCH = Every(1, "epochs")


class Timer:
    """Tells, step by step, whether a checkpoint is due."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self._last = time.monotonic()

    @property
    def within_epochs(self) -> bool:
        """Whether one may be due between the steps of an epoch."""
        return self.every.unit != "epochs"

    def after_step(self, step: int) -> bool:
        """Whether one is due after so many steps of the run."""
        return step % self.every.count == 0 if self.every.unit == "steps" else self._elapsed()

    def after_epoch(self, standing: Standing, steps: int) -> bool:
        """Whether one is due after an epoch of so many steps."""
        return self._elapsed() if self.every.unit == "seconds" else self.every.after_epoch(standing, steps)

    def _elapsed(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.every.count:
            return False
        self._last = now
        return True
