import math

import numpy as np
import pytest
import scipy.stats
import sklearn.calibration
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.metrics import expected_calibration_error, maximum_calibration_error, reliability
from bayesemble.metrics.calibration import (
    LEVELS,
    _share_below,
    adaptive_calibration_error,
    classwise_calibration_error,
    debiased_calibration_error,
    pit,
    quantile_calibration,
    quantile_calibration_error,
    root_mean_square_calibration_error,
)
from bayesemble.predictive import ClassPredictive, PoissonPredictive, Predictive
from helpers import oracle
from mixtures import ROW_WEIGHTS, random_classes, random_normals, random_poissons, random_tokens, repeated


def binary(confidences):
    """Class 0 with these probabilities, all of at least a half: label 0 is right, label 1 is wrong."""
    confidences = np.asarray(confidences, dtype=float)
    return Predictive.from_probs(np.stack([confidences, 1 - confidences], axis=-1))


def random_predictions(generator, rows=300):
    predictive = Predictive.from_probs(
        (2 * torch.randn(3, rows, 4, generator=generator, dtype=torch.float64)).softmax(-1)
    )
    return predictive, torch.randint(0, 4, (rows,), generator=generator)


def naive_bins(predictive, labels, bins, closed):
    """(confidence, accuracy, count) of each bin of equal width that is not empty, row by row."""
    rows = [[] for _ in range(bins)]
    for probs, label in zip(predictive.probs.tolist(), labels.tolist(), strict=True):
        confidence, right = max(probs), probs.index(max(probs)) == label
        for b in range(bins):
            low, high = b / bins, (b + 1) / bins
            if low < confidence <= high if closed == "right" else low <= confidence < high:
                rows[b].append((confidence, right))
    return [(*np.mean(held, axis=0), len(held)) for held in rows if held]


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_reliability_is_that_of_a_loop_over_rows_and_bins(bins, closed, generator):
    predictive, labels = random_predictions(generator)
    table = reliability(predictive, labels, bins=bins, closed=closed)
    actual = list(zip(table.confidence.tolist(), table.accuracy.tolist(), table.count.tolist(), strict=True))
    np.testing.assert_allclose(actual, naive_bins(predictive, labels, bins, closed))


def test_ece_is_the_mean_gap_weighted_by_rows_and_mce_the_largest(generator):
    predictive, labels = random_predictions(generator)
    table = naive_bins(predictive, labels, 15, "right")
    gaps, counts = (
        [abs(accuracy - confidence) for confidence, accuracy, _ in table],
        [row[2] for row in table],
    )
    assert expected_calibration_error(predictive, labels) == pytest.approx(np.average(gaps, weights=counts))
    assert maximum_calibration_error(predictive, labels) == pytest.approx(max(gaps))


def test_ece_of_a_small_case_by_hand():
    """Bins (0.5, 0.75] with 0.6, 0.7: half right; (0.75, 1] with 0.9: right. Gaps 0.15 and 0.1."""
    predictive = binary([0.6, 0.7, 0.9])
    assert expected_calibration_error(predictive, [0, 1, 0], bins=4) == pytest.approx((2 * 0.15 + 0.1) / 3)
    assert maximum_calibration_error(predictive, [0, 1, 0], bins=4) == pytest.approx(0.15)


def test_one_bin_compares_accuracy_with_mean_confidence(generator):
    predictive, labels = random_predictions(generator)
    confidence, choice = predictive.probs.max(-1)
    expected = abs((choice == labels).double().mean() - confidence.mean()).item()
    assert expected_calibration_error(predictive, labels, bins=1) == pytest.approx(expected)


def test_confidence_that_is_right_as_often_as_it_says_has_no_error():
    assert expected_calibration_error(binary([0.75] * 4), [0, 0, 0, 1]) == pytest.approx(0)


@pytest.mark.parametrize("closed", ["right", "left"])
def test_confidence_of_exactly_1_lies_in_the_last_bin(closed):
    table = reliability(binary([1.0, 1.0, 0.95]), [0, 1, 0], bins=10, closed=closed)
    assert table.count.tolist() == [3]
    assert table.confidence.item() == pytest.approx(2.95 / 3)


def test_certain_and_right_is_perfect_and_certain_and_wrong_is_worst():
    assert expected_calibration_error(binary([1.0, 1.0]), [0, 0]) == 0
    assert expected_calibration_error(binary([1.0, 1.0]), [1, 1]) == 1


