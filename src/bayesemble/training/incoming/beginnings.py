"""Where members begin if not with the weights of the model, and what may be done without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.seeds import members_of
from bayesemble.core.settings import require
from bayesemble.methods import Method
from bayesemble.task.starts.checks import equal_members
from bayesemble.task.task import BoundTask
from bayesemble.training.incoming.starts import as_starts


def begin(task: BoundTask, method: Method, seed: int, start: Members | Sequence[Any] | None, epochs: int) -> State:
    """The state that the first step starts from; without epochs, the one that training would have ended with.

    A method that makes something of the way that training takes gets it from networks that are given as its stations.
    """
    if epochs:
        return method.init(_placed(task, method, start, seed), seed)
    if start is None or not method.needs_training:
        _check_untrained(task, method, start)
        state = method.init(_placed(task, method, start, seed), seed)
        require(
            not equal_members(state.members),
            f"epochs=0 leaves members as they begin, but {state.members.num_members} of them are equal; one is enough, "
            "or begin apart by Task(..., jitter=0.1)",
        )
        return state
    if type(method).passed_through is Method.passed_through:
        raise SettingError(_needs_training(method))
    stations = as_starts(start, task)
    require(method.num_members == 1, f"networks along one training are one member, the method has {method.num_members}")
    state = method.init(replace(task, starts=stations[-1:]), seed)
    found = method.passed_through(state, [params for params, _ in stations])
    if found is None:
        raise SettingError(_needs_training(method))
    return found


def _placed(task: BoundTask, method: Method, start: Members | Sequence[Any] | None, seed: int) -> BoundTask:
    """The task whose members begin with these networks, by their numbers."""
    if start is None:
        return task
    starts, (_, wanted) = as_starts(start, task), members_of(seed, method.num_members)
    require(
        len(starts) == wanted,
        f"start has {len(starts)} networks, but the method has num_members={wanted}; make them as many, for example by "
        f"ensemble.keep(range({wanted}))" + ("" if len(starts) > wanted else f", or num_members={len(starts)}"),
    )
    return replace(task, starts=starts)


def _check_untrained(task: BoundTask, method: Method, start: object) -> None:
    if method.needs_training:
        raise SettingError(_needs_training(method))
    if start is None and task.start != "given":
        raise SettingError(
            'epochs=0 trains nothing; say Task(..., start="given") if the network, or what the factory makes, is '
            "trained already"
        )


def _needs_training(method: Method) -> str:
    along = type(method).passed_through is not Method.passed_through
    how = "; pass networks along a training as start=[...]" if along else ""
    return f"{type(method).__name__} learns what it predicts with by training, for which epochs=0 is too few{how}"


def refuse_same_batches(rows: Any, steps: int) -> None:
    """Refuse an order of the rows for each member where all rows come at once: nothing would follow but rounding."""
    if rows is None or steps > 1:
        return
    ordered = rows.sort(1).values
    if bool((ordered == ordered[0]).all()):
        raise SettingError(
            "own_order=True has members see other batches, but an epoch is a single one; say batch_size=..., or leave "
            "own_order out"
        )
