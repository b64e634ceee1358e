import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import cross_val_predict

from bayesemble.core.errors import DataError
from bayesemble.estimators import EnsembleClassifier
from estimator_rows import QUICK, labels, rows


def test_labels_of_any_kind_come_back_in_the_order_of_classes():
    x, y = rows()
    for names in (labels(y), y > 40, np.where(y > 40, 7, -2)):
        classifier = EnsembleClassifier(**QUICK | {"epochs": 20}).fit(x, names)
        assert list(classifier.classes_) == sorted(set(names))
        assert classifier.predict(x).dtype == names.dtype
        assert classifier.score(x, names) > 0.9
        second = classifier.predict_proba(x)[:, 1]
        assert second[names == classifier.classes_[1]].mean() > second[names == classifier.classes_[0]].mean()
    uncertainty = classifier.predict_uncertainty(x)
    np.testing.assert_allclose(uncertainty["total"], classifier.predictive(x).entropy.numpy(), atol=1e-12)


def test_it_serves_inside_other_tools_of_scikit_learn():
    x, y = rows(60)
    calibrated = CalibratedClassifierCV(EnsembleClassifier(**QUICK), cv=2).fit(x, labels(y))
    np.testing.assert_allclose(calibrated.predict_proba(x).sum(1), 1)
    probs = cross_val_predict(EnsembleClassifier(**QUICK), x, labels(y), cv=2, method="predict_proba")
    assert probs.shape == (60, 2)


def test_a_single_class_is_refused():
    with pytest.raises(DataError, match=r"at least 2 classes, y has 1 class: 0\.0$"):
        EnsembleClassifier(**QUICK).fit(rows(40)[0], np.zeros(40))
