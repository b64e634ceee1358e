"""Classification of the rows of a table."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import DataError
from bayesemble.estimators.base import EnsembleEstimator, refuse_words
from bayesemble.estimators.recipe import Training
from bayesemble.predictive import ClassPredictive
from bayesemble.task.likelihoods import Categorical


class EnsembleClassifier(ClassifierMixin, EnsembleEstimator):  # type: ignore[misc]
    """A Bayesian ensemble of networks that classifies the rows of a table; for parameters see `EnsembleEstimator`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on rows `(row, column)` with labels of any kind, each of which may have a weight."""
        return self._take(self._prepare(X, y, sample_weight).run())

    def _prepare(self, X: Any, y: Any, sample_weight: Any = None) -> Training:  # noqa: N803
        """What `fit` does before it trains: look at rows and labels, and say how they are trained on."""
        refuse_words(X)
        x, targets = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(targets)
        x, targets, weights = self._rows_that_count(x, targets, sample_weight)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        num = len(self.classes_)
        if num < 2:
            raise DataError(f"a classifier needs at least 2 classes, y has 1 class: {self.classes_.tolist()[0]!r}")
        return self._training_on(x, labels, Categorical(), num, weights)

    def predict_proba(self, X: Any) -> NumpyArray:  # noqa: N803
        """Averaged probabilities `(row, class)`, in the order of `classes_`."""
        predictive = self._predictive(X)
        assert isinstance(predictive, ClassPredictive)
        return predictive.probs.numpy()

    def predict(self, X: Any) -> NumpyArray:  # noqa: N803
        """The most probable class of each row."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]
