"""Likelihoods of times until something happens, where some rows were not seen to their end."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.types import Leaves
from bayesemble.predictive import LogNormalPredictive, Predictive, WeibullPredictive
from bayesemble.predictive.survival import log_lognormal, log_ndtr, log_weibull
from bayesemble.task.likelihoods.base import Likelihood, held, refuse_rows

_LOG_TIME = (-30.0, 30.0)
_LOG_SHAPE = (-2.0, 4.0)
_LOG_SCALE = (-7.0, 1.5)
_POWER = (-80.0, 40.0)


@dataclass(frozen=True)
class Survival(Likelihood):
    """A positive time with right-censoring; targets are pairs `(batch, 2)`: a time, and 1 if the event happened then.

    With 0 in place of 1 the event had not happened by that time, and nothing more is known. Targets `(batch,)` are
    times of events. The outputs `(batch, 2)` are two heads. With S(t) = P(T > t) and density f,

        log p(t, 1) = log f(t),     log p(t, 0) = log S(t)
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Pairs of a positive time, and 0 or 1."""
        if tuple(output_shape) != (2,):
            came = tuple(output_shape) or "one number"
            raise DataError(f"{type(self).__name__} needs two outputs per row, the network gives {came}")
        if targets.dim() == 1 or targets.shape[1:] == (1,):
            times = targets.reshape(len(targets))
            targets = torch.stack([times, torch.ones_like(times)], dim=1)
        if targets.shape[1:] != (2,):
            raise DataError(
                "targets are times (rows,), or pairs (rows, 2) of a time and 1 if the event happened then, 0 if it had "
                f"not happened yet; got {tuple(targets.shape)}"
            )
        refuse_rows(~(targets[:, 0] > 0), targets, "a positive time, and 1 or 0")
        refuse_rows((targets[:, 1] != 0) & (targets[:, 1] != 1), targets, "a time, and 1 (it happened) or 0 (not yet)")
        return targets

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse rows of which none was seen to its end: times without end would fit them best."""
        if not (targets[:, 1] == 1).any():
            raise DataError(f"training needs at least one event; all {len(targets)} rows are censored")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of the events, and log probability of what lies beyond the censored times."""
        log_times, seen = targets[:, 0].to(outputs.dtype).log(), targets[:, 1] != 0
        log_density, log_survival = self._logs(log_times, *outputs.unbind(-1))
        return torch.where(seen, log_density, log_survival)

    @abstractmethod
    def _logs(self, log_times: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """log f and log S of times, for the two heads."""


@dataclass(frozen=True)
class Weibull(Survival):
    """A time whose hazard rises or falls as a power of it; see `Survival` for targets and censoring.

    The heads are the logarithms of scale a and shape k: S(t) = exp(-(t / a)^k). The hazard rises for k > 1, is constant
    for k = 1 and falls for k < 1. They are held within -30 to 30 and -2 to 4.

    Reference: Kalbfleisch & Prentice (2002), "The statistical analysis of failure time data", section 2.2.
    """

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of Weibull distributions."""
        log_scales, log_shapes = outputs.unbind(-1)
        return WeibullPredictive(weights, held(log_scales, *_LOG_TIME), held(log_shapes, *_LOG_SHAPE).exp())

    def _logs(self, log_times: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        shapes = held(second, *_LOG_SHAPE).exp()
        powers = held(shapes * (log_times - held(first, *_LOG_TIME)), *_POWER)
        return log_weibull(powers, log_times, shapes), -powers.exp()


@dataclass(frozen=True)
class LogNormal(Survival):
    """A time whose logarithm is normal; see `Survival` for targets and censoring.

    The heads are the mean of log T and the logarithm of its standard deviation, held within -30 to 30 and -7 to 1.5.

    Reference: Kalbfleisch & Prentice (2002), "The statistical analysis of failure time data", section 2.2.
    """

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of log-normal distributions."""
        locations, log_scales = outputs.unbind(-1)
        return LogNormalPredictive(weights, held(locations, *_LOG_TIME), held(log_scales, *_LOG_SCALE).exp())

    def _logs(self, log_times: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        locations, scales = held(first, *_LOG_TIME), held(second, *_LOG_SCALE).exp()
        return log_lognormal(log_times, locations, scales), log_ndtr((locations - log_times) / scales)
