import json
import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from bayesemble.core import settings
from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics import Spread, accuracy, brier, coverage, expected_calibration_error, fit_spread, nll
from bayesemble.metrics.recalibration import Isotonic, Temperature, _hold, fit_isotonic, fit_temperature
from bayesemble.predictive import ClassPredictive, PoissonPredictive, Predictive, StudentPredictive
from mixtures import ROW_WEIGHTS, random_normals, repeated


def draw(probs, generator):
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


def overconfident(generator, rows=3000, classes=5, factor=2.0, members=1):
    """Logits that are `factor` times too large, the same for every member but for some noise, and labels."""
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = draw(logits.softmax(-1), generator)
    noise = torch.randn(members, rows, classes, generator=generator, dtype=torch.float64) * (members > 1)
    return Predictive.from_probs((factor * (logits + noise)).softmax(-1)), labels


def saturated(generator, rows=400, classes=4):
    """Certain of one class in every row, and wrong in a tenth of them."""
    choice = torch.randint(0, classes, (rows,), generator=generator)
    labels = choice.clone()
    labels[: rows // 10] = (choice[: rows // 10] + 1) % classes
    return Predictive.from_probs(torch.nn.functional.one_hot(choice, classes).double()), labels


def tied(generator, rows=400):
    table = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25], [0.4, 0.4, 0.1, 0.1]], dtype=torch.float64)
    labels = torch.randint(0, 4, (rows,), generator=generator)
    return Predictive.from_probs(table[torch.randint(0, 3, (rows,), generator=generator)]), labels


def class_missing(generator):
    predictive, labels = overconfident(generator, rows=400)
    return predictive, labels.clamp_max(3)


def several_members(generator):
    return overconfident(generator, rows=400, members=4)


def thousand_classes(generator):
    return overconfident(generator, rows=300, classes=1000)


CASES = [overconfident, saturated, tied, class_missing, several_members, thousand_classes]


class Told(ClassifierMixin, BaseEstimator):
    """A classifier of scikit-learn whose inputs are the probabilities it gives."""

    def fit(self, inputs, targets):
        self.classes_ = np.unique(targets)
        return self

    def predict_proba(self, inputs):
        return np.asarray(inputs)

    def predict(self, inputs):
        return self.classes_[np.argmax(inputs, axis=1)]


def calibrated_by_scikit_learn(predictive, labels, method):
    probs = predictive.probs.numpy()
    classifier = FrozenEstimator(Told().fit(probs, np.arange(probs.shape[1])))
    fitted = CalibratedClassifierCV(classifier, method=method).fit(probs, labels.numpy())
    return fitted.predict_proba(probs)


# --- temperature ---


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("per_member", [False, True])
def test_the_temperature_that_spoiled_the_logits_is_recovered(factor, per_member, generator):
    predictive, labels = overconfident(generator, rows=20_000, factor=factor)
    assert fit_temperature(predictive, labels, per_member).value == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("case", [overconfident, tied, several_members])
def test_temperature_scaling_is_that_of_scikit_learn(case, generator):
    pytest.importorskip("sklearn", minversion="1.8")
    predictive, labels = case(generator)
    # Zeros are read differently there, as the least distance of 1 from the next number.
    predictive = Predictive.from_probs(
        (predictive.member_probs + 1e-9) / (predictive.member_probs + 1e-9).sum(-1, True)
    )
    ours = fit_temperature(predictive, labels).apply(predictive).probs
    np.testing.assert_allclose(ours, calibrated_by_scikit_learn(predictive, labels, "temperature"), atol=1e-6)


def test_temperature_scaling_is_that_of_netcal_which_reports_the_inverse(generator):
    predictive, labels = overconfident(generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("netcal.scaling").TemperatureScaling()
        theirs.fit(predictive.probs.numpy(), labels.numpy())
    assert fit_temperature(predictive, labels).value == pytest.approx(1 / theirs.temperature.item(), rel=1e-4)


@pytest.mark.parametrize("per_member", [False, True])
def test_no_other_temperature_has_a_lower_nll(per_member, generator):
    predictive, labels = several_members(generator)
    fitted = fit_temperature(predictive, labels, per_member)

    def cost(value):
        members = predictive.log_probs if per_member else predictive.probs.log()[None]
        averaged = (members / value).softmax(-1).mean(0)
        return -averaged[torch.arange(len(labels)), labels].log().mean().item()

    assert nll(fitted.apply(predictive), labels) == pytest.approx(cost(fitted.value))
    reference = minimize_scalar(cost, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-10})
    assert fitted.value == pytest.approx(reference.x, rel=1e-6)
    assert all(cost(fitted.value) <= cost(value) for value in np.geomspace(0.01, 100, 200))


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_nll_of_the_rows_of_the_fit_never_grows(case, per_member, generator):
    predictive, labels = case(generator)
    fitted = fit_temperature(predictive, labels, per_member)
    corrected = fitted.apply(predictive)
    assert nll(corrected, labels) <= nll(predictive, labels) + 1e-12
    assert math.isfinite(nll(corrected, labels))
    torch.testing.assert_close(corrected.probs.sum(-1), torch.ones(len(labels), dtype=torch.float64))


