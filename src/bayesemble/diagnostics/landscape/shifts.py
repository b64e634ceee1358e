"""How much networks differ where data shift: of independent runs, and around one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape.measure import as_ensemble, members_of
from bayesemble.diagnostics.landscape.neighbourhoods import KINDS, Acceptance, samples
from bayesemble.predictive import ClassPredictive
from bayesemble.training.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class ShiftDivergence:
    """Jensen-Shannon divergence of networks in nats, on each of several sets of rows."""

    names: list[str]
    """Of the sets."""
    divergence: dict[str, Tensor]
    """`(set,)` for each kind of networks; "members" are independent runs."""


def divergence_under_shift(
    ensemble: Ensemble,
    shifts: Mapping[str, Any],
    *,
    kinds: Sequence[str] = ("members", *KINDS),
    num: int | None = None,
    last: int = 10,
    scales: Mapping[str, float] | None = None,
    seed: int = 0,
    train: Any = None,
    least_accuracy: float | None = None,
    validation: Any = None,
    tries: int = 5,
) -> ShiftDivergence:
    """How far the predictions of networks lie apart on known rows, corrupted ones and foreign ones.

        JS = mean over rows of  H[ mean_k p_k ] - mean_k H[ p_k ]

    of the members ("members"), or of as many samples around one member, averaged over members. Networks of one run that
    hardly move apart where the data are foreign are as sure there as one network is.

    Args:
        ensemble: Of any method that classifies; two or more members.
        shifts: Inputs `(row, ...)` by name, such as `{"test": x, "fog": corrupt(x, "fog", 3), "SVHN": x_svhn}`.
        kinds: "members", or those of `sample_subspace`.
        num: How many samples around each member; None takes as many as there are members.
        last: Other arguments are those of `sample_subspace`.
        scales: One for each kind.
        seed: Of the samples.
        train: For batch norm.
        least_accuracy: Samples of a lower one are drawn again.
        validation: Rows that it is measured on.
        tries: How many times.

    Reference: Fort, Hu & Lakshminarayanan (2019), section 5; Lin (1991) for the divergence.
    """
    count = ensemble.num_members if num is None else num
    require(ensemble.num_members > 1 and count > 1, "a divergence is of two networks or more; train or sample more")
    require(bool(shifts), "no rows were given; shifts is a dict of inputs by name")
    accept = Acceptance(least_accuracy, validation, tries)

    def around(kind: str, member: int) -> Iterable[Members]:
        return samples(ensemble, member, kind, count, last, (scales or {}).get(kind), seed, train, accept)

    found = {}
    for kind in kinds:
        if kind == "members":
            found[kind] = _divergences(ensemble, [members_of(ensemble)], shifts)
        else:
            each = [_divergences(ensemble, around(kind, member), shifts) for member in range(ensemble.num_members)]
            found[kind] = torch.stack(each).mean(0)
    return ShiftDivergence(list(shifts), found)


def _divergences(ensemble: Ensemble, parts: Iterable[Members], shifts: Mapping[str, Any]) -> Tensor:
    """Of networks that come in parts, `(set,)`: the sums of probabilities and of entropies are kept, not networks."""
    probs, entropies, num = dict[str, Tensor](), dict[str, Tensor](), 0
    for part in parts:
        num += part.num_members
        for name, inputs in shifts.items():
            predictive = as_ensemble(ensemble, part).predict(inputs)
            if not isinstance(predictive, ClassPredictive):
                raise SettingError("the divergence is of classes, but this task predicts numbers")
            own = predictive.member_probs.double()
            probs[name] = probs.get(name, 0) + own.sum(0)
            entropies[name] = entropies.get(name, 0) + _entropy(own).sum(0)
    return torch.stack([(_entropy(probs[name] / num) - entropies[name] / num).mean().clamp_min(0) for name in shifts])


def _entropy(probs: Tensor) -> Tensor:
    return -torch.special.xlogy(probs, probs).sum(-1)
