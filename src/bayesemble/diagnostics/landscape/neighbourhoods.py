"""Networks around one member: what one run gives against several, as Fort, Hu & Lakshminarayanan (2019) asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.diagnostics.landscape.embeddings import checkpoints
from bayesemble.diagnostics.landscape.measure import (
    as_ensemble,
    at_once,
    chosen_members,
    measure,
    members_of,
    refreshed,
    with_params,
)
from bayesemble.methods.geometry import subspaces
from bayesemble.metrics.curves import subsets_of
from bayesemble.predictive import ClassPredictive
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.training.ensemble import Ensemble

KINDS = ("random", "dropout", "diagonal", "pca")
SCALES = {"random": 10.0, "dropout": 0.1, "diagonal": 1.0, "pca": 1.0}
"""How far samples of each kind go, as in the paper's ensembles of subspaces."""
_PCA_RANK, _MOST_SUBSETS = 5, 200


@dataclass(frozen=True, eq=False)
class SubspaceEnsembles:
    """Ensembles by size, whose members are averages over networks around a member; "member" is the plain member."""

    sizes: list[int]
    accuracy: dict[str, Tensor]
    """(size,), mean over subsets of members of that size."""
    brier: dict[str, Tensor]
    """(size,), mean of sum_c p_c^2 - 2 p_y + 1 in the same way."""


def sample_subspace(
    ensemble: Ensemble,
    member: int,
    kind: str,
    num: int,
    *,
    last: int = 10,
    scale: float | Tensor | None = None,
    seed: int = 0,
    train: Any = None,
    least_accuracy: float | None = None,
    validation: Any = None,
    tries: int = 5,
) -> Members:
    """Sample networks around one member w0; parameters of the likelihood stay as they are.

    random      w0 + t v,  v a Gaussian direction of length one, t = scale U(0, 1)
    dropout     every weight of w0 is 0 with probability p = scale U(0, 1), else divided by 1 - p
    diagonal    Normal(mean, (scale std)^2),  mean and std (divisor K) of each weight over the last K checkpoints
    pca         mean + sum_r z_r v_r,  z ~ Normal(0, scale^2), v the at most 5 widest directions of the same, length one

    Args:
        ensemble: Of any method; "diagonal" and "pca" need one trained with `fit(..., record="epoch")`.
        member: Which member.
        kind: One of the four.
        num: How many networks.
        last: How many recorded epochs, the last ones, count as checkpoints; the start never does.
        scale: A number, or one for each network; None takes that of the paper, see `SCALES`.
        seed: Of the samples; each network has a seed of its own.
        train: `(x, y)` for a network with batch norm, whose statistics are measured again.
        least_accuracy: Networks that are less accurate on `validation` are drawn again, as in the paper (0.7); one that
            is so in all its tries is left out, so that fewer than `num` may come back. None rejects nothing.
        validation: `(x, y)` that the accuracy is measured on.
        tries: How many times a network is drawn at most.
    """
    accept = Acceptance(least_accuracy, validation, tries)
    return Members.concat(list(samples(ensemble, member, kind, num, last, scale, seed, train, accept)))


def weight_average(ensemble: Ensemble, member: int, last: int = 10, *, train: Any = None) -> Members:
    """One network: the mean of the last recorded checkpoints of a member; `train` as for `sample_subspace`."""
    own = members_of(ensemble).take(torch.tensor(chosen_members(ensemble, [member])))
    mean = {name: leaf.mean(0) for name, leaf in checkpoints(ensemble, member, last).items()}
    return refreshed(ensemble, _stacked(own, [mean]), train)


