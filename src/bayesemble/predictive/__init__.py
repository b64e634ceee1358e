"""Predictive distributions: what comes out of an ensemble."""

from bayesemble.predictive.base import Predictive, match_targets
from bayesemble.predictive.classes import ClassPredictive
from bayesemble.predictive.reals import NormalPredictive, PoissonPredictive, RealPredictive

__all__ = [
    "ClassPredictive",
    "NormalPredictive",
    "PoissonPredictive",
    "Predictive",
    "RealPredictive",
    "match_targets",
]
