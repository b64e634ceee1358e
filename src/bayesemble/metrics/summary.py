"""The scores of one predictive distribution, by the kind of its target."""

from typing import Any

from bayesemble.metrics.calibration import expected_calibration_error
from bayesemble.metrics.scores import accuracy, brier, coverage, nll, rmse
from bayesemble.metrics.selective import ood_auroc
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive


def summarise(predictive: Predictive, targets: Any, foreign: Predictive | None = None) -> dict[str, float]:
    """All scores that apply. With predictions of foreign data, also how well doubt tells it apart."""
    scores = {"nll": nll(predictive, targets)}
    if isinstance(predictive, ClassPredictive):
        scores |= {
            "accuracy": accuracy(predictive, targets),
            "ece": expected_calibration_error(predictive, targets),
            "brier": brier(predictive, targets),
        }
    elif isinstance(predictive, RealPredictive):
        scores |= {"rmse": rmse(predictive, targets), "coverage_90": coverage(predictive, targets, 0.9)}
    if foreign is not None:
        scores |= {
            "ood_auroc": ood_auroc(predictive, foreign),
            "ood_auroc_epistemic": ood_auroc(predictive, foreign, "epistemic"),
        }
    return scores