def ensembles_of_subspaces(
    ensemble: Ensemble,
    data: Any,
    *,
    train: Any = None,
    sizes: Sequence[int] | None = None,
    kinds: Sequence[str] = ("member", *KINDS, "average"),
    num: int = 30,
    last: int = 10,
    scales: Mapping[str, float] | None = None,
    seed: int = 0,
    least_accuracy: float | None = None,
    validation: Any = None,
    tries: int = 5,
) -> SubspaceEnsembles:
    """Average probabilities over `num` samples around each member, then over k members, for each kind and k.

    Scores are means over all subsets of k members, if there are at most 200; else over 200 different ones drawn from
    the seed, the same for all kinds. "member" is the plain member, "average" its `weight_average`; other arguments are
    those of `sample_subspace`.
    """
    total = ensemble.num_members
    chosen = list(range(1, total + 1)) if sizes is None else list(sizes)
    require(all(1 <= size <= total for size in chosen), f"sizes lie in 1 to {total}, the members, got {chosen}")
    subsets = [subsets_of(total, size, _MOST_SUBSETS, seed) for size in chosen]

    def around(kind: str, member: int) -> Iterable[Members]:
        if kind == "member":
            return [members_of(ensemble).part(member, member + 1)]
        if kind == "average":
            return [weight_average(ensemble, member, last, train=train)]
        return samples(ensemble, member, kind, num, last, (scales or {}).get(kind), seed, train, accept)

    accept = Acceptance(least_accuracy, validation, tries)
    accuracy, brier = {}, {}
    for kind in kinds:
        found = [mean_probs(ensemble, around(kind, member), data) for member in range(total)]
        probs, labels = torch.stack([one for one, _ in found]), found[0][1]
        scores = [[accuracy_and_brier(probs[list(one)].mean(0), labels) for one in some] for some in subsets]
        means = torch.stack([torch.tensor(row, dtype=torch.float64).mean(0) for row in scores])
        accuracy[kind], brier[kind] = means.unbind(1)
    return SubspaceEnsembles(chosen, accuracy, brier)


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Which samples count: those of a least accuracy on some rows, after a number of tries each."""

    least_accuracy: float | None = None
    validation: Any = None
    tries: int = 5

    def __post_init__(self) -> None:
        both = (self.least_accuracy is None) == (self.validation is None)
        require(both, "least_accuracy is measured on validation=(x, y): give both, or neither")
        share = self.least_accuracy is None or 0 <= self.least_accuracy <= 1
        require(share, f"least_accuracy is a share of rows, from 0 to 1, got {self.least_accuracy}")
        require(self.tries >= 1, f"at least one try is needed, got tries={self.tries}")

    def good(self, ensemble: Ensemble, networks: Members) -> Tensor:
        """Which networks are accurate enough, `(network,)`."""
        if self.least_accuracy is None:
            return torch.ones(networks.num_members, dtype=torch.bool)
        found = measure(ensemble, [networks], self.validation)
        require(found.classes, "accuracy is of classes, but this task predicts numbers; leave out least_accuracy")
        return 1 - found.error >= self.least_accuracy


def samples(
    ensemble: Ensemble,
    member: int,
    kind: str,
    num: int,
    last: int,
    scale: float | Tensor | None,
    seed: int,
    train: Any,
    accept: Acceptance = Acceptance(),
) -> Iterator[Members]:
    """The networks of `sample_subspace`, as many at a time as fit into memory."""
    require(kind in KINDS, f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    require(num >= 1, f"at least one network is needed, got num={num}")
    scales = torch.as_tensor(SCALES[kind] if scale is None else scale, dtype=torch.float64)
    fits = bool((scales >= 0).all() and (kind != "dropout" or (scales <= 1).all()) and scales.shape in ((), (num,)))
    require(fits, f"scale is a number from 0, up to 1 for dropout, or one for each of {num} networks; got {scale}")
    own = members_of(ensemble).take(torch.tensor(chosen_members(ensemble, [member])))
    draw = _drawer(ensemble, own, member, kind, last)
    each, size, waiting, none = scales.expand(num).tolist(), at_once(own), list(range(num)), True
    for attempt in range(accept.tries):
        again = ("try", attempt) if attempt else ()
        rejected = []
        for start in range(0, len(waiting), size):
            numbers = waiting[start : start + size]
            drawn = [draw(each[i], seeds.generator(seed, "subspace", kind, member, i, *again)) for i in numbers]
            networks = refreshed(ensemble, _stacked(own, drawn), train)
            good = accept.good(ensemble, networks)
            rejected += [number for number, kept in zip(numbers, good.tolist(), strict=True) if not kept]
            if good.any():
                none = False
                yield networks if good.all() else networks.take(good.nonzero().squeeze(1))
        waiting = rejected
    require(
        not none,
        f"none of {num} networks around member {member} ({kind}) has an accuracy of {accept.least_accuracy} or more in "
        f"{accept.tries} tries; ask for less, or lower scale",
    )


def _drawer(ensemble: Ensemble, own: Members, member: int, kind: str, last: int) -> Callable[..., Leaves]:
    """A function of scale and generator that gives the network's leaves of one sample."""
    if kind in ("random", "dropout"):
        start = {name: leaf[0] for name, leaf in own.params.items() if not name.startswith(OF_LIKELIHOOD)}
        return partial(_random if kind == "random" else _dropout, start)
    points = checkpoints(ensemble, member, last, least=2)
    mean = {name: leaf.mean(0) for name, leaf in points.items()}
    if kind == "diagonal":
        return partial(_diagonal, mean, {name: leaf.std(0, correction=0) for name, leaf in points.items()})
    return partial(_principal, mean, _directions({name: leaf - mean[name] for name, leaf in points.items()}))


