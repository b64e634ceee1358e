import math

import numpy as np
import pytest
import torch

from bayesemble.errors import DataError, SettingError
from bayesemble.metrics import expected_calibration_error, maximum_calibration_error, reliability
from bayesemble.predictive import ClassPredictive, Predictive


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


def test_bins_with_too_few_rows_are_left_out_of_both_errors():
    predictive, labels = binary([0.55, 0.95, 0.97]), [1, 0, 0]
    assert maximum_calibration_error(predictive, labels, bins=10) == pytest.approx(0.55)
    assert maximum_calibration_error(predictive, labels, bins=10, min_count=2) == pytest.approx(0.04)
    assert expected_calibration_error(predictive, labels, bins=10, min_count=2) == pytest.approx(0.04)


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