@pytest.mark.parametrize("value", [math.exp(-10), 0.3, 7.0, math.exp(10)])
@pytest.mark.parametrize("case", CASES)
def test_the_most_probable_class_of_the_average_stays(case, value, generator):
    predictive, labels = case(generator)
    corrected = Temperature(value).apply(predictive)
    assert accuracy(corrected, labels) == accuracy(predictive, labels)
    # Classes that tie now tie afterwards too, so compare what the old choice has with the best.
    kept = corrected.probs.gather(-1, predictive.probs.argmax(-1, keepdim=True))[:, 0]
    torch.testing.assert_close(kept, corrected.probs.amax(-1), rtol=1e-12, atol=0)


def test_per_member_the_most_probable_class_may_change():
    """Sharpened, the two members that lean to class 1 outvote the one that was certain of class 0."""
    predictive = Predictive.from_probs([[[0.4, 0.6]], [[0.4, 0.6]], [[0.999, 0.001]]])
    assert predictive.probs.argmax() == Temperature(0.05).apply(predictive).probs.argmax() == 0
    assert Temperature(0.05, per_member=True).apply(predictive).probs.argmax() == 1


@pytest.mark.parametrize("case", [overconfident, saturated, tied, class_missing])
def test_with_one_member_both_forms_are_the_same(case, generator):
    predictive, labels = case(generator)
    one, other = (fit_temperature(predictive, labels, per_member) for per_member in (False, True))
    assert one.value == pytest.approx(other.value, rel=1e-6)
    torch.testing.assert_close(Temperature(3.0).apply(predictive).probs, Temperature(3.0, True).apply(predictive).probs)


def test_per_member_keeps_members_and_weights_and_the_average_does_not(generator):
    predictive, _ = several_members(generator)
    predictive = predictive.reweight([1, 2, 3, 4])
    each = Temperature(2.0, per_member=True).apply(predictive)
    expected = (predictive.log_probs / 2).softmax(-1)
    torch.testing.assert_close(each.member_probs, expected)
    torch.testing.assert_close(each.weights, predictive.weights)
    torch.testing.assert_close(each.probs, torch.tensordot(predictive.weights, expected, dims=1))
    averaged = Temperature(2.0).apply(predictive)
    torch.testing.assert_close(averaged.probs, (predictive.probs.log() / 2).softmax(-1))
    assert averaged.num_members == 1
    assert (averaged.epistemic == 0).all()
    assert (each.epistemic > 0).all()


def test_a_temperature_of_1_changes_nothing(generator):
    predictive, _ = several_members(generator)
    for per_member in (False, True):
        torch.testing.assert_close(Temperature(1.0, per_member).apply(predictive).probs, predictive.probs)


def test_predictions_that_know_nothing_have_no_better_temperature_than_1():
    even = Predictive.from_probs(np.full((6, 3), 1 / 3))
    assert fit_temperature(even, [0, 1, 2, 0, 1, 2]).value == 1


