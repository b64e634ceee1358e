"""Predictions of members that stay where they are: ranks tell one another outputs, never weights."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from bayesemble.core.errors import ExecutionError
from bayesemble.core.members import Members
from bayesemble.core.types import Inputs, Leaves, tensors_of
from bayesemble.execute.ranks.team import ALONE, Team


def of_everyone(
    outputs: tuple[Tensor, ...], members: Members, inputs: Inputs, num_here: int, team: Team
) -> tuple[tuple[Tensor, ...], Members]:
    """Outputs and weights of all networks, member after member, on each rank; all ranks call this with the same rows.

    Args:
        outputs: Each `(network, row, ...)`, of the networks here.
        members: Weights and leaves of the likelihood of these networks.
        inputs: The rows.
        num_here: How many members are here; each has as many networks.
        team: The ranks.
    """
    if team is ALONE:
        return outputs, members
    each = members.num_members // num_here
    _check_same(f"{each} {_digest(inputs)}", team)

    def everyone(leaf: Tensor) -> Tensor:
        return team.everyone(leaf.reshape(num_here, each, *leaf.shape[1:])).flatten(0, 1)

    def joined(leaves: Leaves) -> Leaves:
        return {name: everyone(leaf) for name, leaf in leaves.items()}

    weights = everyone(members.weights * num_here) / team.total(num_here)
    return tuple(map(everyone, outputs)), Members(joined(members.params), joined(members.buffers), weights)


def _check_same(own: str, team: Team) -> None:
    """Refuse rows that differ from rank to rank, whose outputs would be mixed."""
    if len(set(team.words(own))) > 1:
        raise ExecutionError(
            "the ranks were asked to predict different rows, but their members are averaged row by row; give the same "
            "rows on every rank, or let each predict with its own members: Ranks(gather=False)"
        )


def _digest(inputs: Inputs) -> str:
    digest = hashlib.sha256()
    for leaf in tensors_of(inputs):
        digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
