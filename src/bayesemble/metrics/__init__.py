"""Metrics: pure functions of a predictive distribution and the targets."""

from bayesemble.metrics.calibration import (
    Reliability,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from bayesemble.metrics.scores import accuracy, brier, coverage, nll, rmse
from bayesemble.metrics.selective import doubt, ood_auroc
from bayesemble.metrics.summary import summarise

__all__ = [
    "Reliability",
    "accuracy",
    "brier",
    "coverage",
    "doubt",
    "expected_calibration_error",
    "maximum_calibration_error",
    "nll",
    "ood_auroc",
    "reliability",
    "rmse",
    "summarise",
]
