"""The prior that an ensemble has learned: point masses at its members, seen on a plane of weight space.

    pi = sum_m pi_m delta(theta_m)

and what Bayes' rule makes of their masses. The plane is that of the two widest directions of the members (principal
components of all weights in one line), on which distances are kept as well as on any plane.

Reference: Loaiza-Ganem et al. (2025), "Deep Ensembles Secretly Perform Empirical Bayes".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.diagnostics import weighting
from bayesemble.task.running import network_leaves
from bayesemble.training.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class LearnedPrior:
    """Where the point masses are, and how heavy they are before and after the data are seen."""

    positions: Tensor
    """`(member, 2)`: coordinates on the plane, in units of weights; (0, 0) is the mean of the members."""
    prior_weights: Tensor
    """`(member,)`."""
    posterior_weights: Tensor
    """`(member,)`, by Bayes' rule on the rows that were given."""
    share: float
    """What share of the members' squared distances from their mean the plane shows."""


def learned_prior(ensemble: Ensemble, data: Any, *, penalised: bool = False) -> LearnedPrior:
    """The members of an ensemble as the atoms of a learned prior, with their posterior weights.

    Args:
        ensemble: Of any method with two or more networks.
        data: The training rows: see `weighting.evidence`.
        penalised: Whether weights count the density of the task's prior too.
    """
    networks = ensemble.draw().unshared()
    require(networks.num_members > 1, "a picture of point masses needs two networks or more, this ensemble has one")
    found = weighting.evidence(ensemble, data, penalised=penalised)
    positions, share = _plane(network_leaves(networks.params))
    return LearnedPrior(positions, found.prior_weights, found.weights, share)


def _plane(params: Leaves) -> tuple[Tensor, float]:
    """Coordinates of stacked leaves in their two widest directions, from the products of their deviations."""
    products = torch.zeros(())
    for leaf in params.values():
        flat = leaf.reshape(len(leaf), -1).double()
        flat = flat - flat.mean(0)
        products = products + flat @ flat.T
    values, vectors = torch.linalg.eigh(products)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    signs = torch.where(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
    positions = (signs * vectors * values.sqrt())[:, :2]
    total = float(values.sum())
    return positions, float(values[:2].sum()) / total if total > 0 else 1.0
