"""How many epochs each method gets, so that all cost the same.

An ensemble of M networks costs M times as much as one: it should be compared with a single one trained M times longer.

    none       the same epochs for each member:  E
    steps      the same gradients of one network on one batch:  E M / (gradients of the method in a step)
    seconds    the same time, that of a deep ensemble of M members and E epochs, measured in short trial runs
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bayesemble.core.errors import CheckpointError
from bayesemble.core.files import read_json, understood
from bayesemble.methods import Method
from bayesemble.task.task import Task
from bayesemble.training.fit import fit

BUDGETS = ("steps", "seconds")
_TRIAL_EPOCHS = 4  # the first of them warms up and is not counted


def epochs_for_steps(method: Method, epochs: int, members: int) -> int:
    """Epochs in which a method takes as many gradients as `members` networks do in `epochs`; at least one."""
    return max(1, round(epochs * members / method.gradients_per_step))


def gradient_evaluations(history: list[dict[str, Any]]) -> int:
    """Gradients of one network on one batch, over a whole run; what a method does after training is not counted.

    Where all rows are one batch, each of its gradients counts once, too.
    """
    return sum(int(row["gradients"]) for row in history)


@dataclass(frozen=True)
class Pace:
    """Seconds of a method: for each epoch, and once at the end."""

    epoch: float
    end: float = 0.0

    def seconds(self, epochs: int) -> float:
        """Seconds that a run of this many epochs takes."""
        return epochs * self.epoch + self.end

    def epochs(self, seconds: float) -> int:
        """How many epochs fit into this many seconds; at least one."""
        return max(1, round((seconds - self.end) / self.epoch))


def measure_pace(
    task: Task,
    method: Method,
    data: Any,
    batch_size: int | None,
    clock: Callable[[], float] = time.process_time,
    **how: Any,
) -> Pace:
    """Time a short run that is thrown away, by the processor's time, as the machine may have other things to do."""
    moments = [clock()]

    def note(*_: Any) -> None:
        moments.append(clock())

    fit(
        task,
        method,
        data,
        epochs=_TRIAL_EPOCHS,
        batch_size=None if method.full_batch else batch_size,
        progress=False,
        on_epoch=note,
        **how,
    )
    end = clock() - moments[-1]
    later = [after - before for before, after in pairwise(moments[1:])]
    return Pace(max(min(later), 1e-6), end)


def read_plan(path: Path, same: dict[str, Any]) -> dict[str, Any]:
    """The epochs by label that an earlier comparison of the same settings was timed for, or an empty plan."""
    if not path.is_file():
        return {"settings": same, "seconds": None, "epochs": {}}
    plan = read_json(path)
    with understood(path, "does not hold the plan of a comparison, delete it"):
        whole = all(isinstance(epochs, int) and epochs >= 1 for epochs in plan["epochs"].values())
        if not (whole and isinstance(plan["seconds"], float)):
            raise ValueError("epochs and seconds are needed")
        differing = [name for name, value in same.items() if plan["settings"][name] != value]
    if differing:
        raise CheckpointError(
            f"{path} is the plan of another comparison: {differing[0]} was {plan['settings'][differing[0]]}, "
            f"now it is {same[differing[0]]}; choose another folder for the results, or delete this one"
        )
    return plan
