"""Predictive distributions: what comes out of an ensemble."""

from bayesemble.predictive.base import Predictive, match_targets
from bayesemble.predictive.classes import ClassPredictive
from bayesemble.predictive.decide import Abstention, Decision, fit_threshold
from bayesemble.predictive.doubt import doubt, measures
from bayesemble.predictive.reals import NormalPredictive, PoissonPredictive, RealPredictive

__all__ = [
    "Abstention",
    "ClassPredictive",
    "Decision",
    "NormalPredictive",
    "PoissonPredictive",
    "Predictive",
    "RealPredictive",
    "doubt",
    "fit_threshold",
    "match_targets",
    "measures",
]
