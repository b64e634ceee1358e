"""The largest variance around trained adapters that held-out rows allow, found by bisection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bayesemble.core.errors import ModelError
from bayesemble.core.members import State
from bayesemble.core.settings import require, whole
from bayesemble.methods.tfb import SLOT, TFB, pairs
from bayesemble.training.ensemble import Ensemble

_FIRST = 1e-3
_DOUBLINGS = 20


def tfb(
    ensemble: Ensemble, data: Any, *, tolerance: float = 0.01, draws: int = 10, halvings: int = 6, seed: int = 0
) -> Ensemble:
    """Turn trained low-rank adapters into Gaussians, as wide as held-out data allow; nothing is trained.

    It returns an ensemble that draws networks around the members of the one that is given, with the largest standard
    deviation `std` of which the loss on the data, with `draws` networks, is at most `tolerance` above that of the
    members themselves:

        loss(std) <= loss(0) + tolerance,      loss = mean -log p(y|x) under the averaged prediction

    The same random numbers are used for every std. It is doubled until the loss is too high, and then bisected.

    Args:
        ensemble: Members with low-rank adapters, by `be.adapt(model, "lora", ...)` or peft.
        data: Held-out rows `(x, y)`; on rows of training the loss allows too little.
        tolerance: How much higher the loss may be, in nats a row.
        draws: Networks of a prediction.
        halvings: Steps of the bisection, each of which costs a prediction of the data.
        seed: Of the draws that are compared.

    Reference: Shi et al. (2024), "Training-free Bayesianization for low-rank adapters of large language models".
    """
    require(tolerance > 0, f"tolerance is how much higher the loss may be, above 0, got {tolerance}")
    halvings = whole(halvings, f"halvings is a whole number from 1, got {halvings!r}")
    members = ensemble.state.members
    if not pairs(members.params):
        raise ModelError(
            "tfb widens low-rank adapters, of which this network has none; see be.adapt(model, 'lora', ...)"
        )
    if ensemble.method.can_draw(ensemble.state):
        raise ModelError(
            f"{type(ensemble.method).__name__} draws networks already; tfb is for members, as of be.DeepEnsemble"
        )
    method = TFB(num_members=members.num_members, draws=draws)

    def with_std(std: float) -> Ensemble:
        slot = {"std": torch.full_like(members.weights, std)}
        return replace(ensemble, method=method, state=State(members, {SLOT: slot}))

    def fits(std: float) -> bool:
        return _loss(with_std(std), data, seed) <= limit

    limit = _loss(ensemble, data, seed) + tolerance
    low, high = 0.0, _FIRST
    for _ in range(_DOUBLINGS):
        if not fits(high):
            break
        low, high = high, 2 * high
    else:
        raise ModelError(
            f"the loss does not rise however widely adapters are moved, up to std={low:.3g}: they do nothing"
        )
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return with_std(low)


def _loss(ensemble: Ensemble, data: Any, seed: int) -> float:
    """Mean of -log p(y|x) under the averaged prediction."""
    total, count = 0.0, 0
    for predictive, targets in ensemble.predictions(data, seed=seed):
        log_prob = predictive.log_prob(targets).double()
        total, count = total - float(log_prob.sum()), count + log_prob.numel()
    return total / count
