import numpy as np
import pytest

from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.apps.tables.verdict import verdict


def interval(rows, inside, task="regression"):
    scores = {"rmse": 12.34, "coverage_90": inside, "nll": 1.0}
    return verdict(task, Evaluation(rows=rows, scores=scores, baseline={"rmse": 40.1}))


def classes(rows, accuracy, confidence, ece=0.0, chance=0.01):
    scores = {"accuracy": accuracy, "overconfidence": confidence - accuracy, "ece": ece}
    baseline = {"says": "no", "accuracy": 0.6}
    found = Evaluation(rows=rows, scores=scores, baseline=baseline, chance_ece=chance)
    return verdict("classification", found)


def test_both_sentences():
    assert interval(1000, 0.897) == (
        "On 1,000 held-out rows: RMSE 12.34 (predicting the mean alone: 40.1). "
        "The 90 % interval held 89.7 % of the targets: well calibrated."
    )
    assert classes(1000, 0.912, 0.905) == (
        "On 1,000 held-out rows: accuracy 91.2 % (always saying 'no': 60.0 %). "
        "Its mean confidence is 90.5 %, ECE 0.000 (chance alone makes 0.010): well calibrated."
    )
    assert verdict("count", Evaluation(rows=0, scores={}, baseline={})).startswith("There are no held-out rows")


@pytest.mark.parametrize(
    ("rows", "inside", "verdict"),
    [
        (1000, 0.882, "well calibrated"),
        (1000, 0.87, "too narrow, the predictions too sure"),
        (1000, 0.95, "too wide, the predictions not sure enough"),
        (100_000, 0.89, "almost calibrated, a little too narrow"),
        (20, 0.8, "20 rows can only tell it to ± 13 %"),
        (20, 0.3, "too narrow"),
    ],
)
def test_intervals_are_judged_by_what_that_many_rows_can_tell(rows, inside, verdict):
    assert interval(rows, inside).endswith(f"{verdict}.") or verdict in interval(rows, inside)


def test_intervals_between_counts_may_hold_more():
    assert "well calibrated" in interval(1000, 0.97, "count")
    assert "too narrow" in interval(1000, 0.8, "count")


@pytest.mark.parametrize(
    ("rows", "accuracy", "confidence", "ece", "verdict"),
    [
        (1000, 0.8, 0.9, 0.1, "too sure of itself"),
        (1000, 0.9, 0.8, 0.1, "not sure enough"),
        (100_000, 0.8, 0.81, 0.01, "almost calibrated, a little too sure of itself"),
        (1000, 0.8, 0.8, 0.15, "right on average, but"),
        (30, 0.8, 0.75, 0.1, "can only tell"),
        (1000, 1.0, 0.999, 0.001, "well calibrated"),
        (1000, 1.0, 1.0, 0.0, "well calibrated"),
        (1000, 0.8, 0.8, 0.02, "well calibrated"),
        (100_000, 0.0, 0.02, 0.02, "almost calibrated, a little too sure of itself"),
    ],
)
def test_classes_are_judged_by_what_that_many_rows_can_tell(rows, accuracy, confidence, ece, verdict):
    assert verdict in classes(rows, accuracy, confidence, ece)


def test_calibrated_predictions_are_seldom_blamed():
    """Of draws with the promised coverage, one in twenty lies two standard errors away."""
    generator = np.random.default_rng(0)
    for rows in (200, 2000):
        shares = generator.binomial(rows, 0.9, size=1000) / rows
        blamed = sum("calibrated" not in interval(rows, share) for share in shares)
        assert blamed < 70