def test_the_search_ends_where_no_temperature_is_best():
    always_wrong = Predictive.from_probs([[0.9, 0.1], [0.2, 0.8]])
    assert fit_temperature(always_wrong, [1, 0]).value == pytest.approx(math.exp(10))
    always_right = fit_temperature(always_wrong, [0, 1])
    assert math.exp(-10) <= always_right.value < 0.1
    assert nll(always_right.apply(always_wrong), [0, 1]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certainty_that_is_wrong_in_a_tenth_of_the_rows_becomes_nine_tenths(dtype, generator):
    predictive, labels = saturated(generator)
    predictive = Predictive.from_probs(predictive.probs.to(dtype))
    assert nll(predictive, labels) == math.inf
    corrected = fit_temperature(predictive, labels).apply(predictive)
    torch.testing.assert_close(corrected.probs.amax(-1), torch.full((400,), 0.9, dtype=torch.float64))
    assert expected_calibration_error(corrected, labels) == pytest.approx(0, abs=1e-6)


def test_zeros_beside_still_smaller_probabilities_do_not_overtake_them():
    log_probs = torch.tensor([[[0.0, -150.0, -math.inf]]])
    corrected = Temperature(50.0).apply(ClassPredictive(torch.ones(1), log_probs)).probs[0]
    assert corrected[1] == corrected[2] == pytest.approx(math.exp(-3) / (1 + 2 * math.exp(-3)))


def test_a_temperature_mends_the_calibration_of_other_rows(generator):
    predictive, labels = overconfident(generator, rows=6000, members=3)
    halves = [
        (Predictive.from_probs(predictive.member_probs[:, part]), labels[part]) for part in torch.arange(6000).chunk(2)
    ]
    for per_member in (False, True):
        corrected = fit_temperature(*halves[0], per_member).apply(halves[1][0])
        assert expected_calibration_error(corrected, halves[1][1]) < expected_calibration_error(*halves[1]) / 2
        assert nll(corrected, halves[1][1]) < nll(*halves[1])


def test_fitting_twice_gives_the_same_and_leaves_the_prediction_alone(generator):
    predictive, labels = several_members(generator)
    before = predictive.log_probs.clone()
    assert fit_temperature(predictive, labels) == fit_temperature(predictive, labels)
    assert fit_isotonic(predictive, labels) == fit_isotonic(predictive, labels)
    assert torch.equal(predictive.log_probs, before)


def test_several_outputs_share_one_correction(generator):
    predictive, labels = overconfident(generator, rows=400)
    paired = ClassPredictive(torch.ones(1), predictive.log_probs.reshape(1, 200, 2, 5))
    assert fit_temperature(paired, labels.reshape(200, 2)).value == pytest.approx(
        fit_temperature(predictive, labels).value
    )
    curves = fit_isotonic(paired, labels.reshape(200, 2))
    assert curves == fit_isotonic(predictive, labels)
    torch.testing.assert_close(curves.apply(paired).probs.flatten(0, 1), curves.apply(predictive).probs)


def test_a_reduced_prediction_has_an_average_to_correct_but_no_members(generator):
    predictive, labels = several_members(generator)
    reduced = predictive.reduce()
    assert fit_temperature(reduced, labels).value == pytest.approx(fit_temperature(predictive, labels).value)
    assert not Temperature(2.0).apply(reduced).kept
    for action in (lambda: fit_temperature(reduced, labels, True), lambda: Temperature(2.0, True).apply(reduced)):
        with pytest.raises(
            SettingError, match="a temperature per member needs the members, which this prediction dropped"
        ):
            action()


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_is_no_number_above_0_is_refused(value):
    with pytest.raises(SettingError, match=f"a temperature is a number above 0, got {value}"):
        Temperature(value)


# --- isotonic ---


@pytest.mark.parametrize("case", [overconfident, saturated, tied, several_members])
def test_isotonic_curves_are_those_of_scikit_learn(case, generator):
    predictive, labels = case(generator)
    ours = fit_isotonic(predictive, labels).apply(predictive).probs
    np.testing.assert_allclose(ours, calibrated_by_scikit_learn(predictive, labels, "isotonic"), atol=1e-6)


def test_isotonic_curves_of_two_classes_mirror_one_another_as_scikit_learn_has_it(generator):
    predictive, labels = overconfident(generator, rows=500, classes=2)
    ours = fit_isotonic(predictive, labels).apply(predictive).probs
    np.testing.assert_allclose(ours, calibrated_by_scikit_learn(predictive, labels, "isotonic"), atol=1e-6)


def test_isotonic_curves_of_few_rows_by_hand():
    """Class 0 was given 0.2, 0.5, 0.6, 0.9 and occurs at the second and fourth: 0, then a half twice, then 1."""
    given = np.array([0.2, 0.5, 0.6, 0.9])
    curves = fit_isotonic(Predictive.from_probs(np.stack([given, 1 - given], -1)), [1, 0, 1, 0])
    assert curves.probabilities[0] == pytest.approx((0.2, 0.5, 0.6, 0.9))
    assert curves.frequencies[0] == pytest.approx((0, 0.5, 0.5, 1))
    between = curves.apply(Predictive.from_probs([[0.1, 0.9], [0.35, 0.65], [0.55, 0.45], [0.99, 0.01]])).probs[:, 0]
    assert between.tolist() == pytest.approx([0, 0.25, 0.5, 1])


@pytest.mark.parametrize("case", CASES)
def test_isotonic_probabilities_are_probabilities_and_fit_their_rows_no_worse(case, generator):
    predictive, labels = case(generator)
    corrected = fit_isotonic(predictive, labels).apply(predictive)
    assert (corrected.probs >= 0).all()
    torch.testing.assert_close(corrected.probs.sum(-1), torch.ones(len(labels), dtype=torch.float64))
    assert brier(corrected, labels) <= brier(predictive, labels)


def test_a_class_that_never_occurs_gets_no_probability(generator):
    predictive, labels = class_missing(generator)
    assert (fit_isotonic(predictive, labels).apply(predictive).probs[:, 4] == 0).all()


def test_rows_for_which_all_curves_say_0_get_equal_probabilities():
    curves = Isotonic(((0.5, 0.9),) * 3, ((0.0, 1.0),) * 3)
    probs = curves.apply(Predictive.from_probs([[0.4, 0.3, 0.3], [0.7, 0.2, 0.1]])).probs
    torch.testing.assert_close(probs, torch.tensor([[1 / 3] * 3, [1, 0, 0]], dtype=torch.float64))


def test_isotonic_curves_mend_the_calibration_of_other_rows(generator):
    predictive, labels = overconfident(generator, rows=8000)
    halves = [
        (Predictive.from_probs(predictive.member_probs[:, part]), labels[part]) for part in torch.arange(8000).chunk(2)
    ]
    corrected = fit_isotonic(*halves[0]).apply(halves[1][0])
    assert expected_calibration_error(corrected, halves[1][1]) < expected_calibration_error(*halves[1]) / 3
    assert brier(corrected, halves[1][1]) < brier(*halves[1])


def test_a_prediction_of_other_classes_is_refused(generator):
    curves = fit_isotonic(*overconfident(generator, rows=50))
    with pytest.raises(SettingError, match="the curves are those of 5 classes, the prediction has 2"):
        curves.apply(Predictive.from_probs([[0.5, 0.5]]))


# --- both ---


@pytest.mark.parametrize(
    "other", [Predictive.from_normal([0.0], 1.0), PoissonPredictive(torch.ones(1), torch.ones(1, 1))]
)
def test_anything_but_classes_is_refused(other):
    curves = Isotonic(((0.5,),) * 2, ((0.5,),) * 2)
    actions = [lambda: fit_temperature(other, [0]), lambda: fit_isotonic(other, [0])]
    for action in [*actions, lambda: Temperature(1.0).apply(other), lambda: curves.apply(other)]:
        with pytest.raises(
            SettingError, match=f"recalibration is for class probabilities, got {type(other).__name__}; "
        ):
            action()


@pytest.mark.parametrize("fit", [fit_temperature, fit_isotonic])
def test_labels_that_do_not_fit_are_refused(fit, generator):
    predictive, labels = overconfident(generator, rows=20)
    with pytest.raises(DataError, match=r"targets must have shape \(20,\) to fit the predictions, got \(19,\)"):
        fit(predictive, labels[:-1])
    with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.4"):
        fit(predictive, labels + 4)


def test_corrections_survive_as_json(generator):
    predictive, labels = overconfident(generator, rows=100)
    for correction in (fit_temperature(predictive, labels, True), fit_isotonic(predictive, labels)):
        text = json.dumps(settings.dump(correction))
        assert settings.parse(json.loads(text), type(correction)) == correction


def too_sure(generator, factor, rows=4000, members=3):
    """Means that differ a little, targets with unequal noise, and standard deviations that are `factor` too small."""
    means = torch.randn(rows, generator=generator, dtype=torch.float64)
    stds = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    targets = means + stds * torch.randn(rows, generator=generator, dtype=torch.float64)
    shifts = 0.01 * torch.randn(members, rows, generator=generator, dtype=torch.float64)
    return Predictive.from_normal(means + shifts, stds / factor, [1.0, 2.0, 3.0][:members]), targets


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_spread_that_is_missing_is_found(factor, generator):
    predictive, targets = too_sure(generator, factor)
    found = fit_spread(predictive, targets)
    assert found.value == pytest.approx(factor, rel=0.05)
    corrected = found.apply(predictive)
    assert nll(corrected, targets) <= nll(predictive, targets)
    torch.testing.assert_close(corrected.mean, predictive.mean)
    torch.testing.assert_close(corrected.epistemic, predictive.epistemic)
    torch.testing.assert_close(corrected.aleatoric, found.value**2 * predictive.aleatoric)


def test_the_spread_of_one_normal_is_its_root_mean_square_error_in_standard_deviations(generator):
    predictive, targets = too_sure(generator, 2.0, members=1)
    score = (targets - predictive.means[0]) / predictive.stds[0]
    assert fit_spread(predictive, targets).value == pytest.approx(score.square().mean().sqrt().item(), rel=1e-5)


def test_the_spread_of_heavy_tails_is_found_on_draws(generator):
    means, weights = torch.zeros(1, 4000, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    drawn = StudentPredictive(weights, means, 3 * torch.ones_like(means), 4).sample(1, generator)[0]
    narrow = StudentPredictive(weights, means, torch.ones_like(means), 4)
    assert fit_spread(narrow, drawn).value == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_the_spread_of_a_level_lets_intervals_hold_their_share(level, factor, generator):
    predictive, targets = too_sure(generator, factor)
    found = fit_spread(predictive, targets, level)
    assert found.value == pytest.approx(factor, rel=0.1)
    assert level <= coverage(found.apply(predictive), targets, level) < level + 1e-3
    assert coverage(Spread(found.value * (1 - 1e-6)).apply(predictive), targets, level) < level


def test_the_spread_of_a_level_is_a_quantile_of_the_errors_of_one_normal(generator):
    predictive, targets = too_sure(generator, 2.0, rows=99, members=1)
    score = ((targets - predictive.means[0]) / predictive.stds[0]).abs().sort().values
    expected = score[math.ceil(0.9 * 99) - 1].item() / scipy.stats.norm.ppf(0.95)
    assert fit_spread(predictive, targets, level=0.9).value == pytest.approx(expected, rel=1e-9)
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        fit_spread(predictive, targets, level=1.0)


def test_classes_counts_and_dropped_members_have_no_spread(generator):
    classes, labels = Predictive.from_probs([[0.5, 0.5]] * 10), torch.ones(10)
    counts = PoissonPredictive(torch.ones(1), torch.ones(1, 10))
    for predictive, targets in ((classes, labels), (counts, torch.ones(10))):
        with pytest.raises(SettingError, match="a spread is for real numbers that are normal or Student t, got"):
            fit_spread(predictive, targets)
    reduced = too_sure(generator, 1.0)[0].reduce()
    with pytest.raises(SettingError, match="a spread needs the members, which this prediction dropped"):
        Spread(2.0).apply(reduced)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_spread_that_is_no_number_above_0_is_refused(value):
    with pytest.raises(SettingError, match=f"a spread is a number above 0, got {value}"):
        Spread(value)


@pytest.mark.parametrize(("outside", "holds"), [(0, True), (1, True), (2, False)])
def test_intervals_hold_their_share_if_no_more_than_the_rest_lies_outside(outside, holds):
    predictive = Predictive.from_normal(torch.zeros(10, dtype=torch.float64), 1.0)
    assert _hold(predictive, torch.tensor([100.0] * outside + [0.0] * (10 - outside)), 0.9) == holds


def test_the_ends_of_an_interval_belong_to_it():
    """Between two members far apart, F is the weight of the lower one exactly."""
    for weight in (0.25, 0.75):
        predictive = Predictive.from_normal([[0.0], [100.0]], 1.0, [weight, 1 - weight])
        assert _hold(predictive, torch.tensor([50.0]), 0.5)


@pytest.mark.parametrize("level", [None, 0.8])
def test_the_spread_of_weighted_rows_is_that_of_repeated_rows(level, generator):
    predictive, targets = random_normals(generator), 3 * torch.randn(6, generator=generator)
    found = fit_spread(predictive, targets, level, weights=ROW_WEIGHTS).value
    assert found == pytest.approx(fit_spread(*repeated(predictive, targets), level).value, rel=1e-9)
    assert found != pytest.approx(fit_spread(predictive, targets, level).value, rel=1e-3)
