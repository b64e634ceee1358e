"""Members that were trained apart, put together: the ensemble that training them together would have given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves

_SUMS = ("gradients", "seconds", "finish_seconds")


def concat(ensembles: Sequence[Any]) -> Any:
    """One ensemble of all these members, in the order of their numbers: see `Ensemble.concat`."""
    require(len(ensembles) > 0, "concat needs at least one ensemble")
    for one in ensembles:
        require(one.part is not None, "concat puts together what fit(..., members=range(a, b)) gave, with its numbers")
        require(
            one.method == one.part.own_method,
            f"members {one.part} were trained by another method than they have now; put parts together before",
        )
        require(one.calibration is None, "parts were calibrated for themselves; calibrate what concat gives instead")
    parts = sorted(ensembles, key=lambda one: one.part.numbers.start)
    first = parts[0]
    for what, said in (
        ("tasks", lambda one: (one.describe()["model"], one.describe()["task"])),
        ("methods", lambda one: one.part.method),
        ("seeds", lambda one: one.seed),
        ("numbers of epochs", lambda one: len(one.history)),
    ):
        _check_same(parts, what, said)
    for before, after in pairwise(one.part.numbers for one in parts):
        if after.start < before.stop:
            twice = f"member {after.start} is there twice"
            raise SettingError(f"the parts overlap: {twice}, in {before} and in {after}; give each member once")
        if after.start > before.stop:
            missing = f"range({before.stop}, {after.start})"
            raise SettingError(f"members between {before} and {after} are missing; train members={missing} too")
    numbers = range(first.part.numbers.start, parts[-1].part.numbers.stop)
    part = replace(first.part, numbers=numbers)
    state = _joined([one.state for one in parts], part.method.common_slots)
    return replace(
        first,
        method=part.own_method,
        state=first.executor.arrange(state),
        history=[_joined_rows(rows) for rows in zip(*(one.history for one in parts), strict=True)],
        recording=None,
        part=None if numbers == range(part.method.num_members) else part,
    )


def _check_same(parts: Sequence[Any], what: str, said: Callable[[Any], Any]) -> None:
    known = [said(one) for one in parts]
    for one, other in zip(parts, known, strict=True):
        require(
            other == known[0],
            f"parts of one ensemble have the same, but these have other {what}: {known[0]} of members "
            f"{parts[0].part}, {other} of members {one.part}",
        )


def _joined(states: Sequence[State], common: Sequence[str]) -> State:
    """All members side by side, with what was kept beside them."""
    counts = [state.members.num_members for state in states]

    def beside(slot: str, name: str) -> Tensor:
        leaves = [state.slots[slot][name] for state in states]
        own = slot not in common and all(
            leaf.dim() and len(leaf) == num for leaf, num in zip(leaves, counts, strict=True)
        )
        if own and len({leaf.shape[1:] for leaf in leaves}) == 1:
            return torch.cat(leaves)
        if own or not all(torch.equal(leaf, leaves[0]) for leaf in leaves):
            raise SettingError(f"the parts differ in {name} of {slot}: they were not trained alike")
        return leaves[0].clone()

    _check_leaves([{slot: sorted(leaves) for slot, leaves in state.slots.items()} for state in states])
    slots = {slot: {name: beside(slot, name) for name in leaves} for slot, leaves in states[0].slots.items()}
    return State(_joined_members([state.members for state in states]), slots)


def _joined_members(parts: Sequence[Members]) -> Members:
    """Networks side by side; those that were left behind weigh nothing, all others the same."""
    for one in parts:
        weights = one.weights[one.weights > 0]
        require(bool((weights == weights[0]).all()), "the members of a part weigh differently; reweight the whole")
    _check_leaves([{"params": sorted(one.params), "buffers": sorted(one.buffers)} for one in parts])
    whole = [one.params | one.buffers for one in parts]
    shared = frozenset(
        name
        for name in frozenset.intersection(*(one.shared for one in parts))
        if all(torch.equal(leaves[name], whole[0][name]) for leaves in whole)
    )
    parts = [one.unshared(one.shared - shared) for one in parts]

    def join(leaves: Sequence[Leaves]) -> Leaves:
        return {n: leaf if n in shared else torch.cat([one[n] for one in leaves]) for n, leaf in leaves[0].items()}

    alive = torch.cat([one.weights for one in parts]) > 0
    equal = torch.full_like(alive, 1 / len(alive), dtype=parts[0].weights.dtype)
    joined = Members(join([one.params for one in parts]), join([one.buffers for one in parts]), equal, shared)
    return joined if alive.all() else joined.reweight(alive.double())


def _check_leaves(names: Sequence[dict[str, list[str]]]) -> None:
    require(all(one == names[0] for one in names), "the parts have other leaves: they were not trained alike")


def _joined_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of the history: what was told of each member, and sums; what was told of a part together is left out."""
    joined: dict[str, Any] = {}
    for key, value in rows[0].items():
        if key == "epoch":
            joined[key] = value
        elif key in _SUMS:
            joined[key] = sum(row[key] for row in rows)
        elif isinstance(value, list) and key != "dropped":
            joined[key] = [own for row in rows for own in row[key]]
    lost, before = [], 0
    for row in rows:
        lost += [one | {"member": one["member"] + before} for one in row.get("dropped", [])]
        before += len(row["loss"])
    return joined | ({"dropped": lost} if lost else {})
