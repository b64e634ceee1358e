"""To answer or to abstain: a threshold on uncertainty that keeps a promised error rate."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesemble.core.arrays import check_finite
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.predictive.base import Predictive

logger = logging.getLogger("bayesemble")

CANDIDATES = 20
"""How many shares of answered rows are tried at most. More give a finer choice and a wider bound for each."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What is answered, and where no answer is given."""

    abstain: Tensor
    """(row,), True where the uncertainty is too large to answer."""
    choice: Tensor
    """(row,) or (row, output): the most probable class or the mean, of all rows; use it where `answered`."""

    @property
    def answered(self) -> Tensor:
        """(row,), True where the choice is given as an answer."""
        return ~self.abstain

    @property
    def coverage(self) -> float:
        """The share of rows that are answered."""
        return float(self.answered.double().mean())


@dataclass(frozen=True)
class Abstention:
    """Answer the rows whose uncertainty lies below a threshold; see `fit_threshold` for what is promised."""

    threshold: float
    """Rows with uncertainty strictly below are answered: minus infinity answers none, infinity all."""
    measure: str
    expected_risk: float
    """The error rate of the answered validation rows: what to expect. 0 if none is answered."""
    risk_bound: float
    """What the error rate of answered rows lies below, with the confidence. 0 if none is answered."""
    coverage: float
    """The share of validation rows that are answered."""
    max_risk: float
    confidence: float

    @property
    def abstains_always(self) -> bool:
        """Whether it abstains always, because no threshold keeps the promise."""
        return self.threshold == -math.inf

    def decide(self, predictive: Predictive) -> Decision:
        """Choose for each row the most probable class (or the mean), and abstain where it is too uncertain."""
        # Uncertainty that is not a number is below nothing.
        return Decision(~(predictive.uncertainty(self.measure).double() < self.threshold), predictive.answers)

    def __str__(self) -> str:
        promise = f"an error rate of at most {self.max_risk:g} with confidence {self.confidence:g}"
        if self.abstains_always:
            return f"abstains always: no threshold on {self.measure} uncertainty keeps {promise}"
        kept = f"and it keeps {promise}: the bound is {self.risk_bound:.2%}"
        if self.threshold == math.inf:
            return f"answers every row; {self.expected_risk:.2%} of the validation rows are wrong, {kept}"
        return (
            f"answers where {self.measure} uncertainty is below {self.threshold:g}, "
            f"{self.coverage:.1%} of the validation rows; {self.expected_risk:.2%} of them are wrong, {kept}"
        )


def fit_threshold(
    predictive: Predictive, targets: Any, max_risk: float, measure: str = "total", confidence: float = 0.95
) -> Abstention:
    """Find the threshold that answers most rows while an upper bound on their error rate is low enough.

    The promise: with probability `confidence` over validation sets, the error rate among the answered rows of new data
    is at most `max_risk` in the long run; that of a few rows scatters about it. It needs validation rows that were not
    trained on, drawn independently from what the new rows are drawn from, and nothing else: neither calibrated
    probabilities nor a useful measure of uncertainty. It does not hold for foreign data, nor for parts of the data by
    themselves. A row with several outputs is wrong if one is.

    How: a few shares of answered rows, 5 %, 10 %, ..., 100 %, are fixed beforehand. Given the uncertainty t at which a
    share ends, the validation rows below t are independent draws from all rows below t, so their errors are binomial,
    and the exact upper bound of Clopper & Pearson holds:

        bound = the p at which P( Binomial(rows below t, p) <= errors ) = (1 - confidence) / number of shares

    The division (Bonferroni) makes all bounds hold at once, so the largest share whose bound is at most `max_risk` may
    be picked. Without it, picking the best-looking threshold breaks the promise. If no share will do, it abstains
    always and says so in a log message: more validation rows, a larger `max_risk` or a better model are needed.

    Args:
        predictive: Predictions of the validation rows, of classes.
        targets: Their labels.
        max_risk: The largest acceptable error rate among answered rows, strictly between 0 and 1.
        measure: The measure of uncertainty, see `Predictive.uncertainty`.
        confidence: The probability with which the promise holds, strictly between 0 and 1.

    Reference: Geifman & El-Yaniv (2017), Selective classification for deep neural networks; Angelopoulos et al. (2021),
    Learn then test, for the view as multiple testing.
    """
    uncertainties = predictive.uncertainty(measure).double()
    return threshold_by(uncertainties, _wrong(predictive, targets), max_risk, measure, confidence)


def threshold_by(
    uncertainties: Tensor, wrong: Tensor, max_risk: float, measure: str = "total", confidence: float = 0.95
) -> Abstention:
    """The same from the uncertainty of each validation row, and whether its answer is wrong, in whatever sense."""
    require(0 < max_risk < 1, f"max_risk is an error rate strictly between 0 and 1, got {max_risk}")
    require(0 < confidence < 1, f"confidence is a probability strictly between 0 and 1, got {confidence}")
    check_finite(uncertainties, "uncertainty")
    shares = _shares(len(uncertainties), max_risk, 1 - confidence)
    abstention = Abstention(-math.inf, measure, 0.0, 0.0, 0.0, max_risk, confidence)
    for threshold in _thresholds(uncertainties, shares):
        below = uncertainties < threshold
        rows, errors = int(below.sum()), int(wrong[below].sum())
        bound = binomial_bound(errors, rows, (1 - confidence) / len(shares))
        if bound <= max_risk:
            coverage = rows / len(uncertainties)
            abstention = Abstention(threshold, measure, errors / rows, bound, coverage, max_risk, confidence)
    if abstention.abstains_always:
        logger.warning("%s, by %d validation rows", abstention, len(uncertainties))
    return abstention


def binomial_bound(errors: int, rows: int, level: float) -> float:
    """The exact upper bound on an error rate: it is too small with probability `level` at most. 1 without rows.

    Reference: Clopper & Pearson (1934).
    """
    from scipy.special import betaincinv

    return 1.0 if errors == rows else float(betaincinv(errors + 1, rows - errors, 1 - level))


def _wrong(predictive: Predictive, targets: Any) -> Tensor:
    """(row,), whether an output of the row is given the wrong class."""
    if predictive.kind != "classes":
        raise SettingError(
            f"an error rate is promised for predictions of classes, got {type(predictive).__name__}; "
            "for real numbers and counts use intervals, bayesemble.metrics.conformal.fit_intervals"
        )
    wrong = predictive.losses(targets) > 0
    return wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong


def _shares(num_rows: int, max_risk: float, level: float) -> list[int]:
    """Numbers of rows to answer that are worth a try, rising; known before the labels are looked at.

    Numbers are left out whose bound is too large even without an error: (1 - max_risk)^rows > level / numbers left.
    """
    shares = sorted({math.ceil(num_rows * step / CANDIDATES) for step in range(1, CANDIDATES + 1)})
    while shares and (1 - max_risk) ** shares[0] > level / len(shares):
        shares = shares[1:]
    return shares


def _thresholds(uncertainties: Tensor, shares: list[int]) -> list[float]:
    """For each number of rows, the uncertainty that this many rows lie below, or fewer if there are ties."""
    ordered = [*uncertainties.sort().values.tolist(), math.inf]
    return [ordered[share] for share in shares]
