"""How good and how calibrated predictions of a table are, in words that chance does not contradict.

If a share is p, the one found in n rows scatters around it with a standard error of sqrt(p (1 - p) / n). Only what lies
two of them away is called a fault.
"""

from __future__ import annotations

from bayesemble.apps.tables.evaluation import Evaluation

INTERVAL_LEVEL = 0.9
_HARMLESS_GAP = 0.02  # it may be real, but hardly matters
_LARGEST_ERROR = 0.05  # beyond it, there are too few rows to judge by


def verdict(task: str, evaluation: Evaluation, where: str = "held-out ") -> str:
    """The scores of an evaluation in two sentences; `where` says which rows these are."""
    rows, scores, baseline = evaluation.rows, evaluation.scores, evaluation.baseline
    if not rows:
        return f"There are no {where}rows, so nothing is known about rows that were not trained on."
    start = f"On {rows:,} {where}{'rows' if rows > 1 else 'row'}: "
    if task == "classification":
        accuracy, confidence = scores["accuracy"], scores["accuracy"] + scores["overconfidence"]
        return (
            f"{start}accuracy {_percent(accuracy)} "
            f"(always saying {baseline['says']!r}: {_percent(baseline['accuracy'])}). "
            f"Its mean confidence is {_percent(confidence)}, ECE {scores['ece']:.3f} "
            f"(chance alone makes {evaluation.chance_ece:.3f}): {_judge_classes(confidence, evaluation)}."
        )
    inside = scores["coverage_90"]
    return (
        f"{start}RMSE {scores['rmse']:.4g} (predicting the mean alone: {baseline['rmse']:.4g}). "
        f"The {_percent(INTERVAL_LEVEL, 0)} interval held {_percent(inside)} of the targets: "
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
    gap, error = inside - INTERVAL_LEVEL, _error(INTERVAL_LEVEL, rows)
    if task == "count" and gap > 0:  # an interval between whole numbers may have to hold more than it should
        gap = 0.0
    side, sure = ("too narrow", "too sure") if gap < 0 else ("too wide", "not sure enough")
    if abs(gap) <= error:
        return "well calibrated" if error <= _LARGEST_ERROR else _unknown(rows, error)
    if abs(gap) <= _HARMLESS_GAP:
        return f"almost calibrated, a little {side}"
    return f"intervals are {side}, the predictions {sure}"


def _judge_classes(confidence: float, evaluation: Evaluation) -> str:
    assert evaluation.chance_ece is not None
    gap, error = evaluation.scores["overconfidence"], _error(confidence, evaluation.rows)
    side = "too sure of itself" if gap > 0 else "not sure enough"
    if abs(gap) > error:
        return side if abs(gap) > _HARMLESS_GAP else f"almost calibrated, a little {side}"
    if error > _LARGEST_ERROR:
        return _unknown(evaluation.rows, error)
    uneven = evaluation.scores["ece"] > max(2 * evaluation.chance_ece, _HARMLESS_GAP)
    return "right on average, but too sure of some rows and not sure enough of others" if uneven else "well calibrated"
