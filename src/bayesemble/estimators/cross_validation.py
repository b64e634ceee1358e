"""Cross-validation of an estimator, whose folds are trained side by side where that gives the same bits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable

from bayesemble.core.errors import SettingError
from bayesemble.estimators.base import EnsembleEstimator
from bayesemble.estimators.classifier import EnsembleClassifier
from bayesemble.estimators.recipe import Training
from bayesemble.estimators.regressor import EnsembleRegressor
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.training.fit import complete
from bayesemble.training.prepare import Ready
from bayesemble.training.side_by_side import prepare_like, train_side_by_side


def cross_validate(
    model: EnsembleEstimator,
    x: Any,
    y: Any,
    *,
    cv: Any = 5,
    groups: Any = None,
    scoring: Any = None,
    return_estimator: bool = False,
) -> dict[str, Any]:
    """Fit an estimator on each fold and score it on the others, as `sklearn.model_selection.cross_validate` does.

    The scores are the same bits. Folds with the same number of training rows are trained as one vectorised run where
    `be.fit_side_by_side` could do that, all others one after the other.

    Args:
        model: An `EnsembleClassifier` or an `EnsembleRegressor`; it is copied for each fold and stays as it is.
        x: Rows.
        y: Labels or targets.
        cv: The number of folds, a splitter of scikit-learn, or pairs of the numbers of training and of test rows.
        groups: What each row belongs to, for splitters that go by that.
        scoring: A name, several, or functions, as scikit-learn takes them; None is the `score` of the estimator.
        return_estimator: Whether to return the fitted estimators, under "estimator".

    Returns the keys that scikit-learn has, each with an array of the folds: "test_score", or "test_NAME" for each of
    several scores, "fit_time" and "score_time" in seconds. Each `fit_time` is the same share of the time that all folds
    took. An error in a fold is raised, as with `error_score="raise"`.
    """
    if getattr(type(model), "fit", None) not in (EnsembleClassifier.fit, EnsembleRegressor.fit):
        raise SettingError(
            f"cross_validate trains EnsembleClassifier and EnsembleRegressor, got {type(model).__name__}; for other "
            "estimators, such as pipelines, there is sklearn.model_selection.cross_validate"
        )
    x, y = indexable(x, y)
    folds = list(check_cv(cv, y, classifier=is_classifier(model)).split(x, y, groups))
    scorer, start = check_scoring(model, scoring=scoring), time.perf_counter()
    models = [clone(model) for _ in folds]
    trainings = [
        one._prepare(_safe_indexing(x, train), _safe_indexing(y, train))
        for one, (train, _) in zip(models, folds, strict=True)
    ]
    with kept_memory():
        ready = _ready(trainings)
        runs = train_side_by_side(ready)
        for one, training, begun, run in zip(models, trainings, ready, runs, strict=True):
            one._take(training.completed(complete(begun, run)))
    found: dict[str, Any] = {"fit_time": np.full(len(folds), (time.perf_counter() - start) / len(folds))}
    scores, seconds = [], []
    for one, (_, test) in zip(models, folds, strict=True):
        start = time.perf_counter()
        score = scorer(one, _safe_indexing(x, test), _safe_indexing(y, test))
        scores.append(score if isinstance(score, dict) else {"score": score})
        seconds.append(time.perf_counter() - start)
    found["score_time"] = np.array(seconds)
    if return_estimator:
        found["estimator"] = models
    return found | {f"test_{name}": np.array([fold[name] for fold in scores]) for name in scores[0]}


def _ready(trainings: list[Training]) -> list[Ready]:
    """Runs that may begin; those with the same network share the task, as runs that are trained together have to."""
    ready = list[Ready]()
    for number, training in enumerate(trainings):
        like = next(one for one in range(number + 1) if trainings[one].network == training.network)
        first, task = ready[like : like + 1], trainings[like].task
        ready.append(prepare_like(first, task, training.method, training.data, **training.settings))
    return ready
