"""What members must not begin with: fresh weights in place of trained ones, or the weights of one another."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError, TrainingError
from bayesemble.core.members import Members
from bayesemble.core.types import Batch, Leaves, tensors_of
from bayesemble.task.networks import new_module
from bayesemble.task.task import BoundTask

_FRESH_NETWORKS = 5
"""How many re-initialised networks a given one is compared with."""
_SURE = 6.0
"""It looks trained if its loss is lower than theirs by this many of their standard deviations,"""
_SHARE = 0.2
"""and by this share of their mean."""


def refuse_trained(task: BoundTask, batch: Batch) -> None:
    """Refuse to re-initialise a network that looks trained, unless that was asked for by `start="fresh"`."""
    if task.start is not None or not task.networks_given:
        return
    sign = _changed_leaf(task) or _low_loss(task, batch)
    if sign:
        raise ModelError(
            f"the network that was given looks trained: {sign}. Members begin with fresh weights, so that would be "
            'lost; say Task(..., start="given") to begin with its weights, or start="fresh" to re-initialise it'
        )


def _changed_leaf(task: BoundTask) -> str | None:
    """A leaf that is the same in all fresh networks, as those of norm layers are, but not in a given one."""
    for given in task.networks_given:
        fresh = []
        for seed in range(2):
            with seeds.scoped(seed):
                fresh.append(new_module(given).state_dict())
        for name, leaf in given.state_dict().items():
            if torch.equal(fresh[0][name], fresh[1][name]) and not torch.equal(leaf, fresh[0][name]):
                return f"its {name!r} is no longer what it is in a fresh network"
    return None


def _low_loss(task: BoundTask, batch: Batch) -> str | None:
    """Whether the loss of a given network is far below that of the same network with fresh weights."""
    given = replace(task, start="given", jitter=0.0)
    for index in range(task.num_architectures):
        loss = float(_loss(task, batch, *given.new_member(seed=0, index=index)))
        fresh = torch.stack([_loss(task, batch, *task.new_member(seed, index)) for seed in range(_FRESH_NETWORKS)])
        gap = float(fresh.mean()) - loss
        if gap > _SURE * float(fresh.std()) and gap > _SHARE * abs(float(fresh.mean())):
            low, high = fresh.aminmax()
            return f"its loss on the first batch is {loss:.4g}, with fresh weights it is {low:.4g} to {high:.4g}"
    return None


@torch.no_grad()
def _loss(task: BoundTask, batch: Batch, params: Leaves, buffers: Leaves) -> Tensor:
    device = tensors_of(batch.targets)[0].device
    params, buffers = ({name: leaf.to(device) for name, leaf in leaves.items()} for leaves in (params, buffers))
    outputs = task.forward(params, buffers, batch.inputs_of(0))
    return -task.log_likelihood(outputs, batch.targets_of(0), params).double()


class Clones:
    """Members that begin with equal weights; if they see the same data as well, they stay equal for ever."""

    def __init__(self, members: Members) -> None:
        self._groups = equal_members(members)
        self._starts = {group[0]: digest(members, group[0]) for group in self._groups}

    def refuse(self, members: Members) -> None:
        """Refuse members that began equal and are equal after a step. A group that has not moved may wait its turn."""
        for group in self._groups and equal_members(members):
            if digest(members, group[0]) not in self._starts.values():
                raise clones_error(group)


def clones_error(numbers: list[int]) -> TrainingError:
    """What is said of members that would stay equal."""
    named = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return TrainingError(
        f"members {named} began with equal weights and are equal after a step, so they would stay one network; begin "
        'apart by Task(..., jitter=0.1), fresh="head.*" or other weights for each, give them other batches by '
        "own_order=True, bootstrap=True or be.PerMember, or draw around one network by a method such as be.Laplace"
    )


def equal_members(members: Members) -> list[list[int]]:
    """Groups of two or more members whose trained leaves are equal to the bit."""
    groups = [list(range(members.num_members))] if members.num_members > 1 else []
    for leaf in sorted(_own_leaves(members), key=Tensor.numel):  # small ones tell most members apart already
        found: dict[tuple[int, bytes], list[int]] = {}
        for number, group in enumerate(groups):
            for index in group:
                found.setdefault((number, _hash(leaf[index])), []).append(index)
        groups = [group for group in found.values() if len(group) > 1]
    return groups


def digest(members: Members, index: int) -> bytes:
    """What tells the trained leaves of a member from others."""
    return b"".join(_hash(leaf[index]) for leaf in _own_leaves(members))


def _own_leaves(members: Members) -> list[Tensor]:
    return [leaf for name, leaf in members.params.items() if name not in members.shared]


def _hash(leaf: Tensor) -> bytes:
    flat = leaf.detach().cpu().contiguous().flatten()
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=16).digest()
