"""What a callback is, and who calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.types import Info
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.run_folders.checkpoint import Row

_EVENTS = ("on_start", "on_step", "on_epoch", "on_end")
OnEpoch = Callable[[State, Row], bool | None]


class Callback:
    """What wants to know of training. All functions are optional; an object of any class that has one of them will do.

    They may be those of the class or be put into the object, as by `self.on_step = function`, also later.
    `on_step` and `on_epoch` stop training by returning True: after that step, or that epoch. What they are given is
    live: clone what is to be kept. An error that one raises ends `fit`; the last checkpoint stays. A
    `KeyboardInterrupt` counts as Ctrl-C: what there is is handed back.
    """

    def on_start(self, ensemble: Ensemble) -> None:
        """Before the first step of this call of `fit`; a run that is resumed has a history already."""

    def on_step(self, step: int, info: Info) -> bool | None:
        """After each step, the number of which counts from 1 through all epochs; `info["loss"]` is `(member,)`.

        Training that ends here ends the epoch: its row in the history is the mean of the steps that it had.
        """

    def on_epoch(self, state: State, row: Row) -> bool | None:
        """After each epoch, with its row of the history, which has the validation loss, if there is any."""

    def on_end(self, ensemble: Ensemble) -> None:
        """After the last step of this call of `fit`, also if it was stopped or interrupted, but not after an error.

        The method has yet to complete what was trained: see `Method.finish`.
        """


class Callbacks:
    """All callbacks of a run; only what they have when something happens is called, so that it may change."""

    def __init__(self, given: Sequence[Any] = (), on_epoch: OnEpoch | None = None) -> None:
        for one in given:
            _check(one)
        self._all = (*given, *([] if on_epoch is None else [SimpleNamespace(on_epoch=on_epoch)]))

    @property
    def steps(self) -> list[Callable[..., Any]]:
        """What is called after every step; empty for most runs."""
        return self._functions("on_step")

    def start(self, ensemble: Ensemble) -> None:
        """Training is about to begin."""
        _any(self._functions("on_start"), ensemble)

    def step(self, step: int, info: Info) -> bool:
        """Whether training stops after this step."""
        return _any(self.steps, step, info)

    def epoch(self, state: State, row: Row) -> bool:
        """Whether training stops after this epoch."""
        return _any(self._functions("on_epoch"), state, row)

    def end(self, ensemble: Ensemble) -> None:
        """Training is over."""
        _any(self._functions("on_end"), ensemble)

    def _functions(self, event: str) -> list[Callable[..., Any]]:
        return [getattr(one, event) for one in self._all if _has(one, event)]


def _any(functions: list[Callable[..., Any]], *arguments: Any) -> bool:
    """Call all of them, and say whether one returned True."""
    answers = [function(*arguments) for function in functions]
    return any(answers)


def _has(one: Any, event: str) -> bool:
    """Whether an object has a function of its own for an event, be it of its class or put into the object."""
    own = getattr(one, event, None)
    return callable(own) and getattr(own, "__func__", own) is not getattr(Callback, event)


def _check(one: Any) -> None:
    if isinstance(one, type):
        raise SettingError(f"a callback is an object, got the class {one.__name__}; call it")
    for event in _EVENTS:
        own = getattr(one, event, None)
        if own is not None and not callable(own):
            raise SettingError(f"{event} of a callback is a function, got {own!r}")
    if not isinstance(one, Callback) and not any(_has(one, event) for event in _EVENTS):
        hint = "; a function of state and row goes to on_epoch=..." if callable(one) else ""
        raise SettingError(f"a callback has on_start, on_step, on_epoch or on_end, got {one!r}{hint}")


def figures(row: Row) -> dict[str, float]:
    """The numbers in a row of the history, flat: those of members as `loss/mean`, `loss/0`, `loss/1` and so on.

    The mean is over members whose number is finite: one that was left behind has none.
    """
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, int | float):
            found[name] = value
        elif isinstance(value, list) and all(isinstance(one, int | float) for one in value):
            finite = [one for one in value if math.isfinite(one)]
            found[f"{name}/mean"] = sum(finite) / len(finite) if finite else math.nan
            found |= {f"{name}/{member}": one for member, one in enumerate(value)}
    return found
