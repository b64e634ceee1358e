"""Who trains which members, and what cannot go with that.

Each process trains a method of its own members, whose numbers, seeds and settings are those that they have among all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.core.files import json_text
from bayesemble.core.settings import require
from bayesemble.execute.executor import Executor
from bayesemble.execute.ranks.ranks import Ranks
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.methods.geometry.batch_norm import norm_buffers
from bayesemble.task.adapters.around_shards import AroundShards
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.callbacks.base import Callbacks
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.incoming.parts import Part
from bayesemble.training.over_ranks.spread_ensemble import SpreadEnsemble
from bayesemble.training.over_ranks.states import whole_state
from bayesemble.training.run_folders.due import Every


@dataclass(frozen=True)
class Spread:
    """How the members of a run are spread over processes."""

    team: Team
    whole: Method
    """The method of all members."""
    own: Method
    """The method of those here."""
    inner: str | Executor
    """How those here are run."""
    gathers: bool | str = True
    """Whether the whole ensemble comes out, or its predictions."""
    part: Part | None = None
    """Which members are here, where that is not all."""


def spread(executor: Any, task: Task, method: Method, asked: dict[str, Any]) -> Spread:
    """Share out the members, if the executor is `Ranks`, after a look at whether that can be honoured."""
    wish = Ranks() if isinstance(executor, str) and executor == "ranks" else executor
    if not isinstance(wish, Ranks):
        return Spread(ALONE, method, method, wish)
    require(isinstance(method, Method), f"method must be one such as be.DeepEnsemble(num_members=5), got {method!r}")
    _check_asked(task, method, asked)
    team = wish.team(method.num_members, "gloo" if _on_cpu(asked["device"]) else "nccl")
    if team is ALONE:
        return Spread(ALONE, method, method, wish.inner)
    here = range(team.first, team.first + len(team.own(torch.empty(method.num_members))))
    part = Part(here, method)
    return Spread(team, method, part.own_method, wish.inner, wish.gather, part)


def held_elsewhere(executor: Any) -> bool:
    """Whether another process holds the run folder for this one."""
    wish = Ranks() if isinstance(executor, str) and executor == "ranks" else executor
    return isinstance(wish, Ranks) and not wish.is_first


def _on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


def _check_asked(task: Task, method: Method, asked: dict[str, Any]) -> None:
    """Refuse what processes that hold some of the members cannot do yet."""
    if method.apart is not None:
        raise SettingError(
            f"{method.apart}, so that ranks cannot hold some of them each; use another executor, or a method such as "
            "DeepEnsemble or Repulsive"
        )
    refused = {
        "offload": asked["offload"] is not None,
        "record": asked["record"] is not None,
        "cache": asked["cache"] is not False,
        "start": asked["start"] is not None,
        "members": asked["members"] is not None,
        "on_nonfinite='drop'": asked["on_nonfinite"] == "drop",
        "callbacks with on_step": bool(Callbacks(asked["callbacks"]).steps),
        "checkpoint_every in seconds": Every.parse(asked["checkpoint_every"]).unit == "seconds",
        "validation for a method that draws or keeps its networks": asked["validation"] is not None
        and (method.draws is not None or type(method).networks is not Method.networks),
        "several architectures": task.mixed,
        "a prior that differs by member": task.prior is not None and task.prior.differs_by_member,
    }
    for name, given in refused.items():
        require(not given, f"executor=Ranks() cannot honour {name}: leave it out, or train in one process")


def check_task(task: BoundTask, team: Team, per_member: bool) -> None:
    """Refuse networks and data for which ranks would come to other numbers than one process."""
    if team is ALONE:
        return
    require(not per_member, "executor=Ranks() cannot honour PerMember data yet; train in one process")
    if not team.exchanges:
        return
    if norm_buffers(task.module):
        raise SettingError(
            "Ranks(data=...) shares out the rows of a batch, but batch norm goes by all of them; use data=1, or group "
            "or layer norm"
        )
    if task.stochastic:
        raise SettingError("Ranks(data=...) shares out rows, for which dropout would draw other numbers; use data=1")


def check_sharded(task: BoundTask, spread: Spread | None, checkpoint: Any) -> None:
    """Refuse what a network cannot do that is sharded over processes: all of them run it, and equally often."""
    if not isinstance(task.module, AroundShards):
        return
    words = "a network that is sharded over processes "
    asked = spread is not None and spread.gathers == "predictions" and spread.team is not ALONE
    require(asked, f'{words}trains and predicts on all of them: needs executor=be.Ranks(gather="predictions") in a job')
    if spread is not None and not spread.team.is_even:
        raise SettingError(
            f"{words}runs equally often on each, but some ranks would hold more members than others: "
            f"{spread.whole.num_members} in all; give a num_members that can be shared out evenly"
        )
    drawn = spread is not None and (spread.whole.draws is not None or spread.whole.apart is not None)
    require(not drawn, f"{words}has members that are trained networks: use DeepEnsemble, Repulsive, Stein or Snapshot")
    require(checkpoint is None, f"{words}has no fingerprint of its frozen weights, so checkpoint= cannot be honoured")
    require(not task.train_frozen, f"{words}holds its frozen parts still, so train_frozen=True cannot be honoured")


def agreed(executor: Executor, team: Team) -> Executor:
    """The executor that the first process chose: all ranks take the same, which checkpoints name."""
    if team is ALONE:
        return executor
    said = team.words(json_text(settings.dump(executor), indent=None))
    return settings.parse(json.loads(said[0]), Executor)


def whole_ensemble(ensemble: Ensemble, spread: Spread) -> Ensemble:
    """What comes out of a run: the ensemble of all members on each process, or of those here."""
    if spread.team is ALONE or not spread.gathers:
        return ensemble
    if spread.gathers == "predictions":
        held = {one.name: getattr(ensemble, one.name) for one in fields(Ensemble)}
        return SpreadEnsemble(**held, team=spread.team)
    state = whole_state(ensemble.state, ensemble.method, spread.team)
    return replace(ensemble, method=spread.whole, state=ensemble.executor.arrange(state))