@pytest.mark.parametrize(("closed", "counts"), [("right", [2, 1]), ("left", [1, 2])])
def test_an_edge_belongs_to_the_bin_that_is_closed_there(closed, counts):
    """The edge 0.75 shares a bin with 0.625 (closed on the right) or with 0.875 (on the left)."""
    table = reliability(binary([0.625, 0.75, 0.875]), [0, 0, 0], bins=4, closed=closed)
    assert table.count.tolist() == counts


def test_empty_bins_are_left_out():
    table = reliability(binary([0.55, 0.95, 0.96]), [0, 0, 1], bins=10)
    assert table.count.tolist() == [1, 2]
    assert table.confidence.tolist() == pytest.approx([0.55, 0.955])
    assert table.accuracy.tolist() == pytest.approx([1, 0.5])
    assert table.gap.tolist() == pytest.approx([0.45, 0.455])


def test_bins_with_too_few_rows_are_left_out_of_the_sum_and_not_of_the_number_of_rows():
    predictive, labels = binary([0.55, 0.95, 0.97]), [1, 0, 0]
    assert maximum_calibration_error(predictive, labels, bins=10) == pytest.approx(0.55)
    kept = {"bins": 10, "min_count": 2}
    assert reliability(predictive, labels, **kept).num_rows == 3
    assert maximum_calibration_error(predictive, labels, **kept) == pytest.approx(0.04)
    assert expected_calibration_error(predictive, labels, **kept) == pytest.approx(2 / 3 * 0.04)
    assert root_mean_square_calibration_error(predictive, labels, **kept) == pytest.approx(math.sqrt(2 / 3) * 0.04)
    assert classwise_calibration_error(predictive, labels, **kept) == pytest.approx(2 / 3 * 0.04)


def test_errors_are_not_a_number_where_no_bin_has_enough_rows():
    predictive = binary([0.55, 0.95])
    assert math.isnan(expected_calibration_error(predictive, [0, 0], min_count=5))
    assert math.isnan(maximum_calibration_error(predictive, [0, 0], min_count=5))


@pytest.mark.parametrize(("rows", "bins"), [(300, 15), (100, 7), (5, 15)])
def test_bins_of_equal_mass_hold_equally_many_rows_in_order_of_confidence(rows, bins, generator):
    predictive, labels = random_predictions(generator, rows)
    table = reliability(predictive, labels, bins=bins, scheme="mass")
    assert table.count.sum() == rows
    assert len(table.count) == min(rows, bins)
    assert table.count.max() - table.count.min() <= 1
    confidence, order = predictive.probs.max(-1).values.sort()
    right = (predictive.probs.argmax(-1) == labels)[order].double()
    cuts = table.count.cumsum(0)[:-1].tolist()
    for values, expected in ((table.confidence, confidence), (table.accuracy, right)):
        torch.testing.assert_close(values, torch.stack([part.mean() for part in expected.tensor_split(cuts)]))


def test_ties_in_confidence_are_cut_in_the_order_of_rows():
    table = reliability(binary([0.8] * 4), [0, 0, 1, 1], bins=2, scheme="mass")
    assert table.count.tolist() == [2, 2]
    assert table.accuracy.tolist() == [1, 0]


def test_the_order_of_rows_does_not_matter(generator):
    predictive, labels = random_predictions(generator)
    order = torch.randperm(300, generator=generator)
    shuffled = Predictive.from_probs(predictive.member_probs[:, order])
    for scheme in ("width", "mass"):
        expected = expected_calibration_error(predictive, labels, scheme=scheme)
        assert expected_calibration_error(shuffled, labels[order], scheme=scheme) == pytest.approx(expected)


def test_several_outputs_are_pooled():
    log_probs = torch.tensor([[[[0.9, 0.1], [0.6, 0.4]]]], dtype=torch.float64).log()
    predictive = ClassPredictive(torch.ones(1), log_probs)
    flat = binary([0.9, 0.6])
    assert expected_calibration_error(predictive, [[0, 1]]) == expected_calibration_error(flat, [0, 1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"bins": 0}, "at least one bin is needed, got 0"),
        ({"scheme": "area"}, 'scheme is "width" or "mass", not \'area\''),
        ({"closed": "both"}, 'closed is "right" or "left", not \'both\''),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(SettingError, match=message):
        reliability(binary([0.6]), [0], **setting)