def _random(start: Leaves, scale: float, generator: torch.Generator) -> Leaves:
    direction = {name: _normal(leaf, generator) for name, leaf in start.items()}
    length = math.sqrt(sum(float(leaf.double().square().sum()) for leaf in direction.values()))
    step = scale * float(torch.rand((), generator=generator, dtype=torch.float64)) / length
    return {name: leaf + step * direction[name] for name, leaf in start.items()}


def _dropout(start: Leaves, scale: float, generator: torch.Generator) -> Leaves:
    share = scale * float(torch.rand((), generator=generator, dtype=torch.float64))
    drawn = {name: torch.rand(leaf.shape, generator=generator, dtype=leaf.dtype) for name, leaf in start.items()}
    return {name: leaf * (drawn[name] >= share).to(leaf) / (1 - share) for name, leaf in start.items()}


def _diagonal(mean: Leaves, std: Leaves, scale: float, generator: torch.Generator) -> Leaves:
    return {name: leaf + scale * std[name] * _normal(leaf, generator) for name, leaf in mean.items()}


def _principal(mean: Leaves, basis: Leaves, scale: float, generator: torch.Generator) -> Leaves:
    steps = scale * torch.randn(len(next(iter(basis.values()))), generator=generator, dtype=torch.float64)
    return {name: leaf + torch.tensordot(steps.to(leaf), basis[name], dims=1) for name, leaf in mean.items()}


def _directions(deviations: Leaves) -> Leaves:
    """The widest directions of deviations `(epoch, ...)`, each of length one, `(direction, ...)`."""
    num = len(next(iter(deviations.values())))
    basis = subspaces.principal({n: leaf.unsqueeze(0) for n, leaf in deviations.items()}, num, min(_PCA_RANK, num - 1))
    lengths = subspaces.basis_products(basis)[0].diagonal().sqrt()
    wide = lengths > 1e-6 * lengths.max()  # checkpoints that coincide span fewer directions
    return {n: leaf[0, wide] / lengths[wide].to(leaf).reshape(-1, *[1] * (leaf.dim() - 2)) for n, leaf in basis.items()}


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _stacked(own: Members, drawn: list[Leaves]) -> Members:
    """Networks with drawn leaves; what was not drawn, and the buffers, are those of their member."""
    kept = {name: leaf.expand(len(drawn), *leaf.shape[1:]) for name, leaf in own.params.items()}
    return with_params(own, kept | {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]})


def mean_probs(ensemble: Ensemble, parts: Iterable[Members], data: Any) -> tuple[Tensor, Tensor]:
    """Probabilities averaged over networks that come in parts, `(row, class)`, and the labels `(row,)`."""
    sums, labels, num = list[Tensor](), list[Tensor](), 0
    for part in parts:
        own, labels, num = [], [], num + part.num_members  # the labels are the same for all parts
        for predictive, targets in as_ensemble(ensemble, part).predictions(data):
            if not isinstance(predictive, ClassPredictive):
                raise SettingError("accuracy is of classes, but this task predicts numbers; use similarity instead")
            own.append(predictive.member_probs.double().sum(0))
            labels.append(predictive.labels(targets))
        sums.append(torch.cat(own))
    return torch.stack(sums).sum(0) / num, torch.cat(labels)


def accuracy_and_brier(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of right classes, and mean of sum_c p_c^2 - 2 p_y + 1."""
    brier = probs.square().sum(-1) - 2 * probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1) + 1
    return float((probs.argmax(-1) == labels).double().mean()), float(brier.mean())
