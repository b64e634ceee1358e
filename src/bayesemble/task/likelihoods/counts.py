"""Likelihoods of counts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.types import Leaves
from bayesemble.predictive import (
    NegativeBinomialPredictive,
    PoissonPredictive,
    Predictive,
    ZeroInflatedPoissonPredictive,
)
from bayesemble.predictive.counts import log_negative_binomial, log_zero_inflated
from bayesemble.task.likelihoods.base import Likelihood, as_counts, drop_single_output, held, per_row, with_heads

_LOG_MEAN, _LOG_SIZE = (-30.0, 30.0), (-20.0, 20.0)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """A count; outputs are log rates.

    log p(y|f) = y f - exp(f) - log y!
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Whole numbers from 0."""
        return as_counts(targets, output_shape)

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of the counts."""
        counts = targets.to(outputs.dtype)
        return per_row(counts * outputs - outputs.exp() - torch.lgamma(counts + 1))

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """The rate."""
        return outputs.exp()

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of Poisson distributions."""
        return PoissonPredictive(weights, drop_single_output(outputs).exp())


@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """A count that varies more than a Poisson count; the outputs `(batch, 2 * targets)` are two heads.

    The first half are log means, the second half log sizes r: the variance is m + m^2 / r, and r without end is a
    Poisson distribution. Log means are held within -30 to 30, log sizes within -20 to 20.

    log p(y|m, r) = log Gamma(y + r) / (Gamma(r) y!) + r log(r / (r + m)) + y log(m / (r + m))

    Reference: Cameron & Trivedi (2013), "Regression analysis of count data", where it is called NB2.
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Whole numbers from 0, half as many as outputs."""
        return as_counts(targets, with_heads(output_shape, 2, self, "a log mean and a log size"))

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of the counts."""
        return per_row(log_negative_binomial(targets.to(outputs.dtype), *_log_mean_and_size(outputs)))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of negative binomial distributions."""
        means, sizes = (drop_single_output(head.exp()) for head in _log_mean_and_size(outputs))
        return NegativeBinomialPredictive(weights, means, sizes)


@dataclass(frozen=True)
class ZeroInflatedPoisson(Likelihood):
    """A count that is 0 more often than a Poisson count; the outputs `(batch, 2 * targets)` are two heads.

    The first half are log rates of the Poisson part, held within -30 to 30; the second half are logits of the
    probability p that there is nothing to count.

    p(y|m, p) = p [y = 0] + (1 - p) exp(-m) m^y / y!

    Reference: Lambert (1992), "Zero-inflated Poisson regression, with an application to defects in manufacturing".
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Whole numbers from 0, half as many as outputs."""
        return as_counts(targets, with_heads(output_shape, 2, self, "a log rate and a logit of nothing to count"))

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of the counts."""
        log_rates, zero_logits = outputs.chunk(2, dim=-1)
        return per_row(log_zero_inflated(targets.to(outputs.dtype), held(log_rates, *_LOG_MEAN), zero_logits))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of zero-inflated Poisson distributions."""
        log_rates, zero_logits = outputs.chunk(2, dim=-1)
        rates = held(log_rates, *_LOG_MEAN).exp()
        return ZeroInflatedPoissonPredictive(weights, drop_single_output(rates), drop_single_output(zero_logits))


def _log_mean_and_size(outputs: Tensor) -> tuple[Tensor, Tensor]:
    means, sizes = outputs.chunk(2, dim=-1)
    return held(means, *_LOG_MEAN), held(sizes, *_LOG_SIZE)