def test_labels_of_another_length_are_refused():
    with pytest.raises(DataError, match=r"targets must have shape \(2,\) to fit the predictions, got \(3,\)"):
        reliability(binary([0.6, 0.7]), [0, 1, 1])


# --- agreement with other libraries ---


def saturated(generator, rows=200):
    """Rows of certainty, right and wrong, among others that are unsure."""
    logits = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    logits[: rows // 2] *= 1e4
    return Predictive.from_probs(logits.softmax(-1)), torch.randint(0, 4, (rows,), generator=generator)


def tied(generator, rows=200):
    """Few different probabilities, all of them away from edges of bins; two bins of four are empty."""
    table = torch.tensor([[0.6, 0.3, 0.05, 0.05], [0.1, 0.1, 0.7, 0.1], [0.3, 0.3, 0.3, 0.1]], dtype=torch.float64)
    return (
        Predictive.from_probs(table[torch.randint(0, 3, (rows,), generator=generator)]),
        torch.randint(0, 4, (rows,), generator=generator),
    )


def class_missing(generator):
    predictive, labels = random_predictions(generator)
    return predictive, labels.clamp_max(2)


def one_member(generator):
    predictive, labels = random_predictions(generator)
    return predictive.member(0), labels


def thousand_classes(generator, rows=200):
    logits = 4 * torch.randn(2, rows, 1000, generator=generator, dtype=torch.float64)
    predictive = Predictive.from_probs(logits.softmax(-1))
    drawn = predictive.sample(1, generator)[0]
    return predictive, drawn


CASES = [random_predictions, saturated, tied, class_missing, one_member, thousand_classes]


def events(predictive, labels):
    """Confidence and whether the choice was right, as arrays."""
    confidence, choice = predictive.probs.max(-1)
    return confidence.numpy(), (choice == labels).double().numpy()


@pytest.mark.parametrize("bins", [4, 15, 20])
@pytest.mark.parametrize("case", CASES)
def test_reliability_is_the_calibration_curve_of_scikit_learn(case, bins, generator):
    predictive, labels = case(generator)
    confidence, right = events(predictive, labels)
    accuracy, mean = sklearn.calibration.calibration_curve(right, confidence.clip(0, 1), n_bins=bins)
    table = reliability(predictive, labels, bins=bins)
    np.testing.assert_allclose(table.accuracy, accuracy, atol=1e-6)
    np.testing.assert_allclose(table.confidence, mean, atol=1e-6)


@pytest.mark.parametrize("bins", [4, 15, 20])
@pytest.mark.parametrize("case", [case for case in CASES if case is not saturated])
def test_errors_are_those_of_torchmetrics(case, bins, generator):
    predictive, labels = case(generator)
    classification = oracle("torchmetrics.functional.classification")
    errors = {
        "l1": expected_calibration_error,
        "l2": root_mean_square_calibration_error,
        "max": maximum_calibration_error,
    }
    for norm, error in errors.items():
        theirs = classification.multiclass_calibration_error(
            predictive.probs, labels, predictive.probs.shape[-1], n_bins=bins, norm=norm
        )
        assert error(predictive, labels, bins=bins, closed="left") == pytest.approx(theirs.item(), abs=1e-6)


def test_torchmetrics_puts_confidence_1_into_a_bin_of_its_own():
    """Ours: the last bin holds 0.9 and 1.0, half right, with a gap of 0.45. Theirs: gaps of 0.1 and 1."""
    predictive, labels = binary([0.9, 1.0]), torch.tensor([0, 1])
    classification = oracle("torchmetrics.functional.classification")
    theirs = classification.multiclass_calibration_error(predictive.probs, labels, 2, n_bins=4).item()
    assert expected_calibration_error(predictive, labels, bins=4, closed="left") == pytest.approx(0.45)
    assert theirs == pytest.approx(0.55)


@pytest.mark.parametrize("bins", [4, 15, 20])
@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_netcal(case, bins, generator):
    predictive, labels = case(generator)
    netcal, given = oracle("netcal.metrics"), (predictive.probs.numpy(), labels.numpy())
    settings = {"bins": bins, "closed": "left"}
    expected, largest = netcal.ECE(bins).measure(*given), netcal.MCE(bins).measure(*given)
    assert expected_calibration_error(predictive, labels, **settings) == pytest.approx(expected, abs=1e-6)
    assert maximum_calibration_error(predictive, labels, **settings) == pytest.approx(largest, abs=1e-6)


def test_netcal_closes_bins_on_the_left_and_takes_two_classes_for_the_second():
    netcal, labels = oracle("netcal.metrics"), np.array([0, 1, 2, 0])
    probs = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.75, 0.125, 0.125], [0.625, 0.375, 0.0]])
    predictive = Predictive.from_probs(probs)
    theirs = netcal.ECE(4).measure(probs, labels)
    assert expected_calibration_error(predictive, labels, bins=4, closed="left") == pytest.approx(theirs)
    assert expected_calibration_error(predictive, labels, bins=4) != pytest.approx(theirs)
    # Of two classes it asks how often the second one occurs where it was given p, not how often the choice was right.
    predictive, labels = Predictive.from_probs([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 1, 1])
    theirs = netcal.ECE(1).measure(predictive.probs.numpy(), labels)
    assert theirs == pytest.approx(2 / 3 - (0.1 + 0.4 + 0.8) / 3)
    assert expected_calibration_error(predictive, labels, bins=1) == pytest.approx((0.9 + 0.6 + 0.8) / 3 - 2 / 3)


