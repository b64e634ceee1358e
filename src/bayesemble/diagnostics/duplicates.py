"""Members that coincide: in their weights, or in what they compute.

Members equal up to the order of their hidden units have different weights but are the same function: only the second
comparison sees that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from bayesemble.core.members import Members
from bayesemble.metrics import jensen_shannon_matrix
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive


@dataclass(frozen=True)
class Distinct:
    """Groups of members that coincide; most groups hold one member."""

    by_weights: list[list[int]]
    by_function: list[list[int]]


def distinct(members: Members, predictive: Predictive, tolerance: float = 1e-3) -> Distinct:
    """Group members by what is the same to within the tolerance: `distinct(ensemble.draw(), ensemble.predict(x))`.

    Weights coincide if their distance is below `tolerance` times their norm. Functions coincide if on the given rows
    their mean Jensen-Shannon divergence is below `tolerance` squared nats, or for real targets if their means differ by
    less than `tolerance` standard deviations (root mean square).
    """
    return Distinct(
        by_weights=groups(weight_distances(members) < tolerance),
        by_function=groups(function_distances(predictive) < tolerance),
    )


def weight_distances(members: Members) -> Tensor:
    """Distance of the parameters of two members relative to their mean norm, `(member, member)`, leaf by leaf."""
    num = members.num_members
    squares, norms = torch.zeros(num, num, dtype=torch.float64), torch.zeros(num, dtype=torch.float64)
    for name, leaf in members.params.items():
        if name in members.shared:
            continue
        flat = leaf.reshape(num, -1).double()
        norms += flat.square().sum(1)
        centred = flat - flat.mean(0)  # close members far from zero would lose all digits
        gram = centred @ centred.T
        squares += gram.diagonal()[:, None] + gram.diagonal() - 2 * gram
    return (squares.clamp_min(0) / norms.mean().clamp_min(1e-300)).sqrt()


def function_distances(predictive: Predictive) -> Tensor:
    """Distance of the predictions of two members, `(member, member)`, on the scale that `distinct` states."""
    if isinstance(predictive, ClassPredictive):
        return jensen_shannon_matrix(predictive).sqrt()
    assert isinstance(predictive, RealPredictive)
    means, variances = predictive.member_mean.double(), predictive.member_variance.double()
    rows = [
        ((means - mean).square() / ((variances + variance) / 2)).flatten(1).mean(1).sqrt()
        for mean, variance in zip(means, variances, strict=True)
    ]
    return torch.stack(rows)


def groups(same: Tensor) -> list[list[int]]:
    """Connected components of a symmetric relation `(member, member)`, each in rising order."""
    count, component = connected_components(same.numpy(), directed=False)
    return [np.flatnonzero(component == number).tolist() for number in range(count)]
