"""bayesemble turns any PyTorch network into a Bayesian ensemble.

The imports below are the public names. Each is carried out when its name is first used, so that the command line
answers at once.
"""

import os
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Left to itself, MKL may round a product by where its numbers lie in memory, as it does on processors of AMD. It reads
# this before its first product; who has set it keeps it.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from bayesemble import data as data
    from bayesemble import estimators as estimators
    from bayesemble import metrics as metrics
    from bayesemble import models as models
    from bayesemble.core.errors import BayesembleError as BayesembleError
    from bayesemble.core.errors import CheckpointError as CheckpointError
    from bayesemble.core.errors import DataError as DataError
    from bayesemble.core.errors import ExecutionError as ExecutionError
    from bayesemble.core.errors import Interrupted as Interrupted
    from bayesemble.core.errors import MissingExtraError as MissingExtraError
    from bayesemble.core.errors import ModelError as ModelError
    from bayesemble.core.errors import SettingError as SettingError
    from bayesemble.core.errors import TrainingError as TrainingError
    from bayesemble.core.members import Members as Members
    from bayesemble.diagnostics import landscape as landscape
    from bayesemble.diagnostics import plots as plots
    from bayesemble.diagnostics import weighting as weighting
    from bayesemble.diagnostics.acquire import acquire as acquire
    from bayesemble.diagnostics.component_weights import stack_components as stack_components
    from bayesemble.diagnostics.convergence import convergence as convergence
    from bayesemble.diagnostics.diagnose import diagnose as diagnose
    from bayesemble.diagnostics.fidelity import fidelity as fidelity
    from bayesemble.diagnostics.learned_prior import learned_prior as learned_prior
    from bayesemble.diagnostics.match_prior import match_prior as match_prior
    from bayesemble.diagnostics.plan import plan as plan
    from bayesemble.diagnostics.prior_predictive import prior_predictive as prior_predictive
    from bayesemble.diagnostics.size import count_parameters as count_parameters
    from bayesemble.execute import schedules as schedules
    from bayesemble.execute.loop import Loop as Loop
    from bayesemble.execute.measured import forget_measured as forget_measured
    from bayesemble.execute.ranks.ranks import Ranks as Ranks
    from bayesemble.execute.vmap import Vmap as Vmap
    from bayesemble.methods import METHODS as METHODS
    from bayesemble.methods import register as register
    from bayesemble.methods.base import Context as Context
    from bayesemble.methods.base import Method as Method
    from bayesemble.methods.implicit.patched import Patched as Patched
    from bayesemble.methods.repulsion import kernels as kernels
    from bayesemble.methods.repulsion import scores as scores
    from bayesemble.methods.repulsion.function_space import FunctionSpace as FunctionSpace
    from bayesemble.methods.repulsion.samplers import RowSampler as RowSampler
    from bayesemble.methods.repulsion.weight_space import WeightSpace as WeightSpace
    from bayesemble.predictive import Predictive as Predictive
    from bayesemble.task.adapters.adapt import adapt as adapt
    from bayesemble.task.likelihoods import Bernoulli as Bernoulli
    from bayesemble.task.likelihoods import Categorical as Categorical
    from bayesemble.task.likelihoods import Gaussian as Gaussian
    from bayesemble.task.likelihoods import GaussianMixture as GaussianMixture
    from bayesemble.task.likelihoods import HeteroscedasticGaussian as HeteroscedasticGaussian
    from bayesemble.task.likelihoods import HeteroscedasticStudent as HeteroscedasticStudent
    from bayesemble.task.likelihoods import Likelihood as Likelihood
    from bayesemble.task.likelihoods import LogNormal as LogNormal
    from bayesemble.task.likelihoods import MultivariateGaussian as MultivariateGaussian
    from bayesemble.task.likelihoods import NegativeBinomial as NegativeBinomial
    from bayesemble.task.likelihoods import Ordinal as Ordinal
    from bayesemble.task.likelihoods import Poisson as Poisson
    from bayesemble.task.likelihoods import Quantile as Quantile
    from bayesemble.task.likelihoods import Weibull as Weibull
    from bayesemble.task.likelihoods import ZeroInflatedPoisson as ZeroInflatedPoisson
    from bayesemble.task.priors import LaplacePrior as LaplacePrior
    from bayesemble.task.priors import NormalPrior as NormalPrior
    from bayesemble.task.priors import VaguePrior as VaguePrior
    from bayesemble.task.task import Task as Task
    from bayesemble.training import callbacks as callbacks
    from bayesemble.training.afterwards.calibration import Calibration as Calibration
    from bayesemble.training.afterwards.distil import distil as distil
    from bayesemble.training.batches import PerMember as PerMember
    from bayesemble.training.callbacks.base import Callback as Callback
    from bayesemble.training.ensemble import Ensemble as Ensemble
    from bayesemble.training.ensemble import evaluate as evaluate
    from bayesemble.training.fit import fit as fit
    from bayesemble.training.incoming.streams import Stream as Stream
    from bayesemble.training.pretrained.widening import tfb as tfb
    from bayesemble.training.run_folders.loading import load as load
    from bayesemble.training.side_by_side import fit_side_by_side as fit_side_by_side

    # methods: begin (written by make registry)
    # isort: off
    from bayesemble.methods.deep_ensemble import DeepEnsemble as DeepEnsemble
    from bayesemble.methods.repulsion.repulsive import Repulsive as Repulsive
    from bayesemble.methods.repulsion.stein import Stein as Stein
    from bayesemble.methods.implicit.patched import EMP as EMP
    from bayesemble.methods.implicit.patched import ECMP as ECMP
    from bayesemble.methods.implicit.patched import Dropout as Dropout
    from bayesemble.methods.implicit.patched import DropConnect as DropConnect
    from bayesemble.methods.mc_dropout import MCDropout as MCDropout
    from bayesemble.methods.implicit.patched import Explicit as Explicit
    from bayesemble.methods.along_training.swag import SWAG as SWAG
    from bayesemble.methods.along_training.sgmcmc import CyclicalSGMCMC as CyclicalSGMCMC
    from bayesemble.methods.along_training.snapshot import Snapshot as Snapshot
    from bayesemble.methods.along_training.subspace import Subspace as Subspace
    from bayesemble.methods.laplace.laplace import Laplace as Laplace
    from bayesemble.methods.mean_field import MeanField as MeanField
    from bayesemble.methods.along_training.hmc import HMC as HMC
    # isort: on
    # methods: end
else:
    from bayesemble.core.lazy import attach

    __getattr__, __dir__, __all__ = attach(__name__, __file__)
