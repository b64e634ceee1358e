"""Regression on the rows of a table."""

import math
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from bayesemble.core.arrays import NumpyArray
from bayesemble.data.catalogue import location_and_scale
from bayesemble.estimators.base import EnsembleEstimator, refuse_words
from bayesemble.estimators.recipe import Training
from bayesemble.predictive import LocationScalePredictive


class EnsembleRegressor(MultiOutputMixin, RegressorMixin, EnsembleEstimator):  # type: ignore[misc]
    """A Bayesian ensemble of networks that predicts one number or several for each row of a table.

    The noise depends on the row, as members learn it, and has heavy tails unless `noise` says otherwise. For the
    parameters see `EnsembleEstimator`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on rows `(row, column)` with targets `(row,)` or `(row, target)`, each of which may have a weight."""
        return self._take(self._prepare(X, y, sample_weight).run())

    def _prepare(self, X: Any, y: Any, sample_weight: Any = None) -> Training:  # noqa: N803
        """What `fit` does before it trains: look at rows and targets, and say how they are trained on."""
        refuse_words(X)
        x, targets = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        x, targets, weights = self._rows_that_count(x, targets.astype(np.float64), sample_weight)
        self._target_shift, self._target_scale = location_and_scale(targets, 0, weights)
        self._target_axes = targets.shape[1:]
        scaled = ((targets - self._target_shift) / self._target_scale).astype(np.float32)
        return self._training_on(x, scaled, self._recipe().real_likelihood(), 2 * math.prod(self._target_axes), weights)

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Means of the targets; with `return_std` also their standard deviations, noise included."""
        predictive = self._predictive(X)
        mean = self._shaped(predictive.mean)
        return (mean, self._shaped(predictive.std)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[NumpyArray, NumpyArray]:  # noqa: N803
        """Lower and upper end of the central interval that holds the target with probability `level`."""
        lower, upper = self._predictive(X, keep_members=True).interval(level)
        return self._shaped(lower), self._shaped(upper)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NumpyArray:  # noqa: N803
        """Draw targets `(row, n_samples)` or `(row, target, n_samples)`: each draw is one member plus noise."""
        predictive = self._predictive(X, keep_members=True)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        drawn = predictive.sample(n_samples, torch.Generator().manual_seed(seed))
        return np.moveaxis(drawn.numpy().reshape(n_samples, drawn.shape[1], *self._target_axes), 0, -1)

    def _predictive(self, X: Any, keep_members: bool = False) -> LocationScalePredictive:  # noqa: N803
        predictive = super()._predictive(X, keep_members)
        assert isinstance(predictive, LocationScalePredictive)
        return predictive.rescale(self._target_shift.squeeze(), self._target_scale.squeeze())

    def _shaped(self, values: torch.Tensor) -> NumpyArray:
        """Targets in the shape that they had in training."""
        return values.numpy().reshape(-1, *self._target_axes)