def test_rows_of_dropped_bins_stay_in_the_number_of_rows_as_in_netcal(generator):
    predictive, labels = random_predictions(generator)
    netcal = oracle("netcal.metrics")
    settings = {"bins": 20, "closed": "left", "min_count": 12}
    assert int(reliability(predictive, labels, **settings).count.sum()) < 300
    theirs = netcal.ECE(20, sample_threshold=12).measure(predictive.probs.numpy(), labels.numpy())
    assert expected_calibration_error(predictive, labels, **settings) == pytest.approx(theirs)
    largest = netcal.MCE(20, sample_threshold=12).measure(predictive.probs.numpy(), labels.numpy())
    assert maximum_calibration_error(predictive, labels, **settings) == pytest.approx(largest)


def test_the_convention_of_model_patching_is_one_call():
    """20 bins, those with at most 5 rows are dropped, confidence 1 lies in the last one."""
    confidences = [0.62] * 5 + [0.72] * 6 + [0.96] * 3 + [1.0] * 3
    predictive, labels = binary(confidences), [1] * 5 + [0, 0, 0, 1, 1, 1] + [0, 0, 1] * 2
    convention = {"bins": 20, "min_count": 6}
    table = reliability(predictive, labels, **convention)
    assert table.count.tolist() == [6, 6]
    assert table.confidence.tolist() == pytest.approx([0.72, 0.98])
    gaps = [0.72 - 0.5, 0.98 - 4 / 6]
    assert expected_calibration_error(predictive, labels, **convention) == pytest.approx(6 / 17 * sum(gaps))
    assert maximum_calibration_error(predictive, labels, **convention) == pytest.approx(max(gaps))


# --- other errors of classes ---


@pytest.mark.parametrize("case", CASES)
def test_the_root_mean_square_lies_between_the_mean_and_the_largest_gap(case, generator):
    predictive, labels = case(generator)
    root = root_mean_square_calibration_error(predictive, labels)
    table = reliability(predictive, labels)
    assert root == pytest.approx(math.sqrt(np.average(table.gap.numpy() ** 2, weights=table.count.numpy())))
    assert expected_calibration_error(predictive, labels) <= root <= maximum_calibration_error(predictive, labels)


@pytest.mark.parametrize("case", CASES)
def test_the_adaptive_error_is_the_expected_one_of_equal_masses(case, generator):
    predictive, labels = case(generator)
    expected = expected_calibration_error(predictive, labels, bins=8, scheme="mass")
    assert adaptive_calibration_error(predictive, labels, bins=8) == expected
    confidence, right = events(predictive, labels)
    order = confidence.argsort(kind="stable")
    parts = [np.ceil(len(order) * b / 8).astype(int) for b in range(1, 8)]
    cut = zip(np.split(confidence[order], parts), np.split(right[order], parts), strict=True)
    naive = sum(abs((one - other).sum()) for one, other in cut) / len(order)
    assert expected == pytest.approx(naive)


def test_the_adaptive_error_without_ties_is_that_of_netcal(generator):
    predictive, labels = random_predictions(generator)
    theirs = oracle("netcal.metrics").ECE(15, equal_intervals=False).measure(predictive.probs.numpy(), labels.numpy())
    assert adaptive_calibration_error(predictive, labels) == pytest.approx(theirs, abs=1e-6)


