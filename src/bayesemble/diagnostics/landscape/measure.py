"""What all views of the landscape share: networks anywhere in weight space, and how good and how different they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.methods.geometry import batch_norm
from bayesemble.predictive import Predictive, match_targets
from bayesemble.training.batches import source_for
from bayesemble.training.draws import draws_at_once
from bayesemble.training.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Measured:
    """Networks on one set of data, a number for each."""

    loss: Tensor
    """(network,), mean of -log p(y|x) in nats."""
    error: Tensor
    """(network,), share of wrong classes; for numbers, the root mean squared error."""
    difference: Tensor
    """(network, reference), share of rows with another class than the reference; for numbers, the root mean squared
    difference of the means."""
    classes: bool
    """Whether classes are told apart, rather than numbers predicted."""

    @staticmethod
    def concat(parts: list[Measured]) -> Measured:
        """Measurements of several parts, one after the other."""
        loss, error, difference = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("loss", "error", "difference")
        )
        return Measured(loss, error, difference, parts[0].classes)


def members_of(ensemble: Ensemble) -> Members:
    """The members of an ensemble, every leaf with a member axis."""
    return ensemble.state.members.unshared()


def chosen_members(ensemble: Ensemble, members: Sequence[int] | None) -> list[int]:
    """The given members, or all of them."""
    num = ensemble.num_members
    chosen = list(range(num)) if members is None else list(members)
    known = bool(chosen) and all(0 <= member < num for member in chosen)
    require(known, f"members are some of the numbers 0 to {num - 1}, got {chosen}")
    return chosen


def as_ensemble(ensemble: Ensemble, networks: Members) -> Ensemble:
    """Networks of the same task as an ensemble of plain members: it predicts and is evaluated like any other."""
    return Ensemble.of_networks(ensemble.task, networks, ensemble.executor)


def with_params(like: Members, params: Leaves) -> Members:
    """Networks with given parameters `(network, ...)`; their buffers are those of the first member of `like`."""
    num = len(next(iter(params.values())))
    buffers = {name: leaf[:1].expand(num, *leaf.shape[1:]) for name, leaf in like.unshared().buffers.items()}
    return Members(params, buffers, torch.full((num,), 1 / num, dtype=torch.float64))


def at_once(networks: Members) -> int:
    """How many networks like these to have in memory at a time."""
    leaves = [*networks.params.values(), *networks.buffers.values()]
    return draws_at_once(sum(leaf[0].numel() * leaf.element_size() for leaf in leaves))


def refreshed(ensemble: Ensemble, networks: Members, train: Any, batch_size: int = 1024) -> Members:
    """The networks with batch-norm statistics of training data; as they are, if there are no such layers."""
    if not batch_norm.norm_buffers(ensemble.task.module):
        return networks
    if train is None:
        raise DataError(
            "this network has batch norm, whose statistics belong to the weights they were measured with: pass "
            "train=(x, y), with which they are measured again for every other network"
        )
    source = source_for(ensemble.task, train, batch_size, shuffle=False)
    source = source.checked(ensemble.task, training=False)
    return batch_norm.refreshed(ensemble.task, networks, lambda: source.in_order(batch_size), ensemble.executor)


def measure(ensemble: Ensemble, parts: Iterable[Members], data: Any, *, references: Members | None = None) -> Measured:
    """Loss, error and difference from references of networks, which come in parts that fit into memory."""
    known = []
    if references is not None:
        known = [_answers(one) for one, _ in as_ensemble(ensemble, references).predictions(data)]
    return Measured.concat([_measure_part(ensemble, part, data, known) for part in parts])


def _measure_part(ensemble: Ensemble, networks: Members, data: Any, known: list[Tensor]) -> Measured:
    loss = torch.zeros(networks.num_members, dtype=torch.float64)
    error, difference = torch.zeros_like(loss), loss.new_zeros(len(loss), len(known[0]) if known else 0)
    rows, count, classes = 0, 0, True
    for number, (predictive, targets) in enumerate(as_ensemble(ensemble, networks).predictions(data)):
        answers, classes = _answers(predictive), predictive.kind == "classes"
        log_prob = predictive.member_log_prob(targets).double()
        loss -= log_prob.sum(1)
        error += _apart(answers, match_targets(targets, answers.shape), classes)
        for index, other in enumerate(known[number] if known else ()):
            difference[:, index] += _apart(answers, other, classes)
        rows, count = rows + log_prob.shape[1], count + answers[0].numel()
    error, difference = error / count, difference / count
    if not classes:
        error, difference = error.sqrt(), difference.sqrt()
    return Measured(loss / rows, error, difference, classes)


def _answers(predictive: Predictive) -> Tensor:
    """Chosen classes or means of each network, `(network, row, ...)`."""
    values = predictive.member_values().double()
    return values.argmax(-1) if predictive.kind == "classes" else values


def _apart(answers: Tensor, others: Tensor, classes: bool) -> Tensor:
    """How many classes differ, or the summed squared difference: `(network, row, ...)` from one other, `(network,)`."""
    apart = answers != others if classes else (answers - others).square()
    return apart.double().flatten(1).sum(1)
