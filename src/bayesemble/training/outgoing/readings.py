"""What a module or a file answers, by name: read off a predictive distribution, with gradients where there are any.

| name | classes | real numbers and counts |
| --- | --- | --- |
| probs | averaged probabilities `(row, class)` | |
| entropy | entropy of `probs`, in nats | |
| mean, std, variance | | of the mixture, `(row,)` or `(row, output)` |
| low, high | | ends of the central interval that holds the target with probability `level` |
| aleatoric, epistemic | entropies in nats, which add up to `entropy` | variances, which add up to `variance` |
| disagreement, member_std | as measures of `Predictive.uncertainty` | |
| set | whether each class is possible, `(row, class)`, if sets were calibrated | |
| abstain | whether the row is not answered, `(row,)`, if a risk was calibrated | |
| member_probs, member_mean, member_variance | of each member, `(member, row, ...)` | the same |

`outputs` are the numbers that the networks themselves give, `(member, row, ...)`, whatever the likelihood. If intervals
were calibrated, low and high are the ends of these (`Calibration.intervals`), and their level is the one of the
calibration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.predictive.base import check_level
from bayesemble.predictive.counts import CountPredictive
from bayesemble.predictive.reals import RealPredictive
from bayesemble.training.afterwards.calibration import MEASURE, Calibration, need

OUTPUTS = "outputs"
_SET, _ABSTAIN = DECISIONS = ("set", "abstain")
USUAL = {
    "classes": ("probs", "entropy", "aleatoric", "epistemic"),
    "numbers": ("mean", "std", "low", "high", "aleatoric", "epistemic"),
}
_KNOWN = {
    "classes": (*USUAL["classes"], "disagreement", "member_std", "member_probs", *DECISIONS),
    "numbers": (*USUAL["numbers"], "variance", "member_mean", "member_variance"),
}
_VARIANCES = ("variance", "aleatoric", "epistemic", "member_variance")


@dataclass(frozen=True)
class Rules:
    """What intervals, sets and abstaining go by."""

    level: float
    calibration: Calibration | None = None

    @staticmethod
    def of(level: float | None, calibration: Calibration | None) -> Rules:
        """Those of a level that is asked for, or (None) of the calibration, or 0.9; another level is refused."""
        if level is not None:
            check_level(level)
        known = None if calibration is None else calibration.level
        if known is None:
            return Rules(0.9 if level is None else level, calibration)
        require(
            level is None or level == known,
            f"intervals and sets are calibrated at level {known:g}, got level={level}; leave it out, or calibrate anew",
        )
        return Rules(known, calibration)

    def usual(self, predictive: Predictive) -> tuple[str, ...]:
        """The outputs that are given unless others are named."""
        return *USUAL[predictive.kind], *self.decisions

    @property
    def decisions(self) -> tuple[str, ...]:
        """Those of `DECISIONS` that were calibrated."""
        return tuple(name for name in DECISIONS if self.has(name))

    def has(self, name: str) -> bool:
        """Whether something was calibrated that an output of this name tells of."""
        found = {_SET: "set_threshold", _ABSTAIN: "risk"}
        return self.calibration is not None and getattr(self.calibration, found[name]) is not None


def read(predictive: Predictive, outputs: Tensor, names: Sequence[str] | None, rules: Rules) -> dict[str, Tensor]:
    """What these names mean, or (None) what is usual for such a prediction."""
    asked = names or rules.usual(predictive)
    ends = _ends(predictive, asked, rules) if isinstance(predictive, RealPredictive) else {}
    return {name: ends[name] if name in ends else _one(predictive, outputs, name, rules) for name in asked}


def _one(predictive: Predictive, outputs: Tensor, name: str, rules: Rules) -> Tensor:
    if name == OUTPUTS:
        return outputs
    known = [one for one in _KNOWN[predictive.kind] if _has(predictive, one, rules)]
    if name not in known:
        raise SettingError(
            f"{type(predictive).__name__} has {', '.join((*known, OUTPUTS))}, and no output called {name!r}"
            + (" without ensemble.calibrate(...)" if name in DECISIONS else "")
        )
    if name in DECISIONS:
        value, threshold = beside_threshold(predictive, name, rules)
        return value <= threshold if name == _SET else ~(value < threshold)
    found: Tensor = getattr(predictive, name)
    return found


def beside_threshold(predictive: Predictive, name: str, rules: Rules) -> tuple[Tensor, float]:
    """What a decision is made by, in double precision, and the threshold that was calibrated for it."""
    calibration = rules.calibration
    assert calibration is not None
    if name == _SET:
        assert calibration.set_threshold is not None
        return 1 - need(predictive, ClassPredictive).probs.double(), calibration.set_threshold
    below = calibration.answer_below
    return predictive.uncertainty(MEASURE).double(), math.inf if below is None else below


def _has(predictive: Predictive, name: str, rules: Rules) -> bool:
    if name in DECISIONS:
        return rules.has(name)
    return isinstance(predictive, RealPredictive) if name in ("low", "high") else hasattr(type(predictive), name)


def _ends(predictive: RealPredictive, names: Sequence[str], rules: Rules) -> dict[str, Tensor]:
    """Those ends of the interval that are asked for: of the mixture, and moved as far as the calibration says.

    An interval that would end before it begins shrinks to its middle, for which both ends are needed.
    """
    level, calibration = rules.level, rules.calibration
    shares = {"low": (1 - level) / 2, "high": (1 + level) / 2}
    asked = [name for name in shares if name in names]
    if not asked or calibration is None or calibration.interval_corrections is None:
        return {name: _quantile(predictive, shares[name]) for name in asked}
    low, high = (_quantile(predictive, share) for share in shares.values())
    moved = torch.tensor(calibration.interval_corrections, dtype=low.dtype, device=low.device).reshape(low.shape[1:])
    middle = (low + high) / 2
    ends = {"low": (low - moved).minimum(middle), "high": (high + moved).maximum(middle)}
    return {name: ends[name] for name in asked}


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