def test_ties_are_cut_into_equal_bins_where_netcal_keeps_them_together():
    probs, labels = np.tile([0.8, 0.1, 0.1], (6, 1)), np.array([0, 0, 0, 1, 2, 1])
    theirs = oracle("netcal.metrics").ECE(2, equal_intervals=False).measure(probs, labels)
    assert theirs == pytest.approx(0.3)
    assert adaptive_calibration_error(Predictive.from_probs(probs), labels, bins=2) == pytest.approx((0.2 + 0.8) / 2)


@pytest.mark.parametrize("case", CASES)
def test_the_classwise_error_is_the_mean_of_binary_ones_of_torchmetrics(case, generator):
    predictive, labels = case(generator)
    classification = oracle("torchmetrics.functional.classification")
    probs = predictive.probs.clamp_max(1 - 1e-12)  # theirs has a bin more, for 1
    each = [
        classification.binary_calibration_error(
            probs[:, c].contiguous(), (labels == c).long(), n_bins=10, validate_args=False
        ).item()
        for c in range(probs.shape[-1])
    ]
    assert classwise_calibration_error(predictive, labels, bins=10, closed="left") == pytest.approx(
        np.mean(each), abs=1e-6
    )


def test_the_classwise_error_by_hand_with_a_class_that_never_occurs():
    """Class 0: 0.5 and once; class 1: 0.3, never; class 2: 0.2 and once."""
    predictive = Predictive.from_probs([[0.5, 0.3, 0.2]] * 2)
    assert classwise_calibration_error(predictive, [0, 2]) == pytest.approx((0 + 0.3 + 0.3) / 3)


def test_the_classwise_error_sees_what_the_most_probable_class_hides():
    """The choice is right as often as it says, but which of the others occurs was predicted the wrong way round."""
    predictive = Predictive.from_probs([[0.5, 0.4, 0.1]] * 10)
    labels = [0] * 5 + [1] + [2] * 4
    assert expected_calibration_error(predictive, labels) == pytest.approx(0)
    assert classwise_calibration_error(predictive, labels) == pytest.approx((0 + 0.3 + 0.3) / 3)


def test_the_classwise_error_in_one_bin_compares_frequencies_with_mean_probabilities(generator):
    predictive, labels = random_predictions(generator)
    frequencies = torch.bincount(labels, minlength=4) / 300
    expected = (frequencies - predictive.probs.mean(0)).abs().mean().item()
    assert classwise_calibration_error(predictive, labels, bins=1) == pytest.approx(expected)


def test_classes_whose_bins_are_all_dropped_do_not_count():
    predictive = Predictive.from_probs([[0.95, 0.05], [0.85, 0.15], [0.75, 0.25], [0.65, 0.35], [0.55, 0.45]])
    assert math.isnan(classwise_calibration_error(predictive, [0, 0, 0, 1, 1], bins=10, min_count=2))
    same = Predictive.from_probs([[0.6, 0.3, 0.1], [0.6, 0.1, 0.3]])
    assert classwise_calibration_error(same, [0, 1], bins=5, min_count=2) == pytest.approx(0.1)


def naive_debiased(table):
    """Bin by bin: squared gap less the variance of the accuracy, weighted by rows."""
    rows = sum(count for *_, count in table)
    total = 0.0
    for confidence, accuracy, count in table:
        total += count / rows * ((accuracy - confidence) ** 2 - accuracy * (1 - accuracy) / (count - 1))
    return math.sqrt(max(total, 0))


@pytest.mark.parametrize("bins", [2, 5, 15])
def test_the_debiased_error_is_that_of_a_loop_over_bins(bins, generator):
    predictive, labels = random_predictions(generator)
    table = [row for row in naive_bins(predictive, labels, bins, "right") if row[2] > 1]
    assert debiased_calibration_error(predictive, labels, bins=bins) == pytest.approx(naive_debiased(table))


def test_the_debiased_error_by_hand():
    """One bin of four rows at 0.9, half of them right: 0.4^2 - 0.25 / 3."""
    predictive = binary([0.9] * 4)
    assert debiased_calibration_error(predictive, [0, 0, 1, 1]) == pytest.approx(math.sqrt(0.16 - 0.25 / 3))


