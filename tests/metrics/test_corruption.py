import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.data.corruptions import CORRUPTIONS
from bayesemble.metrics import accuracy, expected_calibration_error, nll
from bayesemble.metrics.corruption import (
    corruption_error,
    corruption_table,
    mean_corruption_error,
    relative_corruption_error,
    relative_mean_corruption_error,
)
from bayesemble.predictive import Predictive

ERRORS = {"fog": [0.1, 0.2, 0.3, 0.4, 0.5], "snow": [0.2, 0.2, 0.3, 0.3, 0.4]}
BASELINE = {"fog": [0.2, 0.3, 0.4, 0.5, 0.6], "snow": [0.1, 0.2, 0.2, 0.3, 0.3]}


# --- corruption errors ---


def test_corruption_errors_by_hand():
    assert corruption_error(ERRORS, BASELINE) == pytest.approx({"fog": 100 * 1.5 / 2.0, "snow": 100 * 1.4 / 1.1})
    assert mean_corruption_error(ERRORS, BASELINE) == pytest.approx(100 * (1.5 / 2.0 + 1.4 / 1.1) / 2)


def test_relative_errors_compare_each_model_with_its_own_clean_error():
    """The baseline's own clean error is in the denominator, as first defined."""
    expected = {"fog": 100 * (1.5 - 5 * 0.1) / (2.0 - 5 * 0.05), "snow": 100 * (1.4 - 5 * 0.1) / (1.1 - 5 * 0.05)}
    assert relative_corruption_error(ERRORS, 0.1, BASELINE, 0.05) == pytest.approx(expected)
    mean = relative_mean_corruption_error(ERRORS, 0.1, BASELINE, 0.05)
    assert mean == pytest.approx((expected["fog"] + expected["snow"]) / 2)


def test_the_baseline_has_100_per_cent_of_itself():
    assert mean_corruption_error(BASELINE, BASELINE) == pytest.approx(100)
    assert relative_mean_corruption_error(BASELINE, 0.05, BASELINE, 0.05) == pytest.approx(100)


def test_a_model_that_loses_nothing_has_relative_error_0_however_bad_it_is():
    flat = {name: [0.6] * 5 for name in BASELINE}
    assert relative_mean_corruption_error(flat, 0.6, BASELINE, 0.05) == pytest.approx(0)
    assert mean_corruption_error(flat, BASELINE) > 150


def test_corruptions_count_alike_however_hard_they_are():
    hard, easy = {"a": [0.8], "b": [0.01]}, {"a": [0.4], "b": [0.02]}
    assert mean_corruption_error(hard, easy) == pytest.approx(100 * (2 + 0.5) / 2)


def test_any_number_of_severities_and_any_sequence_will_do():
    few = {name: np.array(values[::2]) for name, values in ERRORS.items()}
    base = {name: tuple(values[::2]) for name, values in BASELINE.items()}
    assert mean_corruption_error(few, base) == pytest.approx(100 * (0.9 / 1.2 + 0.9 / 0.6) / 2)


def test_a_baseline_without_errors_is_refused_with_a_sentence():
    with pytest.raises(DataError, match="under fog the baseline makes no error, so nothing can be measured against it"):
        mean_corruption_error({"fog": [0.1]}, {"fog": [0.0]})


@pytest.mark.parametrize("errors", [[0.1, 0.1, 0.1], [0.05, 0.1, 0.12]])
def test_a_baseline_that_loses_nothing_is_refused_with_a_sentence(errors):
    with pytest.raises(DataError, match="under fog the baseline is no worse than on clean images"):
        relative_mean_corruption_error({"fog": [0.3, 0.3, 0.3]}, 0.2, {"fog": errors}, 0.1)


