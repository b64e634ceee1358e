"""What comes out: weighted mixtures over members, and what people ask of them."""

from bayesemble.predictive.abstain import Abstention, Decision, fit_threshold
from bayesemble.predictive.base import Predictive, match_targets
from bayesemble.predictive.classes import ClassPredictive
from bayesemble.predictive.doubt import doubt, measures
from bayesemble.predictive.reals import LocationScalePredictive, NormalPredictive, PoissonPredictive, RealPredictive
from bayesemble.predictive.student_t import StudentPredictive

__all__ = [
    "Abstention",
    "ClassPredictive",
    "Decision",
    "LocationScalePredictive",
    "NormalPredictive",
    "PoissonPredictive",
    "Predictive",
    "RealPredictive",
    "StudentPredictive",
    "doubt",
    "fit_threshold",
    "match_targets",
    "measures",
]
