"""Folds side by side give what scikit-learn's cross-validation gives, to the bit."""

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, max_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesemble.core.errors import DataError, SettingError
from bayesemble.estimators import EnsembleClassifier, EnsembleRegressor, cross_validate
from bayesemble.training import side_by_side
from estimator_rows import QUICK, labels, rows

X, Y = rows()


@pytest.fixture
def groups(monkeypatch):
    """How many folds were trained as one, each time."""
    found, train_together = [], side_by_side.train_together

    def noted(few, *rest):
        runs = train_together(few, *rest)
        found.append(len(few) if runs else 1)
        return runs

    monkeypatch.setattr(side_by_side, "train_together", noted)
    return found


def same(model, x, y, **options):
    """What it returns, after a look at whether scikit-learn returns the same but for times."""
    found = cross_validate(model, x, y, return_estimator=True, **options)
    options = {"return_estimator": True, "error_score": "raise"} | options
    expected = model_selection.cross_validate(model, x, y, **options)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if name != "estimator":
            assert (found[name].shape, found[name].dtype) == (values.shape, values.dtype)
        if name.startswith("test_"):
            assert np.array_equal(found[name], values), name
    for one, other in zip(found["estimator"], expected["estimator"], strict=True):
        assert np.array_equal(one.predict(x), other.predict(x))
        assert one.n_iter_ == other.n_iter_
    return found


def test_folds_of_a_regression_are_trained_together(groups):
    model = EnsembleRegressor(**QUICK | {"epochs": 30, "patience": 3})
    found = same(model, X, Y, cv=4, scoring=["r2", "neg_root_mean_squared_error"])
    assert groups == [4]
    assert len({one.n_iter_ for one in found["estimator"]}) > 1, "some stopped before others"
    assert len(set(found["fit_time"])) == 1
    assert (found["score_time"] > 0).all()
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_folds_of_a_classification_go_together_as_far_as_they_have_as_many_rows(groups):
    pandas = pytest.importorskip("pandas")
    x, names = pandas.DataFrame(X[:118], columns=["a", "b", "c"]), pandas.Series(labels(Y[:118]))
    found = same(EnsembleClassifier(**QUICK), x, names)
    assert sorted(groups) == [2, 3]
    assert (found["test_score"] > 0.6).all()
    assert list(found["estimator"][0].feature_names_in_) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (EnsembleRegressor("map", **QUICK), {"cv": 2}),
        (EnsembleRegressor("repulsive", **QUICK), {"cv": 2}),
        (EnsembleRegressor(**QUICK | {"embedding": "piecewise"}), {"cv": 2}),
        (EnsembleRegressor(**QUICK), {"cv": [(np.arange(70), np.arange(70, 120)), (np.arange(60), np.arange(60, 90))]}),
        (
            EnsembleRegressor(**QUICK),
            {
                "cv": model_selection.GroupKFold(2),
                "groups": np.arange(120) // 41,
                "scoring": make_scorer(max_error, greater_is_better=False),
            },
        ),
    ],
    ids=["one network", "interaction", "networks of their own", "given folds", "groups"],
)
def test_all_other_folds_are_trained_one_by_one(model, options, groups):
    same(model, X, Y, **options)
    assert groups == [1, 1]


def test_what_cannot_be_cross_validated_here_is_refused():
    class Own(EnsembleRegressor):
        def fit(self, x, y, sample_weight=None):
            return super().fit(x, -y, sample_weight)

    for model in (make_pipeline(StandardScaler(), EnsembleRegressor(**QUICK)), Own(**QUICK)):
        with pytest.raises(SettingError, match=f"got {type(model).__name__}; for other"):
            cross_validate(model, X, Y)
    with pytest.raises(DataError, match="needs at least 2 classes"):
        cross_validate(EnsembleClassifier(**QUICK), X, labels(Y), cv=[(np.flatnonzero(Y > 40), np.arange(120))])