@pytest.mark.parametrize(
    ("errors", "baseline", "message"),
    [
        ({}, {}, "must be of the same corruptions, got none and none"),
        ({"fog": [0.1]}, {"snow": [0.1]}, "must be of the same corruptions, got fog and snow"),
        ({"fog": [0.1, 0.2]}, {"fog": [0.1]}, "fog has errors for 2 severities, its baseline for 1"),
        ({"fog": []}, {"fog": []}, "fog has errors for 0 severities"),
        ({"fog": [23.0]}, {"fog": [0.5]}, "errors are shares of wrong rows from 0 to 1, got 23.0; divide per cent by"),
        ({"fog": [0.1]}, {"fog": [float("nan")]}, "errors are shares of wrong rows from 0 to 1, got nan"),
    ],
)
def test_tables_that_do_not_fit_are_refused(errors, baseline, message):
    with pytest.raises(DataError, match=message):
        mean_corruption_error(errors, baseline)


# --- the table ---


def digits(count=60):
    data = load_digits()
    return (data.images[:count, ..., None] / 16).astype(np.float32), data.target[:count]


def by_nearest_mean(images):
    """A classifier without training: classes by the distance from their mean image, in two members."""
    data = load_digits()
    means = np.stack([(data.images[data.target == c] / 16).mean(0).ravel() for c in range(10)])
    distances = ((images.reshape(len(images), 1, -1) - means) ** 2).sum(-1)
    logits = -torch.as_tensor(distances, dtype=torch.float64)
    return Predictive.from_probs(torch.stack([logits.softmax(-1), (2 * logits).softmax(-1)]))


def test_the_table_holds_the_scores_of_each_corruption_and_severity():
    images, labels = digits()
    chosen = {name: CORRUPTIONS[name] for name in ("gaussian_noise", "contrast")}
    table = corruption_table(by_nearest_mean, images, labels, chosen, severities=(1, 5), seed=3)
    assert table.severities == (1, 5)
    for name, corruption in chosen.items():
        for place, severity in enumerate((1, 5)):
            generator = np.random.default_rng(seeds.child(3, "corruption", name, severity))
            predictive = by_nearest_mean(corruption(images, severity, generator))
            assert table.accuracy[name][place] == accuracy(predictive, labels)
            assert table.nll[name][place] == pytest.approx(nll(predictive, labels))
            assert table.ece[name][place] == pytest.approx(expected_calibration_error(predictive, labels))


def test_errors_of_a_table_go_into_the_corruption_errors():
    images, labels = digits()
    table = corruption_table(by_nearest_mean, images, labels, {"contrast": CORRUPTIONS["contrast"]}, severities=(1, 5))
    assert table.errors["contrast"] == pytest.approx([1 - value for value in table.accuracy["contrast"]])
    assert mean_corruption_error(table.errors, table.errors) == pytest.approx(100)


def test_a_table_is_the_same_for_the_same_seed_and_another_for_another():
    images, labels = digits()
    noise = {"impulse_noise": CORRUPTIONS["impulse_noise"]}
    tables = [corruption_table(by_nearest_mean, images, labels, noise, (5,), seed) for seed in (0, 0, 1)]
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]


def test_what_needs_no_randomness_does_not_depend_on_the_batches():
    images, labels = digits()
    blur = {"zoom_blur": CORRUPTIONS["zoom_blur"]}
    whole, parts = (corruption_table(by_nearest_mean, images, labels, blur, (3,), batch_size=n) for n in (1000, 7))
    assert whole.accuracy == parts.accuracy
    assert whole.nll["zoom_blur"] == pytest.approx(parts.nll["zoom_blur"])


def test_tables_of_nothing_are_refused():
    images, labels = digits()
    with pytest.raises(SettingError, match="at least one corruption and one severity are needed"):
        corruption_table(by_nearest_mean, images, labels, {})
    with pytest.raises(SettingError, match="batch_size is at least one image, got 0"):
        corruption_table(by_nearest_mean, images, labels, CORRUPTIONS, batch_size=0)
    with pytest.raises(DataError, match="there are no images to corrupt"):
        corruption_table(by_nearest_mean, images[:0], labels[:0], CORRUPTIONS)
