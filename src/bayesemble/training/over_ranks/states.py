"""States that processes hold together: put together, taken apart, and saved in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Leaves
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.shards import TOLD, Shards


def whole_state(state: State, method: Method, team: Team) -> State:
    """The state of all members, on each process, leaf by leaf."""
    axes, members = member_axes(state, method), state.members

    def over(group: str, leaves: Leaves) -> Leaves:
        return {name: team.everyone(leaf) if (group, name) in axes else leaf for name, leaf in leaves.items()}

    groups = {group: over(group, leaves) for group, leaves in state.groups().items()}
    weights = team.everyone(members.weights * members.num_members) / team.total(members.num_members)
    whole = Members(groups["params"], groups["buffers"], weights, members.shared)
    check_common(state, method, team)
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


def check_common(state: State, method: Method, team: Team) -> None:
    """Refuse leaves that should be the same on all processes and are not, such as frozen ones drawn at random."""
    if team is ALONE:
        return
    axes, count = member_axes(state, method), state.members.num_members
    for group, leaves in state.groups().items():
        for name, leaf in leaves.items():
            if (group, name) in axes:
                continue
            numbers = torch.nan_to_num(leaf.detach().double())
            facts = torch.stack([numbers.sum(), numbers.abs().sum(), numbers.square().sum()])
            seen = team.everyone(facts.expand(count, 3).contiguous())
            if not (seen == seen[0]).all():
                raise SettingError(
                    f"{name} of {group} is not the same on all ranks, though all members should share it; make it the "
                    "same in each network, or train in one process"
                )


def find_checkpoint(
    folder: str | Path | None, resume: bool, mapped: bool, method: Method, team: Team
) -> Checkpoint | None:
    """What there is to go on from, of the members here; `method` is that of all members."""
    if folder is None or not checkpoints.exists(folder):
        return None
    if not resume:
        raise CheckpointError(
            f"{folder} already holds a run; pass resume=True to go on with it, or choose another folder"
        )
    if team is ALONE:
        return checkpoints.recover(folder, mapped)
    here = range(team.first, team.first + len(team.own(torch.empty(method.num_members))))
    return cut(checkpoints.recover(folder, mapped, here), method, team)


def cut(found: Checkpoint, method: Method, team: Team) -> Checkpoint:
    """What a checkpoint holds of the members here, with weights as if there were no others."""
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


def check_same_standing(steps: int, team: Team) -> None:
    """Refuse to go on where processes found different checkpoints."""
    if (team.largest(steps), -team.largest(-steps)) != (steps, steps):
        raise CheckpointError("the ranks found different checkpoints; they need one file system for the run folder")
