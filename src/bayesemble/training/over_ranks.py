"""A run whose members are held by several processes: what cannot go with that, and what they tell one another.

Each process trains a method of its own members, whose numbers, seeds and settings are those that they have among all.
What training tells of members is put together once an epoch, on each process, so that all decide alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import settings
from bayesemble.core.errors import CheckpointError, SettingError, TrainingError
from bayesemble.core.files import json_text
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.core.types import Info, Leaves
from bayesemble.execute.executor import Executor
from bayesemble.execute.ranks.ranks import Ranks
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.methods.geometry.batch_norm import norm_buffers
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.shards import TOLD, Shards
from bayesemble.training.stopping import StopRequest


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
    gathers: bool = True
    """Whether the whole ensemble comes out."""


def spread(executor: Any, task: Task, method: Method, seed: int, asked: dict[str, Any]) -> Spread:
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
    return Spread(team, method, method.of_members(here, seed), wish.inner, wish.gather)


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
        "on_nonfinite='drop'": asked["on_nonfinite"] == "drop",
        "callbacks with on_step": any(hasattr(one, "on_step") for one in asked["callbacks"]),
        "checkpoint_every in seconds": isinstance(asked["checkpoint_every"], str)
        and asked["checkpoint_every"].rstrip().endswith(("s", "second", "seconds"))
        and "step" not in asked["checkpoint_every"]
        and "epoch" not in asked["checkpoint_every"],
        "validation for a method that draws its networks": asked["validation"] is not None and method.draws is not None,
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


def told_by_all(told: Sequence[Info], team: Team) -> list[Info]:
    """What the steps of an epoch told of all members, from what they told of those here."""
    if team is ALONE or not told:
        return list(told)
    names = [name for name in told[0] if name != "gradients"]
    joined = {name: torch.stack([info[name] for info in told]) for name in names}
    found = {name: team.everyone(values.T.contiguous()).T for name, values in joined.items()}
    each: list[Info] = [{name: values[step] for name, values in found.items()} for step in range(len(told))]
    # Steps that take another number of gradients say so, on all processes alike.
    taken = team.summed(torch.tensor([int(info["gradients"].sum()) if "gradients" in info else 0 for info in told]))
    for own, info, count in zip(each, told, taken, strict=True):
        own |= {"gradients": count} if "gradients" in info else {}
    return each


def check_finite_everywhere(found: tuple[int | None, str] | None, team: Team) -> None:
    """Stop on all ranks if one of them has numbers that are not finite, which it says itself."""
    if team.largest(int(found is not None)) and found is None:
        raise TrainingError("a member on another rank is no longer finite, which that rank tells more about")


def agreed(executor: Executor, team: Team) -> Executor:
    """The executor that the first process chose: all ranks take the same, which checkpoints name."""
    if team is ALONE:
        return executor
    said = team.words(json_text(settings.dump(executor), indent=None))
    return settings.parse(json.loads(said[0]), Executor)


class AgreedStop(StopRequest):
    """A request to stop that all processes see at the same moment, at the end of an epoch."""

    def __init__(self, noted: StopRequest, team: Team) -> None:
        super().__init__(noted.signal if team is ALONE else None)
        self._noted, self._team = noted, team

    def agree(self) -> None:
        """Look whether one of the processes was asked to stop."""
        self.signal = self._team.largest(self._noted.signal or 0) or None


def whole_state(state: State, method: Method, team: Team) -> State:
    """The state of all members, on each process, leaf by leaf."""
    axes, members = member_axes(state, method), state.members

    def over(group: str, leaves: Leaves) -> Leaves:
        return {name: team.everyone(leaf) if (group, name) in axes else leaf for name, leaf in leaves.items()}

    groups = {group: over(group, leaves) for group, leaves in state.groups().items()}
    weights = team.everyone(members.weights * members.num_members) / team.total(members.num_members)
    whole = Members(groups["params"], groups["buffers"], weights, members.shared)
    _check_common(state, axes, team)
    return State(whole, {slot: groups[slot] for slot in state.slots})


def member_axes(state: State, method: Method) -> set[tuple[str, str]]:
    """Group and name of the leaves that have a member axis; all others are the same on each process."""
    return set(_member_axes(state, method))


def _member_axes(state: State, method: Method) -> Iterator[tuple[str, str]]:
    members = state.members
    for group, leaves in state.groups().items():
        own = group in ("params", "buffers")
        common = members.shared if own else method.common_leaves(group, leaves)
        for name, leaf in leaves.items():
            if name in common or not leaf.dim():
                continue
            if len(leaf) != members.num_members:
                raise SettingError(
                    f"{name} of {group} has no member axis, so that ranks cannot hold some members each with "
                    f"{type(method).__name__}; use another executor"
                )
            yield group, name


def _check_common(state: State, axes: set[tuple[str, str]], team: Team) -> None:
    """Refuse leaves that should be the same on all processes and are not, such as frozen ones drawn at random."""
    for group, leaves in state.groups().items():
        for name, leaf in leaves.items():
            if (group, name) in axes:
                continue
            numbers = torch.nan_to_num(leaf.detach().double())
            facts = torch.stack([numbers.sum(), numbers.abs().sum(), numbers.square().sum()])
            count = state.members.num_members
            seen = team.everyone(facts.expand(count, 3).contiguous())
            if not (seen == seen[0]).all():
                raise SettingError(
                    f"{name} of {group} is not the same on all ranks, though all members should share it; make it the "
                    "same in each network, or train in one process"
                )


def whole_ensemble(ensemble: Ensemble, spread: Spread) -> Ensemble:
    """What comes out of a run: the ensemble of all members on each process, or of those here."""
    if spread.team is ALONE or not spread.gathers:
        return ensemble
    state = whole_state(ensemble.state, ensemble.method, spread.team)
    return replace(ensemble, method=spread.whole, state=ensemble.executor.arrange(state))


def mixture_log_prob(member_log_prob: Tensor, team: Team) -> Tensor:
    """log of the mean over all members of p(y|x), `(row,)`, from `(member, row)` of those here."""
    everyone = team.everyone(member_log_prob.contiguous())
    return torch.logsumexp(everyone, 0) - math.log(len(everyone))


def sharded(found: Checkpoint, method: Method, team: Team) -> tuple[Checkpoint, Shards]:
    """A checkpoint of the members here, with the weights that they have among all, and what of it is theirs alone."""
    count = found.state.members.num_members

    def weighed(state: State) -> State:
        members = state.members
        return replace(state, members=replace(members, weights=members.weights * (count / team.total(count))))

    states = {"state": found.state} | ({} if found.best is None else {"best": found.best})
    own = {f"{root}/weights" for root in states} | {TOLD + name for name in found.told}
    for root, state in states.items():
        for group, name in member_axes(state, method):
            place = group if group in ("params", "buffers") else f"slots/{group}"
            own.add(f"{root}/{place}/{name}")
    best = None if found.best is None else weighed(found.best)
    return replace(found, state=weighed(found.state), best=best), Shards(team, frozenset(own), count)


def cut(found: Checkpoint, method: Method, team: Team) -> Checkpoint:
    """What a checkpoint holds of the members here, with weights as if there were no others."""
    if team is ALONE:
        return found
    count = len(team.own(torch.empty(team.total(0))))

    def own(state: State) -> State:
        axes, members = member_axes(state, method), state.members

        def over(group: str, leaves: Leaves) -> Leaves:
            return {n: team.own(leaf).clone() if (group, n) in axes else leaf for n, leaf in leaves.items()}

        groups = {group: leaves if found.cut else over(group, leaves) for group, leaves in state.groups().items()}
        weights = members.weights if found.cut else team.own(members.weights)
        mine = Members(groups["params"], groups["buffers"], weights / weights.sum(), members.shared)
        return State(mine, {slot: groups[slot] for slot in state.slots})

    told = found.told if found.cut else {name: team.own(values.T).T.clone() for name, values in found.told.items()}
    state = own(found.state)
    if state.members.num_members != count:
        raise CheckpointError(f"the checkpoint has another number of members than the {team.total(0)} of this run")
    run = found.run if team.first == 0 else found.run | {"network": None}  # it tells of the first member
    return replace(found, run=run, state=state, best=None if found.best is None else own(found.best), told=told)


def check_same_standing(steps: int, team: Team) -> None:
    """Refuse to go on where processes found different checkpoints."""
    if (team.largest(steps), -team.largest(-steps)) != (steps, steps):
        raise CheckpointError("the ranks found different checkpoints; they need one file system for the run folder")
