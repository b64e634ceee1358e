"""Which rows to label next: those that an ensemble would learn most from.

The mutual information of a label y and the weights w is what a label is expected to tell of the weights: the entropy of
the averaged prediction less the mean entropy of the members. Of several rows together it is

    I(y_1, ..., y_n; w) = H(y_1, ..., y_n) - sum_i E_w H(y_i | w)

which is less than the sum over single rows wherever one label would tell what another does. `batchbald` adds one row
after the other to the batch, each time that of the largest joint information, which comes within 1 - 1/e of the best
batch.

References: Houlsby et al. (2011), "Bayesian active learning for classification and preference learning"; Kirsch, van
Amersfoort & Gal (2019), "BatchBALD".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs
from bayesemble.core.errors import SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import require, whole
from bayesemble.core.types import tensors_of
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.training.ensemble import Ensemble

MEASURES = {"mutual_information": "epistemic", "entropy": "total", "variance": "epistemic"}
"""The measure of uncertainty that each way of choosing single rows goes by."""

WAYS = (*MEASURES, "batchbald", "random")

_MOST_CONFIGURATIONS = 1000  # of labels of the rows chosen so far that are all looked at; of more, so many are drawn
_CELLS_AT_ONCE = 1 << 22


def acquire(
    ensemble: Ensemble,
    pool: Any,
    *,
    num: int,
    by: str = "mutual_information",
    num_draws: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Choose rows of a pool to label next; their numbers `(num,)`, the most wanted first.

    Args:
        ensemble: What has been learned so far.
        pool: Inputs of rows without labels, as for `predict`.
        num: How many rows to choose.
        by: "mutual_information" of each label and the weights (BALD), "entropy" of the label, "batchbald" for the joint
            mutual information of all that are chosen, all three for classes; "variance" between the members, for
            numbers; "random".
        num_draws: How many networks a prediction draws, as for `predict`.
        seed: Of what is random: "random" itself, draws of networks, and "batchbald" once the rows have more
            configurations of labels than can be looked at.

    "batchbald" differs from the best rows one by one where these are alike: use it if many are labelled at once. It is
    exact as long as there are at most 1,000 configurations of labels, three rows of ten classes; beyond, the entropy is
    estimated from 1,000 of them that are drawn.
    """
    require(by in WAYS, f"by is one of {', '.join(WAYS)}, got {by!r}")
    rows = len(tensors_of(as_inputs(pool, ensemble.task.dtype))[0])
    num = whole(num, f"num is a whole number from 1, got {num}")
    require(num <= rows, f"{num} rows were asked for, the pool has {rows}")
    if by == "random":
        return torch.randperm(rows, generator=seeds.generator(seed, "acquire"))[:num]
    predictive = ensemble.predict(pool, num_draws=num_draws, keep_members=by == "batchbald", seed=seed)
    _check(predictive, by)
    if by == "batchbald":
        assert isinstance(predictive, ClassPredictive)
        return batch_of_largest_information(predictive, num, seeds.generator(seed, "batchbald"))
    return predictive.uncertainty(MEASURES[by]).double().argsort(descending=True, stable=True)[:num]


def _check(predictive: Predictive, by: str) -> None:
    """Refuse a way that does not suit the predictions, or goes by disagreement that is not there."""
    numbers = predictive.kind == "numbers"
    if numbers != (by == "variance"):
        fitting = "variance" if numbers else "mutual_information, entropy or batchbald"
        raise SettingError(f"by={by!r} is not for predictions of {predictive.kind}; use {fitting}, or random")
    if by == "batchbald" and predictive.answers.dim() > 1:
        raise SettingError("batchbald is for one label per row, these rows have several; use mutual_information")
    agrees = by != "entropy" and not (predictive.uncertainty("epistemic") > 0).any()
    require(not agrees, f"by={by!r} goes by what members disagree about, and there is nothing: train several, or draw")


def batch_of_largest_information(predictive: ClassPredictive, num: int, generator: torch.Generator) -> Tensor:
    """Rows of large joint mutual information, chosen one after the other: `(num,)`."""
    own = predictive.weighed()
    known = _Configurations.of_no_rows(own)
    left = own.expected_entropy.double()
    chosen: list[int] = []
    for _ in range(num):
        information = known.entropy_with_each() - left  # less what the rows chosen so far have, the same for all
        information[chosen] = -torch.inf
        chosen.append(int(information.argmax()))
        known = known.with_row(chosen[-1], generator)
    return torch.tensor(chosen)


@dataclass(frozen=True, eq=False)
class _Configurations:
    """Labels that the rows chosen so far may have, and how probable each member finds them: all, or some drawn ones."""

    weights: Tensor
    """(member,)."""
    probs: Tensor
    """(member, row, class), of the whole pool."""
    given: Tensor
    """(configuration, member): probability under each member, over its largest."""
    log_scale: Tensor
    """(configuration,): the logarithm of that largest one."""
    share: Tensor
    """(configuration,): what each stands for; they sum to one."""

    @classmethod
    def of_no_rows(cls, predictive: ClassPredictive) -> _Configurations:
        weights, one = predictive.weights.double(), torch.ones(1, dtype=torch.float64)
        return cls(weights, predictive.member_probs.double(), one.expand(1, len(weights)), torch.zeros_like(one), one)

    def entropy_with_each(self) -> Tensor:
        """H(chosen rows and one more), `(row,)`: - sum_k share_k sum_c Q_kc / Q_k (log scale_k + log Q_kc)."""
        rows, weighted = self.probs.shape[1], self.given * self.weights
        cells = len(weighted) * self.probs.shape[2]
        parts = []
        for some in torch.arange(rows).split(how_many_fit(_CELLS_AT_ONCE, cells)):
            joint = torch.einsum("km,mrc->krc", weighted, self.probs[:, some])
            logs = self.log_scale[:, None, None] + joint.clamp_min(torch.finfo(joint.dtype).tiny).log()
            parts.append(-torch.einsum("k,krc->r", self.share / weighted.sum(1), joint * logs))
        return torch.cat(parts)

    def with_row(self, row: int, generator: torch.Generator) -> _Configurations:
        """The same with one more row chosen."""
        own, weighted = self.probs[:, row], self.given * self.weights
        shares = self.share[:, None] / weighted.sum(1, keepdim=True) * (weighted @ own)  # (configuration, class)
        if shares.numel() <= _MOST_CONFIGURATIONS:
            which = torch.arange(shares.numel())
            share = shares.flatten()
        else:
            which = torch.multinomial(shares.flatten(), _MOST_CONFIGURATIONS, replacement=True, generator=generator)
            share = torch.full((len(which),), 1 / len(which), dtype=torch.float64)
        before, label = which // own.shape[1], which % own.shape[1]
        given = self.given[before] * own.T[label]
        possible = (share > 0) & (given > 0).any(1)
        given, share = given[possible], share[possible]
        largest = given.amax(1)
        scale = self.log_scale[before[possible]] + largest.log()
        return _Configurations(self.weights, self.probs, given / largest[:, None], scale, share)
