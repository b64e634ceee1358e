"""What a module or a file answers, by name: read off a predictive distribution, with gradients where there are any.

| name | classes | real numbers and counts |
| --- | --- | --- |
| probs | averaged probabilities `(row, class)` | |
| entropy | entropy of `probs`, in nats | |
| mean, std, variance | | of the mixture, `(row,)` or `(row, output)` |
| low, high | | ends of the central interval that holds the target with probability `level` |
| aleatoric, epistemic | entropies in nats, which add up to `entropy` | variances, which add up to `variance` |
| disagreement, member_std | as measures of `Predictive.uncertainty` | |
| member_probs, member_mean, member_variance | of each member, `(member, row, ...)` | the same |

`outputs` are the numbers that the networks themselves give, `(member, row, ...)`, whatever the likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.predictive import Predictive
from bayesemble.predictive.counts import CountPredictive
from bayesemble.predictive.reals import RealPredictive

OUTPUTS = "outputs"
USUAL = {
    "classes": ("probs", "entropy", "aleatoric", "epistemic"),
    "numbers": ("mean", "std", "low", "high", "aleatoric", "epistemic"),
}
_KNOWN = {
    "classes": (*USUAL["classes"], "disagreement", "member_std", "member_probs"),
    "numbers": (*USUAL["numbers"], "variance", "member_mean", "member_variance"),
}
_VARIANCES = ("variance", "aleatoric", "epistemic", "member_variance")


def read(predictive: Predictive, outputs: Tensor, names: Sequence[str] | None, level: float) -> dict[str, Tensor]:
    """What these names mean, or (None) what is usual for such a prediction."""
    return {name: _one(predictive, outputs, name, level) for name in names or USUAL[predictive.kind]}


def _one(predictive: Predictive, outputs: Tensor, name: str, level: float) -> Tensor:
    if name == OUTPUTS:
        return outputs
    known = [one for one in _KNOWN[predictive.kind] if _has(predictive, one)]
    if name not in known:
        raise SettingError(
            f"{type(predictive).__name__} has {', '.join((*known, OUTPUTS))}, and no output called {name!r}"
        )
    if name in ("low", "high"):
        assert isinstance(predictive, RealPredictive)
        return _quantile(predictive, (1 - level) / 2 if name == "low" else (1 + level) / 2)
    found: Tensor = getattr(predictive, name)
    return found


def _has(predictive: Predictive, name: str) -> bool:
    return isinstance(predictive, RealPredictive) if name in ("low", "high") else hasattr(type(predictive), name)


def _quantile(predictive: RealPredictive, level: float) -> Tensor:
    """The quantile q of the mixture, found by bisection, with the slope that F(q(x); x) = level gives it.

        dq = -dF(q; x) / p(q)

    That of a count jumps from one whole number to the next, and has the slope 0 between.
    """
    with torch.no_grad():
        found = predictive.quantile(level)
    if torch.compiler.is_exporting() or not torch.is_grad_enabled() or isinstance(predictive, CountPredictive):
        return found
    density = predictive.log_average(predictive.member_log_density(found)).exp().detach()
    moved = predictive.cdf(found) / density
    return found - (moved - moved.detach())


def tolerances(predictive: Predictive, names: Sequence[str], share: float) -> dict[str, float]:
    """By how much two ways to compute each output may differ: a share of what is rounded in it.

    Probabilities and entropies are of the size of 1. Means are rounded as their own size asks, standard deviations
    with them, and a variance s^2 of means m by m s.
    """
    if not isinstance(predictive, RealPredictive):
        return dict.fromkeys(names, share)
    spread = float(predictive.std.abs().max())
    size = max(float(predictive.mean.abs().max()), spread)
    return {name: share * size * (spread if name in _VARIANCES else 1.0) for name in names}
