"""Training-free Bayesianisation: networks drawn around trained low-rank adapters, as widely as held-out rows allow.

    B = U diag(d) V',      A <- A + V diag(std / d) E,      E standard normal (rank, in)

so that the weight W + B A of a layer moves by std * U E: as far in each of the directions that the adapter can reach,
however large it has become there. `be.tfb` finds the largest std; nothing is trained.

Reference: Shi, Wang, Han, Zhang & Wang (2024), "Training-free Bayesianization for low-rank adapters of large language
models".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Info, Leaves
from bayesemble.methods.base import Context, Method
from bayesemble.methods.gradient import in_turn
from bayesemble.task.task import BoundTask

SLOT = "tfb"
_SMALLEST = 1e-4  # singular values below this share of the largest are directions that the adapter does not reach


@dataclass(frozen=True, kw_only=True)
class TFB(Method):
    """Networks around trained low-rank adapters; `be.tfb` makes it from an ensemble."""

    num_members: int = setting(1, "number of trained networks that are drawn around", least=1)
    draws: int = setting(10, "networks drawn for a prediction, unless told otherwise", least=1)

    independent = True
    drawn_slots = (SLOT,)

    def init(self, task: BoundTask, seed: int) -> State:
        """There is nothing to train."""
        raise SettingError("TFB is training-free: train adapters by another method, then be.tfb(ensemble, held_out)")

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """There is nothing to train."""
        raise SettingError("TFB is training-free: it takes no steps")

    def can_draw(self, state: State) -> bool:
        """Whether a std was found."""
        return SLOT in state.slots

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Networks by number, around each member in turn."""
        firsts = list(pairs(state.members.params))
        base, stds = in_turn(state.members, numbers, own=firsts), state.slots[SLOT]["std"]
        params = dict(base.params)
        for first, second in pairs(state.members.params).items():
            moves = [_along(leaf) for leaf in state.members.params[second]]
            own = []
            for place, number in enumerate(numbers):
                member, leaf = number % len(moves), base.params[first][place]
                generator = seeds.generator(seed, "tfb", first, number)
                noise = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device)
                own.append(leaf + stds[member].to(leaf) * (moves[member] @ noise[: moves[member].shape[1]]))
            params[first] = torch.stack(own)
        return replace(base, params=params)


def pairs(params: Leaves) -> dict[str, str]:
    """The factors B of low-rank adapters by the names of their factors A, in the names of `be.adapt` or of peft."""
    found = {name: name.replace("lora_A", "lora_B") for name in params if "lora_A" in name.split(".")}
    return {first: second for first, second in found.items() if second in params}


def _along(second: Tensor) -> Tensor:
    """V diag(1 / d) of B = U diag(d) V': how A moves so that B A moves by U; 0 where B does nothing.

    Shape: `(rank, direction)`, with as many directions as the smaller of rank and outputs.
    """
    _, values, right = torch.linalg.svd(second.double(), full_matrices=False)
    reached = values > _SMALLEST * values.max()
    inverse = torch.where(reached, 1 / values.where(reached, torch.ones_like(values)), 0)
    return (right.T * inverse).to(second.dtype)
