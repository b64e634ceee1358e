"""Likelihoods: how a network's outputs are read as a distribution over targets."""

from bayesemble.task.likelihoods import distilled as distilled  # saved students are read by their names
from bayesemble.task.likelihoods.base import Likelihood as Likelihood
from bayesemble.task.likelihoods.common import Bernoulli as Bernoulli
from bayesemble.task.likelihoods.common import Categorical as Categorical
from bayesemble.task.likelihoods.common import Gaussian as Gaussian
from bayesemble.task.likelihoods.common import Heteroscedastic as Heteroscedastic
from bayesemble.task.likelihoods.common import HeteroscedasticGaussian as HeteroscedasticGaussian
from bayesemble.task.likelihoods.common import HeteroscedasticStudent as HeteroscedasticStudent
from bayesemble.task.likelihoods.counts import NegativeBinomial as NegativeBinomial
from bayesemble.task.likelihoods.counts import Poisson as Poisson
from bayesemble.task.likelihoods.counts import ZeroInflatedPoisson as ZeroInflatedPoisson
from bayesemble.task.likelihoods.gaussian_mixtures import GaussianMixture as GaussianMixture
from bayesemble.task.likelihoods.multivariate import MultivariateGaussian as MultivariateGaussian
from bayesemble.task.likelihoods.ordered import Ordinal as Ordinal
from bayesemble.task.likelihoods.quantiles import Quantile as Quantile
from bayesemble.task.likelihoods.survival import LogNormal as LogNormal
from bayesemble.task.likelihoods.survival import Weibull as Weibull
