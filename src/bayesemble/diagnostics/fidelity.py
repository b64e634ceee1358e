"""How close the predictions of an ensemble are to those of a reference, usually Hamiltonian Monte Carlo.

The reference is the yardstick, not the truth: what is scored is how well a cheap method stands in for a costly one.
No targets are needed.

Reference: Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?", for agreement and total
variation; Wilson et al. (2022), "Evaluating approximate inference in Bayesian deep learning", for Wasserstein.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import check_finite
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import require
from bayesemble.predictive import ClassPredictive, NormalPredictive, Predictive
from bayesemble.training.batches import PerMember
from bayesemble.training.ensemble import Ensemble

CELLS_AT_ONCE = 2**20
"""How many numbers a step of the Wasserstein distance holds at most, unless one row alone needs more."""

_REACH_IN_STDS = 8.0  # beyond, a normal distribution function is 0 or 1 to within 1e-15
_POINTS_PER_MIXTURE = 256  # of the grid, around its members; at least one per member
_EVENLY_SPACED_POINTS = 128  # of the grid, over the range of both mixtures
_ROUNDING = 1e-13  # of differences of distribution functions
_HALVINGS = 30


def fidelity(ensemble: Ensemble | Predictive, reference: Ensemble | Predictive, inputs: Any = None) -> dict[str, float]:
    """Compare what an ensemble predicts with what a reference predicts for the same rows.

    Classes, of the averaged probabilities p (ensemble) and q (reference), each a mean over rows and outputs:

    | score | formula | perfect |
    | --- | --- | --- |
    | agreement | share with the same most probable class | 1 |
    | total_variation | sum_c abs(p_c - q_c) / 2 | 0 |

    Real numbers, of mixtures of normals, each a mean over rows and outputs; in units of the target but for the ratios:

    | score | formula | perfect |
    | --- | --- | --- |
    | std_ratio | exp mean log( std / std of the reference ), observation noise included | 1 |
    | epistemic_std_ratio | the same of the standard deviation of the members' means | 1 |
    | log_std_error | mean of abs log of that epistemic ratio, so that too much and too little cannot cancel | 0 |
    | wasserstein | integral of abs( F(y) - G(y) ) dy, F and G the distribution functions of the two mixtures | 0 |
    | mean_error | root mean square difference of the predictive means | 0 |

    Members that all agree, or a single one, have no epistemic variance. Where neither side has any, they count as
    equal. Where only the ensemble has none, `epistemic_std_ratio` is 0; where only the reference has none, it is
    infinite, unless it is 0 already. In both cases `log_std_error` is infinite. No score is ever NaN.

    Args:
        ensemble: What is judged: an `Ensemble`, or a `Predictive` of the rows.
        reference: What it is judged by, likewise.
        inputs: The rows to predict; None if both are predictions already.
    """
    ours, theirs = _predict(ensemble, reference, inputs)
    if isinstance(ours, ClassPredictive) and isinstance(theirs, ClassPredictive):
        return _of_classes(ours, theirs)
    if isinstance(ours, NormalPredictive) and isinstance(theirs, NormalPredictive):
        return _of_reals(ours, theirs)
    kinds = f"{type(ours).__name__} and {type(theirs).__name__}"
    raise SettingError(
        f"fidelity compares predictions of classes, or mixtures of normals, with their like; got {kinds}"
    )


def _predict(ensemble: Any, reference: Any, inputs: Any) -> tuple[Predictive, Predictive]:
    """Predict what is not predicted yet, so that both sides are predictions of the same rows."""
    for side in (ensemble, reference):
        if not isinstance(side, Ensemble | Predictive):
            raise SettingError(f"fidelity compares an Ensemble or Predictive with another, got {type(side).__name__}")
    needed = isinstance(ensemble, Ensemble) or isinstance(reference, Ensemble)
    require(needed or inputs is None, "both sides are predictions already, so inputs have no use; pass inputs=None")
    require(not needed or inputs is not None, "an ensemble has to predict something: pass the inputs to compare on")
    require(not isinstance(inputs, PerMember), "the members are averaged, so they must share the inputs; not PerMember")
    ours, theirs = (side.predict(inputs) if isinstance(side, Ensemble) else side for side in (ensemble, reference))
    return ours, theirs


def _of_classes(ours: ClassPredictive, theirs: ClassPredictive) -> dict[str, float]:
    p, q = ours.probs.double(), theirs.probs.double()
    _check_shapes(p, q, "probabilities")
    return {
        "agreement": float((p.argmax(-1) == q.argmax(-1)).double().mean()),
        "total_variation": float((p - q).abs().sum(-1).mean() / 2),
    }


def _of_reals(ours: NormalPredictive, theirs: NormalPredictive) -> dict[str, float]:
    ours, theirs = _in_double(ours), _in_double(theirs)
    _check_shapes(ours.mean, theirs.mean, "means")
    _check_shapes(ours.std, theirs.std, "standard deviations")
    epistemic = _log_ratio(ours.epistemic, theirs.epistemic) / 2
    return {
        "std_ratio": _geometric_mean(_log_ratio(ours.variance, theirs.variance) / 2),
        "epistemic_std_ratio": _geometric_mean(epistemic),
        "log_std_error": float(epistemic.abs().mean()),
        "wasserstein": float(wasserstein(ours, theirs).mean()),
        "mean_error": float((ours.mean - theirs.mean).square().mean().sqrt()),
    }


def _in_double(predictive: NormalPredictive) -> NormalPredictive:
    predictive.need_members("fidelity")
    double = predictive.double()
    return replace(double, weights=double.weights / double.weights.sum())


def _check_shapes(ours: Tensor, theirs: Tensor, name: str) -> None:
    if ours.shape != theirs.shape:
        raise DataError(
            f"the two sides must predict the same rows and outputs; their {name} are {tuple(ours.shape)} for the "
            f"ensemble and {tuple(theirs.shape)} for the reference"
        )
    check_finite(ours, f"{name} of the ensemble")
    check_finite(theirs, f"{name} of the reference")


def _log_ratio(ours: Tensor, theirs: Tensor) -> Tensor:
    """Log of ours / theirs; two zeros count as equal."""
    return torch.where(ours == theirs, 0.0, ours.log() - theirs.log())


def _geometric_mean(logs: Tensor) -> float:
    """Geometric mean of numbers given by their logarithms; one zero makes it zero, even beside infinite numbers."""
    return 0.0 if logs.isneginf().any() else float(logs.mean().exp())


# --- the Wasserstein distance of two mixtures of normals ---


def wasserstein(ours: NormalPredictive, theirs: NormalPredictive) -> Tensor:
    """Wasserstein-1 distance between the predicted distributions of each row and output, `(row,)` or `(row, output)`.

        W1 = integral of |D(y)| dy,   D = F - G

    The integral of D has a closed form, B(y) = sum_m w_m ( (y - m) Phi(z) + s phi(z) ) of the one mixture less that of
    the other, z = (y - m) / s. Between two roots of D, |D| integrates to the difference of B. The roots are looked for
    on a grid that follows the members of both, and found by bisection. So the only error is that of two roots between
    neighbouring grid points, where D is tiny. It takes members * grid points * rows steps.

    Reference: Vallender (1974), "Calculation of the Wasserstein distance between distributions on the line".
    """
    means = torch.cat([ours.means, theirs.means]).double().flatten(1)
    stds = torch.cat([ours.stds, theirs.stds]).double().flatten(1).clamp_min(torch.finfo(torch.float64).tiny)
    weights = torch.cat([ours.weights, -theirs.weights]).double()
    levels = [_levels(side.num_members) for side in (ours, theirs)]
    points = sum(len(level) * side.num_members for level, side in zip(levels, (ours, theirs), strict=True))
    rows_at_once = how_many_fit(CELLS_AT_ONCE, (points + _EVENLY_SPACED_POINTS) * len(weights))
    parts = []
    for mean, std in zip(means.split(rows_at_once, 1), stds.split(rows_at_once, 1), strict=True):
        mean = mean - mean.mean(0)  # far from zero, B would lose its digits
        parts.append(_integral(weights, mean, std, _grid(mean, std, ours.num_members, levels)))
    return torch.cat(parts).reshape(ours.means.shape[1:])


def _levels(num_members: int) -> Tensor:
    """Where in each member the grid has points, in standard deviations: an odd number, so the mean is among them."""
    count = 2 * (_POINTS_PER_MIXTURE // (2 * num_members)) + 1
    return torch.linspace(-_REACH_IN_STDS, _REACH_IN_STDS, count + 2, dtype=torch.float64)[1:-1]


def _grid(means: Tensor, stds: Tensor, ours: int, levels: list[Tensor]) -> Tensor:
    """Sorted points `(point, row)` around each member of both sides, and evenly over the range."""
    around_members = [
        (mean + std * level[:, None, None]).flatten(0, 1)
        for mean, std, level in zip((means[:ours], means[ours:]), (stds[:ours], stds[ours:]), levels, strict=True)
    ]
    low, high = (means - _REACH_IN_STDS * stds).amin(0), (means + _REACH_IN_STDS * stds).amax(0)
    even = low + (high - low) * torch.linspace(0, 1, _EVENLY_SPACED_POINTS, dtype=torch.float64)[:, None]
    return torch.cat([*around_members, even]).sort(0).values


def _integral(weights: Tensor, means: Tensor, stds: Tensor, grid: Tensor) -> Tensor:
    """Integral of |D| over the grid, `(row,)`. Means and stds are `(member, row)`; weights of G count negative."""
    height, area = _height_and_area(weights, means, stds, grid)
    height = torch.where(height.abs() < _ROUNDING, 0.0, height)
    total = area.diff(dim=0).abs().sum(0)
    cell, row = (height[:-1] * height[1:] < 0).nonzero(as_tuple=True)
    means, stds = means[:, row], stds[:, row]
    low, high, rising = grid[cell, row], grid[cell + 1, row], height[cell + 1, row] > 0
    for _ in range(_HALVINGS):
        root = (low + high) / 2
        height_at_root, area_at_root = (part[0] for part in _height_and_area(weights, means, stds, root[None]))
        before = (height_at_root < 0) == rising
        low, high = torch.where(before, root, low), torch.where(before, high, root)
    left, right = area[cell, row], area[cell + 1, row]
    return total.index_add(0, row, (area_at_root - left).abs() + (right - area_at_root).abs() - (right - left).abs())


def _height_and_area(weights: Tensor, means: Tensor, stds: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """D = F - G and B, its integral from minus infinity, at points `(point, row)`."""
    distance = points - means[:, None]
    standardised = distance / (stds[:, None] * math.sqrt(2))
    below = (torch.erf(standardised) + 1) / 2
    density = (-standardised.square()).exp() / math.sqrt(2 * math.pi)
    area = distance * below + stds[:, None] * density
    return torch.tensordot(weights, below, dims=1), torch.tensordot(weights, area, dims=1)