def test_a_bin_with_one_row_cannot_be_debiased_and_is_dropped():
    predictive, labels = binary([0.55, 0.9, 0.9, 0.9, 0.9]), [1, 0, 0, 1, 1]
    assert debiased_calibration_error(predictive, labels) == pytest.approx(math.sqrt(0.16 - 0.25 / 3))
    assert debiased_calibration_error(predictive, labels, min_count=1) == pytest.approx(math.sqrt(0.16 - 0.25 / 3))
    assert math.isnan(debiased_calibration_error(predictive, labels, min_count=5))
    assert math.isnan(debiased_calibration_error(binary([0.55, 0.95]), [0, 0]))


def calibrated(generator, rows):
    """Labels drawn from the probabilities themselves."""
    logits = 2 * torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    predictive = Predictive.from_probs(logits.softmax(-1))
    return predictive, predictive.sample(1, generator)[0]


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_a_calibrated_simulation_has_a_debiased_error_near_0(scheme, generator):
    predictive, labels = calibrated(generator, 50_000)
    debiased = debiased_calibration_error(predictive, labels, scheme=scheme)
    assert debiased < 0.01
    assert debiased < root_mean_square_calibration_error(predictive, labels, scheme=scheme)


def test_of_calibrated_simulations_about_half_have_no_debiased_error_at_all(generator):
    """Before it is cut off at 0 the sum scatters around 0; without the correction it never comes near."""
    simulations = [calibrated(generator, 300) for _ in range(100)]
    debiased = np.array([debiased_calibration_error(*simulation) for simulation in simulations])
    plain = np.array([root_mean_square_calibration_error(*simulation) for simulation in simulations])
    assert 0.35 < (debiased == 0).mean() < 0.75
    assert (debiased**2).mean() < (plain**2).mean() / 3
    assert plain.min() > 0.02


def test_the_squared_debiased_error_is_right_on_average_and_the_plain_one_too_large(generator):
    """Always 0.8 said and 0.6 true: the squared gap is 0.04, estimated from 20 rows at a time."""
    predictive = binary([0.8] * 20)
    wrong = (torch.rand(2000, 20, generator=generator) > 0.6).long()
    debiased = np.array([debiased_calibration_error(predictive, labels, bins=1) ** 2 for labels in wrong])
    plain = np.array([root_mean_square_calibration_error(predictive, labels, bins=1) ** 2 for labels in wrong])
    assert plain.mean() == pytest.approx(0.04 + 0.6 * 0.4 / 20, abs=0.003)
    # Setting negative sums to 0 leaves a little of the bias.
    assert 0.04 - 0.001 < debiased.mean() < 0.04 + 0.004


@pytest.mark.parametrize(
    "error",
    [
        root_mean_square_calibration_error,
        adaptive_calibration_error,
        classwise_calibration_error,
        debiased_calibration_error,
    ],
)
def test_all_errors_refuse_bad_bins_and_labels_and_are_0_where_certain_and_right(error):
    predictive = binary([1.0, 1.0, 1.0])
    assert error(predictive, [0, 0, 0]) == 0
    assert error(predictive, [1, 1, 1]) == pytest.approx(1)
    with pytest.raises(SettingError, match="at least one bin is needed, got 0"):
        error(predictive, [0, 0, 0], bins=0)
    with pytest.raises(DataError, match=r"labels must be whole and lie in 0\.\.1, got 0\.\.2"):
        error(predictive, [0, 0, 2])
    assert math.isnan(error(predictive, [0, 0, 0], min_count=9))


# --- real numbers and counts ---


def drawn_normals(generator, rows=4000, spread=1.0):
    """Predictions of three members, and targets from their mixture with `spread` times its distance from the mean."""
    means, stds = (torch.randn(3, rows, generator=generator, dtype=torch.float64) for _ in range(2))
    predictive = Predictive.from_normal(means, stds.exp(), [0.5, 0.3, 0.2])
    chosen = torch.multinomial(predictive.weights, rows, replacement=True, generator=generator)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    targets = means[chosen, torch.arange(rows)] + predictive.stds[chosen, torch.arange(rows)] * noise
    return predictive, predictive.mean + spread * (targets - predictive.mean)


def drawn_counts(generator, rows=4000, scale=1.0):
    rates = torch.randn(2, rows, generator=generator, dtype=torch.float64).exp()
    predictive = PoissonPredictive(torch.tensor([0.25, 0.75]), rates)
    chosen = torch.multinomial(predictive.weights, rows, replacement=True, generator=generator)
    return predictive, torch.poisson(scale * rates[chosen, torch.arange(rows)], generator=generator)


