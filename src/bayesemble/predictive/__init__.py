"""What comes out: weighted mixtures over members, and what people ask of them."""

from bayesemble.predictive.abstain import Abstention as Abstention
from bayesemble.predictive.abstain import Decision as Decision
from bayesemble.predictive.abstain import fit_threshold as fit_threshold
from bayesemble.predictive.base import Predictive as Predictive
from bayesemble.predictive.base import match_targets as match_targets
from bayesemble.predictive.classes import ClassPredictive as ClassPredictive
from bayesemble.predictive.classes import DirichletPredictive as DirichletPredictive
from bayesemble.predictive.classes import from_probs
from bayesemble.predictive.counts import CountPredictive as CountPredictive
from bayesemble.predictive.counts import NegativeBinomialPredictive as NegativeBinomialPredictive
from bayesemble.predictive.counts import PoissonPredictive as PoissonPredictive
from bayesemble.predictive.counts import ZeroInflatedPoissonPredictive as ZeroInflatedPoissonPredictive
from bayesemble.predictive.gaussian_mixtures import GaussianMixturePredictive as GaussianMixturePredictive
from bayesemble.predictive.multivariate import MultivariateNormalPredictive as MultivariateNormalPredictive
from bayesemble.predictive.ordered import OrdinalPredictive as OrdinalPredictive
from bayesemble.predictive.quantiles import QuantilePredictive as QuantilePredictive
from bayesemble.predictive.reals import LocationScalePredictive as LocationScalePredictive
from bayesemble.predictive.reals import NormalPredictive as NormalPredictive
from bayesemble.predictive.reals import RealPredictive as RealPredictive
from bayesemble.predictive.reals import from_normal
from bayesemble.predictive.student_t import StudentPredictive as StudentPredictive
from bayesemble.predictive.survival import LogNormalPredictive as LogNormalPredictive
from bayesemble.predictive.survival import SurvivalPredictive as SurvivalPredictive
from bayesemble.predictive.survival import WeibullPredictive as WeibullPredictive

Predictive.from_probs, Predictive.from_normal = staticmethod(from_probs), staticmethod(from_normal)
