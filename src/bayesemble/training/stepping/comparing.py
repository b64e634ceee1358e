"""Whether a step that was taken in two ways came to the same."""

from __future__ import annotations

import torch

from bayesemble.core.members import State
from bayesemble.core.types import Info
from bayesemble.execute.optimizers.fused import FIRST_MOMENT
from bayesemble.execute.programs.alike import close, same
from bayesemble.training.stepping.leaves import leaves_of

_ROUNDING = 1e-5  # share of the largest gradient


def same_step(expected: State, told: Info, found: State, info: Info, rounded: bool) -> bool:
    """Whether both ways came to the same, up to what comes of rounding if that is another."""
    ones, others = [*leaves_of(expected), *told.values()], [*leaves_of(found), *info.values()]
    if same(ones, others):
        return True
    if not rounded:
        return False
    return close(ones, others) or close(ones, [*leaves_of(_less_rounding(found, expected)), *info.values()])


def _less_rounding(found: State, expected: State) -> State:
    """What was found, but as expected where gradients are nothing but rounding, as that of a bias in front of batch
    norm: Adam makes whole steps of it, one way or the other."""
    theirs, ours = (state.slots.get(FIRST_MOMENT, {}) for state in (expected, found))
    largest = max((float(moment.abs().max()) for moment in theirs.values()), default=0.0)
    nothing = {name: torch.maximum(ours[name].abs(), theirs[name].abs()) <= _ROUNDING * largest for name in theirs}
    groups, wanted = found.groups(), expected.groups()
    for group, leaves in groups.items():
        of_weights = [name for name in nothing if name in leaves and leaves[name].shape == nothing[name].shape]
        settled = {name: torch.where(nothing[name], wanted[group][name], leaves[name]) for name in of_weights}
        groups[group] = leaves | settled
    return found.with_groups(groups)
