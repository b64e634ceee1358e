import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.estimators import EnsembleClassifier, EnsembleRegressor, can_stop_early
from bayesemble.methods import make_method
from estimator_rows import OWN, QUICK, labels, rows
from other_device import NAME, other_device  # noqa: F401

# Settings under which every other method is done at once.
SHORT = {
    "csgmcmc": {"method__cycles": 2, "method__samples_per_cycle": 1},
    "snapshot": {"method__snapshots": 2},
    "subspace": {"method__dim": 1, "method__rank": 2, "method__draws": 4, "method__start": 0.5},
    "hmc": {"learning_rate": None, "batch_size": None, "method__max_leapfrog": 4, "method__num_draws": 2},
}


KINDS = (EnsembleClassifier, EnsembleRegressor)


def beyond_single_precision(estimator):
    """Repeated rows are held to 1e-7, but members train in single precision: see the test of weights below."""
    known = {"check_sample_weight_equivalence_on_dense_data": "members train in single precision"}
    return known if isinstance(estimator, EnsembleClassifier) else {}


@parametrize_with_checks([kind(**QUICK) for kind in KINDS], expected_failed_checks=beyond_single_precision)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


# Of other methods, those checks that meet what is theirs: settings, slots of the state, and how they draw.
OF_A_METHOD = (
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_dont_overwrite_parameters,
    estimator_checks.check_estimators_overwrite_params,
    estimator_checks.check_estimators_pickle,
    estimator_checks.check_fit_idempotent,
    estimator_checks.check_dict_unchanged,
    estimator_checks.check_methods_sample_order_invariance,
    estimator_checks.check_methods_subset_invariance,
)


@pytest.mark.parametrize("check", OF_A_METHOD, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["repulsive", "ecmp", "swag"])
def test_checks_of_what_a_method_brings(name, kind, check):
    check(kind.__name__, kind(name, **QUICK, **OWN.get(name, {})))


@pytest.mark.parametrize("name", be.METHODS)
def test_every_method_of_the_registry_serves(name):
    x, y = rows(60)
    settings = QUICK | OWN.get(name, {}) | SHORT.get(name, {})
    classifier = EnsembleClassifier(name, **settings).fit(x, labels(y))
    probs = classifier.predict_proba(x)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(1), 1)
    assert isinstance(classifier.ensemble_.method, be.METHODS[name].cls)
    mean, std = EnsembleRegressor(name, **settings).fit(x, y).predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_settings_of_a_method_are_nested_parameters():
    estimator = EnsembleRegressor("repulsive", **QUICK, method__repulsion=0.5)
    assert "method__repulsion=0.5" in repr(estimator)
    assert estimator.get_params(deep=False)["method__repulsion"] == 0.5
    assert estimator.get_params()["method__kernel"] == "rbf"
    assert "method__num_members" not in estimator.get_params()
    copy = clone(estimator).set_params(method__kernel="laplace", num_members=3)
    fitted = copy.fit(*rows(40)).ensemble_.method
    assert (fitted.repulsion, fitted.kernel, fitted.num_members) == (0.5, "laplace", 3)
    assert "method__kernel" not in estimator.get_params(deep=False)


