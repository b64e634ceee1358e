"""How good and how calibrated predictions of a table are, in words that chance does not contradict.

If a share is p, the one found in n rows scatters around it with a standard error of sqrt(p (1 - p) / n). Only what lies
two of them away is called a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEVEL = 0.9  # of the intervals that are judged
_SMALL = 0.02  # a gap that is real, but hardly matters
_COARSE = 0.05  # with an error above it, too few rows to judge by


def words(task: str, found: Mapping[str, Any], where: str = "held-out ") -> str:
    """An evaluation, as `evaluate_table` gives it, in two sentences."""
    rows, scores, baseline = found["rows"], found["scores"], found["baseline"]
    if not rows:
        return f"There are no {where}rows, so nothing is known about rows that were not trained on."
    start = f"On {rows:,} {where}{'rows' if rows > 1 else 'row'}: "
    if task == "classification":
        accuracy, confidence = scores["accuracy"], scores["accuracy"] + scores["overconfidence"]
        return (
            f"{start}accuracy {_percent(accuracy)} "
            f"(always saying {baseline['says']!r}: {_percent(baseline['accuracy'])}). "
            f"Its mean confidence is {_percent(confidence)}, ECE {scores['ece']:.3f} "
            f"(chance alone makes {found['chance_ece']:.3f}): {_judge_classes(rows, confidence, found)}."
        )
    inside = scores["coverage_90"]
    return (
        f"{start}RMSE {scores['rmse']:.4g} (predicting the mean alone: {baseline['rmse']:.4g}). "
        f"The {_percent(LEVEL, 0)} interval held {_percent(inside)} of the targets: "
        f"{_judge_interval(rows, inside, task)}."
    )


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _error(share: float, rows: int) -> float:
    """Twice the standard error of a share."""
    return 2 * (max(share * (1 - share), 0.0) / rows) ** 0.5


def _unknown(rows: int, error: float) -> str:
    return f"nothing speaks against its calibration, but {rows:,} rows can only tell it to ± {_percent(error, 0)}"


def _judge_interval(rows: int, inside: float, task: str) -> str:
    gap, error = inside - LEVEL, _error(LEVEL, rows)
    if task == "count" and gap > 0:  # an interval between whole numbers may have to hold more than it should
        gap = 0.0
    side, sure = ("too narrow", "too sure") if gap < 0 else ("too wide", "not sure enough")
    if abs(gap) <= error:
        return "well calibrated" if error <= _COARSE else _unknown(rows, error)
    if abs(gap) <= _SMALL:
        return f"almost calibrated, a little {side}"
    return f"intervals are {side}, the predictions {sure}"


def _judge_classes(rows: int, confidence: float, found: Mapping[str, Any]) -> str:
    gap, error = found["scores"]["overconfidence"], _error(confidence, rows)
    side = "too sure of itself" if gap > 0 else "not sure enough"
    if abs(gap) > error:
        return side if abs(gap) > _SMALL else f"almost calibrated, a little {side}"
    if error > _COARSE:
        return _unknown(rows, error)
    uneven = found["scores"]["ece"] > max(2 * found["chance_ece"], _SMALL)
    return "right on average, but too sure of some rows and not sure enough of others" if uneven else "well calibrated"
