import numpy as np
import pytest

from bayesemble.estimators import EnsembleRegressor
from estimator_rows import QUICK, rows


def test_predictions_follow_the_units_of_the_targets():
    """Of 1000 y - 7, means are shifted and scaled, standard deviations scaled, and variances scaled twice."""
    x, y = rows()
    one, other = EnsembleRegressor(**QUICK).fit(x, y), EnsembleRegressor(**QUICK).fit(x, 1000 * y - 7)
    (mean, std), (moved, wide) = one.predict(x, return_std=True), other.predict(x, return_std=True)
    np.testing.assert_allclose(moved, 1000 * mean - 7, rtol=1e-3)
    np.testing.assert_allclose(wide, 1000 * std, rtol=1e-3)
    for own, scaled in zip(one.predict_interval(x, 0.8), other.predict_interval(x, 0.8), strict=True):
        np.testing.assert_allclose(scaled, 1000 * own - 7, rtol=1e-3)
    uncertainty = one.predict_uncertainty(x)
    np.testing.assert_allclose(uncertainty["total"], std**2)
    np.testing.assert_allclose(uncertainty["aleatoric"] + uncertainty["epistemic"], uncertainty["total"])
    np.testing.assert_allclose(one.predictive(x).mean.numpy(), mean)
    assert one.predictive(x).num_members == 2


def test_drawn_targets_have_the_predicted_moments():
    x, y = rows()
    estimator = EnsembleRegressor(**QUICK).fit(x, y)
    mean, std = estimator.predict(x[:5], return_std=True)
    drawn = estimator.sample_y(x[:5], n_samples=20_000)
    assert drawn.shape == (5, 20_000)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=4 * std.max() / 20_000**0.5)
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.03)
    np.testing.assert_array_equal(drawn, estimator.sample_y(x[:5], n_samples=20_000, random_state=0))
    lower, upper = estimator.predict_interval(x[:5], level=0.9)
    inside = (drawn > lower[:, None]) & (drawn < upper[:, None])
    np.testing.assert_allclose(inside.mean(1), 0.9, atol=0.01)


@pytest.mark.parametrize("axes", [(), (1,), (2,)])
def test_targets_keep_their_shape(axes):
    x, y = rows(40)
    targets = {(): y, (1,): y[:, None], (2,): np.stack([y, -3 * y], 1)}[axes]
    estimator = EnsembleRegressor(**QUICK | {"epochs": 60}).fit(x, targets)
    mean, std = estimator.predict(x, return_std=True)
    assert mean.shape == std.shape == estimator.predict_interval(x)[0].shape == targets.shape
    assert estimator.sample_y(x, 3).shape == (*targets.shape, 3)
    assert estimator.score(x, targets) > 0.8


def test_intervals_are_those_of_the_mixture():
    """Two members far apart: the normal with the same moments has quite another interval."""
    x, y = rows(40)
    estimator = EnsembleRegressor(**QUICK).fit(x, y)
    *_, last = (leaf for name, leaf in estimator.ensemble_.state.members.params.items() if name.endswith("bias"))
    last[0, 0] += 20
    for level in (0.5, 0.9):
        found, wanted = estimator.predict_interval(x, level), estimator.predictive(x).interval(level)
        for own, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(own, other.numpy())
    mean, std = estimator.predict(x, return_std=True)
    assert (np.abs(found[1] - (mean + 1.645 * std)) > 0.1 * std).all()