def test_a_grid_search_goes_over_settings_of_the_method_inside_a_pipeline():
    x, y = rows(60)
    pipeline = make_pipeline(StandardScaler(), EnsembleClassifier("repulsive", **QUICK))
    grid = {"ensembleclassifier__method__repulsion": [0.0, 2.0]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(x, labels(y))
    assert search.best_estimator_[-1].ensemble_.method.repulsion in (0.0, 2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "forest"}, "unknown method 'forest'; choose one of"),
        ({"method": None}, "method is a text, got None"),
        ({"method__repulsion": 1.0}, "method 'deep_ensemble' has no setting 'repulsion'"),
        ({"method__num_members": 3}, "say num_members, not method__num_members"),
        ({"early_stopping": "never"}, "early_stopping is True, False or 'auto', got 'never'"),
        ({"validation_fraction": 1.5}, r"validation_fraction is a number in \(0, 1\), got 1.5"),
        ({"noise": "none"}, "noise is 'student' or 'normal', got 'none'"),
        ({"noise": []}, r"noise is 'student' or 'normal', got \[\]"),
        ({"method": "swag", "early_stopping": True}, "swag needs training to go on to the end"),
        ({"method": "hmc", "batch_size": None}, "has no setting 'learning_rate'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_fit(options, words):
    with pytest.raises(SettingError, match=words):
        EnsembleRegressor(**(QUICK | options)).fit(*rows(40))


def test_wrong_names_of_parameters_are_refused_at_once():
    with pytest.raises(TypeError, match="no parameter 'epoch'"):
        EnsembleRegressor(epoch=3)
    with pytest.raises(ValueError, match="invalid parameter 'method__repulsion'"):
        EnsembleRegressor().set_params(method__repulsion=1.0)


def test_methods_that_gather_networks_along_training_do_not_stop_early():
    settings = {"subspace": {"dim": 1}}
    able = {name for name in be.METHODS if can_stop_early(make_method(name, **settings.get(name, {})))}
    assert set(be.METHODS) - able == {"swag", "subspace", "snapshot", "csgmcmc", "hmc"}
    assert not can_stop_early(be.Repulsive(sequential=True))


def test_training_stops_where_the_held_out_loss_is_lowest_and_takes_all_rows_of_few():
    x, y = rows()
    options = QUICK | {"epochs": 60, "patience": 3}
    stopped = EnsembleRegressor(**options).fit(x, y)
    assert stopped.n_iter_ < 60
    losses = [row["validation_loss"] for row in stopped.ensemble_.history]
    assert stopped.n_iter_ == np.argmin(losses) + 1 + 3
    assert stopped.ensemble_.task.num_data == 108
    some = EnsembleRegressor(**options).fit(x[:50], y[:50])
    assert some.ensemble_.task.num_data == 40, "ten are the fewest to stop by"
    few = EnsembleRegressor(**options).fit(x[:49], y[:49])
    assert (few.n_iter_, few.ensemble_.task.num_data) == (60, 49)
    for unable in (EnsembleRegressor(**QUICK, early_stopping=False), EnsembleRegressor("swag", **QUICK | OWN["swag"])):
        assert unable.fit(x, y).ensemble_.task.num_data == 120


@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_held_out_by_their_share_and_numbers_are_not_sorted(kind, monkeypatch):
    def stand_in(recipe, method, network, likelihood, x, y, held_out, seed, *, weights):
        expected = recipe.hold_out(method, y, kind is EnsembleClassifier, seed)
        np.testing.assert_array_equal(held_out, expected)
        raise DataError("training begins")

    monkeypatch.setattr("bayesemble.estimators.base.training_on", stand_in)
    x, y = rows()
    with pytest.raises(DataError, match="training begins"):
        kind(**QUICK).fit(x, labels(y) if kind is EnsembleClassifier else y)


def test_one_row_cannot_be_held_out():
    with pytest.raises(DataError, match="n_samples=1 is too few"):
        EnsembleRegressor(early_stopping=True).fit([[1.0]], [2.0])


def test_the_seed_decides_and_a_constant_column_changes_nothing_but_the_start():
    x, y = rows(60)
    x = np.column_stack([x, np.full(60, 1e6)])
    first, again = (EnsembleRegressor(**QUICK).fit(x, y).predict(x) for _ in range(2))
    other = EnsembleRegressor(**QUICK | {"random_state": 1}).fit(x, y).predict(x)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert np.isfinite(first).all()


@pytest.mark.parametrize("name", ["deep_ensemble", "ecmp", "swag"])
@pytest.mark.parametrize("embedding", ["periodic", "piecewise"])
def test_a_fitted_estimator_can_be_pickled(name, embedding):
    x, y = rows(60)
    estimator = EnsembleRegressor(name, **QUICK | OWN.get(name, {}), embedding=embedding).fit(x, y)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict(x), estimator.predict(x))
    assert again.get_params() == estimator.get_params()


def test_names_of_columns_are_learnt_and_checked():
    pandas = pytest.importorskip("pandas")
    x, y = rows(60)
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    named, plain = (EnsembleRegressor(**QUICK).fit(values, y) for values in (frame, x))
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_allclose(named.predict(frame), plain.predict(x), rtol=1e-12)
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict(frame[["b", "a", "c"]])
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        named.predict(x)
    as_frame = EnsembleClassifier(**QUICK).fit(frame, pandas.Series(np.where(y > y.mean(), "high", "low")))
    assert set(as_frame.predict(frame)) <= {"high", "low"}