def test_pit_of_normals_is_the_weighted_distribution_function_of_scipy(generator):
    predictive, targets = drawn_normals(generator, rows=50)
    expected = predictive.weights.numpy() @ scipy.stats.norm(predictive.means, predictive.stds).cdf(targets)
    np.testing.assert_allclose(pit(predictive, targets), expected, atol=1e-12)


def test_pit_of_calibrated_predictions_is_spread_evenly(generator):
    for predictive, targets in (drawn_normals(generator), drawn_counts(generator)):
        assert scipy.stats.kstest(pit(predictive, targets, generator), "uniform").pvalue > 0.01


def test_pit_of_overconfident_predictions_heaps_at_both_ends(generator):
    predictive, targets = drawn_normals(generator, spread=3.0)
    ends = (pit(predictive, targets) - 0.5).abs() > 0.45
    assert ends.double().mean() > 0.3


def test_pit_of_counts_lies_in_the_jump_and_needs_a_generator(generator):
    predictive, counts = drawn_counts(generator, rows=200)
    values = pit(predictive, counts, generator)
    assert ((values >= predictive.cdf(counts - 1)) & (values <= predictive.cdf(counts))).all()
    again = [pit(predictive, counts, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*again)
    with pytest.raises(
        SettingError, match=r"the PIT of counts is drawn from the jump of F at each count.*pass a generator"
    ):
        pit(predictive, counts)


def test_pit_of_extreme_targets_is_0_or_1():
    assert pit(Predictive.from_normal([0.0, 0.0], 1.0), [-1e9, 1e9]).tolist() == [0, 1]
    counts = PoissonPredictive(torch.ones(1), torch.tensor([[0.0, 1e-3, 3.0]]))
    values = pit(counts, [5, 10**6, 10**6], torch.Generator().manual_seed(0))
    assert values.tolist() == [1, 1, 1]


def test_pit_and_quantiles_of_several_outputs(generator):
    means, targets = torch.randn(3, 20, 2, generator=generator), torch.randn(20, 2, generator=generator)
    both = Predictive.from_normal(means, 0.5)
    each = [Predictive.from_normal(means[..., i], 0.5) for i in range(2)]
    torch.testing.assert_close(pit(both, targets), torch.stack([pit(each[i], targets[:, i]) for i in range(2)], -1))
    pooled = sum(quantile_calibration(each[i], targets[:, i]).observed for i in range(2)) / 2
    torch.testing.assert_close(quantile_calibration(both, targets).observed, pooled)


def test_quantile_calibration_counts_targets_below_each_quantile(generator):
    predictive, targets = drawn_normals(generator, rows=300, spread=2.0)
    table = quantile_calibration(predictive, targets, [0.1, 0.5, 0.8])
    naive = [(targets <= predictive.quantile(level)).double().mean().item() for level in (0.1, 0.5, 0.8)]
    assert table.level.tolist() == [0.1, 0.5, 0.8]
    assert table.observed.tolist() == pytest.approx(naive)
    assert table.gap.tolist() == pytest.approx(
        [abs(n - level) for n, level in zip(naive, (0.1, 0.5, 0.8), strict=True)]
    )
    expected = table.gap.mean().item()
    assert quantile_calibration_error(predictive, targets, [0.1, 0.5, 0.8]) == pytest.approx(expected)


def test_quantile_calibration_of_one_normal_gives_the_coverage_of_netcal(generator):
    """The share between two quantiles is what netcal calls the coverage of the central interval."""
    means = torch.randn(500, generator=generator, dtype=torch.float64)
    targets = means + 1.5 * torch.randn(500, generator=generator, dtype=torch.float64)
    low, high = quantile_calibration(Predictive.from_normal(means, 1.0), targets, [0.05, 0.95]).observed.tolist()
    normal = means.numpy(), np.ones(500)
    theirs = oracle("netcal.metrics").PICP().measure(normal, targets.numpy(), q=np.array([0.9]), kind="meanstd")
    assert high - low == pytest.approx(theirs.picp.item())


@pytest.mark.parametrize("drawn", [drawn_normals, drawn_counts])
def test_calibrated_predictions_have_no_quantile_calibration_error_and_others_do(drawn, generator):
    assert quantile_calibration_error(*drawn(generator)) < 1.5 * 0.3 / math.sqrt(4000)
    assert quantile_calibration_error(*drawn(generator, 4000, 3.0)) > 0.05


def test_chance_alone_gives_an_error_of_about_a_third_of_one_over_root_rows(generator):
    errors = [quantile_calibration_error(*drawn_normals(generator, rows=100)) for _ in range(200)]
    assert np.mean(errors) == pytest.approx(0.3 / math.sqrt(100), rel=0.2)


def test_quantile_calibration_of_counts_is_the_mean_of_the_randomised_pit(generator):
    predictive, counts = drawn_counts(generator, rows=300, scale=2.0)
    table = quantile_calibration(predictive, counts)
    draws = torch.stack([pit(predictive, counts, generator) for _ in range(400)])
    shares = (draws[..., None] <= table.level).double().mean((0, 1))
    torch.testing.assert_close(table.observed, shares, atol=0.01, rtol=0)


def test_a_level_has_below_it_what_is_equal_to_it():
    below, upto = torch.tensor([[0.2, 0.3, 0.1], [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert _share_below(below, upto, 0.3).tolist() == pytest.approx([1, 1, 0.5])
    assert _share_below(below[1:2], upto[1:2], 0.3 - 1e-9) == 0


def test_levels_are_every_twentieth_if_none_are_named(generator):
    table = quantile_calibration(*drawn_normals(generator, rows=20))
    assert table.level.tolist() == list(LEVELS) == pytest.approx(np.linspace(0.05, 0.95, 19).tolist())
    assert (table.observed.diff() >= 0).all()


@pytest.mark.parametrize("levels", [[0.0, 0.5], [0.5, 1.0], [], 0.5, [math.nan]])
def test_levels_that_are_no_probabilities_are_refused(levels, generator):
    with pytest.raises(SettingError, match="levels are probabilities strictly between 0 and 1, got"):
        quantile_calibration(*drawn_normals(generator, rows=5), levels)


def test_targets_that_do_not_fit_are_refused(generator):
    predictive, counts = drawn_counts(generator, rows=5)
    for metric in (pit, quantile_calibration):
        with pytest.raises(DataError, match=r"targets must be counts 0, 1, 2, \.\.\.; row 2 holds 0\.5"):
            metric(predictive, [0, 0, 0.5, 0, 0])
        with pytest.raises(DataError, match=r"targets must have shape \(5,\) to fit the predictions, got \(4,\)"):
            metric(predictive, counts[:-1])


# --- weights of rows ---


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (expected_calibration_error, {}),
        (expected_calibration_error, {"bins": 3, "min_count": 3}),
        (maximum_calibration_error, {"closed": "left"}),
        (root_mean_square_calibration_error, {}),
        (classwise_calibration_error, {"bins": 4}),
    ],
)
@pytest.mark.parametrize("make", [random_classes, random_tokens])
def test_weighted_errors_are_those_of_repeated_rows(error, options, make, generator):
    predictive = make(generator)
    labels = torch.randint(4, predictive.answers.shape, generator=generator)
    found = error(predictive, labels, **options, weights=ROW_WEIGHTS)
    assert found == pytest.approx(error(*repeated(predictive, labels), **options), rel=1e-12)
    assert found != pytest.approx(error(predictive, labels, **options), rel=1e-6)


def test_small_weights_keep_their_bins(generator):
    predictive, labels = random_classes(generator), torch.randint(4, (6,), generator=generator)
    small, large = (expected_calibration_error(predictive, labels, weights=ROW_WEIGHTS * f) for f in (0.01, 7))
    assert small == pytest.approx(large, rel=1e-12)


def test_weighted_quantiles_are_those_of_repeated_rows(generator):
    for predictive in (random_normals(generator), random_poissons(generator)):
        targets = torch.randint(4, (6,), generator=generator)
        found = quantile_calibration(predictive, targets, weights=ROW_WEIGHTS)
        expected = quantile_calibration(*repeated(predictive, targets))
        torch.testing.assert_close(found.observed, expected.observed, rtol=1e-12, atol=1e-12)
        error = quantile_calibration_error(predictive, targets, weights=ROW_WEIGHTS)
        assert error == pytest.approx(float(expected.gap.mean()), rel=1e-12)


def test_where_weights_make_no_sense_they_are_refused(generator):
    predictive, labels = random_classes(generator), torch.zeros(6).long()
    with pytest.raises(SettingError, match="may cut through a row that counts for several"):
        expected_calibration_error(predictive, labels, scheme="mass", weights=ROW_WEIGHTS)
    with pytest.raises(SettingError, match="which weights do not tell"):
        debiased_calibration_error(predictive, labels, weights=ROW_WEIGHTS)