def test_wrong_data_is_refused_in_the_words_of_scikit_learn():
    x, y = rows(40)
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        EnsembleRegressor().predict_interval(x)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        EnsembleRegressor(**QUICK).fit(np.where(x > 2, np.nan, x), y)
    with pytest.raises(ValueError, match="X has 2 features, but EnsembleRegressor is expecting 3 features as input"):
        EnsembleRegressor(**QUICK).fit(x, y).predict(x[:, :2])


# --- weights of rows ---

WEIGHTS = np.random.default_rng(1).integers(0, 4, 60)


@pytest.mark.parametrize("kind", KINDS)
def test_sample_weights_are_repeated_rows_on_full_batches(kind):
    x, y = rows(60)
    y = labels(y) if kind is EnsembleClassifier else y
    settings = QUICK | {"early_stopping": False, "batch_size": 200}
    weighted = kind(**settings).fit(x, y, sample_weight=WEIGHTS)
    repeated = kind(**settings).fit(np.repeat(x, WEIGHTS, 0), np.repeat(y, WEIGHTS))
    assert weighted.ensemble_.task.num_data == repeated.ensemble_.task.num_data == WEIGHTS.sum()
    one, other = (fitted.predict_uncertainty(x) for fitted in (weighted, repeated))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5)
    plain = kind(**settings).fit(x, y).predict_uncertainty(x)
    assert np.abs(one["total"] - plain["total"]).max() > 1e-3 * np.abs(plain["total"]).max()
    score = weighted.score(x, y, sample_weight=WEIGHTS)
    assert score == pytest.approx(weighted.score(np.repeat(x, WEIGHTS, 0), np.repeat(y, WEIGHTS)), rel=1e-12)


def test_held_out_rows_have_their_weights_in_the_loss_that_stops_training():
    x, y = rows(60)
    weights = np.where(y > 40, 0.1, 5.0)
    classifier = EnsembleClassifier(**QUICK | {"epochs": 1}).fit(x, labels(y), sample_weight=weights)
    recipe, codes = classifier._recipe(), (y <= 40).astype(int)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))  # as the estimator draws it
    held_out = recipe.hold_out(recipe.make_method(), codes, True, seed)
    found = classifier.ensemble_.history[0]["validation_loss"]
    predictive = classifier.predictive(x[held_out])
    assert found == pytest.approx(be.metrics.nll(predictive, codes[held_out], weights[held_out]), rel=1e-5)
    assert found != pytest.approx(be.metrics.nll(predictive, codes[held_out]), rel=1e-2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(60), "at least one non-zero number|all sample weights are 0"),
        (np.where(np.arange(60) == 7, -1.0, 1.0), "Negative values in data passed to `sample_weight`"),
        (np.ones(59), "sample_weight.shape == "),
    ],
)
def test_sample_weights_that_make_no_sense_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        EnsembleRegressor(**QUICK).fit(*rows(60), sample_weight=weights)


def test_a_class_without_weight_is_no_class():
    x, y = rows(60)
    three = np.where(np.arange(60) < 3, "other", labels(y))
    fitted = EnsembleClassifier(**QUICK).fit(x, three, sample_weight=three != "other")
    assert fitted.classes_.tolist() == ["high", "low"]


# --- devices ---


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named(device):
    if getattr(torch, device).is_available():
        pytest.skip(f"there is {device} here")
    with pytest.raises(SettingError, match=rf"device='{device}' cannot be used here: .* leave it out for the CPU"):
        EnsembleRegressor(**QUICK, device=device).fit(*rows(20))


def test_an_estimator_comes_back_to_the_cpu_from_its_device(other_device):  # noqa: F811
    x, y = rows(40)
    plain = EnsembleRegressor(**QUICK).fit(x, y).predict(x)
    with other_device:
        away = EnsembleRegressor(**QUICK, device=NAME).fit(x, y)
        assert away.ensemble_.state.members.weights.device.type == "cpu"
        np.testing.assert_allclose(away.predict(x), plain, rtol=1e-4)
