import math
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from sklearn import datasets

from bayesemble.core import seeds
from bayesemble.core.errors import DataError
from bayesemble.data import DATASETS, Split, load_split
from bayesemble.data.catalogue import Parts, location_and_scale

# name: (training rows, test rows, columns, classes, foreign rows)
SHAPES = {
    "digits": (1437, 360, 64, 10, 360),
    "breast_cancer": (455, 114, 30, 2, 0),
    "wine": (142, 36, 13, 3, 0),
    "diabetes": (353, 89, 10, None, 0),
    "sine_gap": (90, 100, 1, None, 90),
    "five_gaussians": (200, 100, 2, 5, 250),
    "two_moons": (200, 100, 2, 2, 100),
}
REGRESSIONS = [name for name, dataset in DATASETS.items() if dataset.kind == "regression"]
CLASSIFICATIONS = [name for name, dataset in DATASETS.items() if dataset.kind == "classification"]
SKLEARN_TABLES = ["digits", "breast_cancer", "wine", "diabetes"]

every_data_set = pytest.mark.parametrize("name", DATASETS)
loaded = cache(load_split)


def raw_parts(name: str) -> Parts:
    """The rows that `load_split(name, seed=0)` scales."""
    return DATASETS[name].load(np.random.default_rng(seeds.child(0, "data", name)))


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


def original_digits(inputs: np.ndarray, split: Split) -> np.ndarray:
    """Pixels 0..16 again: the smallest and largest standardised value are blank and full."""
    blank, full = split.x_train.min(), split.x_train.max()
    return 16 * (inputs.astype(np.float64) - blank) / (full - blank)


def test_the_table_has_the_promised_rows_with_digits_first() -> None:
    assert list(DATASETS) == list(SHAPES)
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.description.endswith(".")
        assert len(dataset.description) <= 110


def test_listing_the_table_imports_neither_scikit_learn_nor_torch() -> None:
    code = (
        "import sys; from bayesemble.data import DATASETS; list(DATASETS); "
        "assert not {'sklearn', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'mnist'.*digits, breast_cancer, wine, diabetes, sine_gap"):
        load_split("mnist")


@every_data_set
def test_shapes_and_number_types(name: str) -> None:
    split = loaded(name)
    num_train, num_test, num_columns, num_classes, num_ood = SHAPES[name]
    assert split.kind == DATASETS[name].kind
    assert split.x_train.shape == (num_train, num_columns)
    assert split.x_test.shape == (num_test, num_columns)
    assert split.y_train.shape == (num_train,)
    assert split.y_test.shape == (num_test,)
    assert split.num_classes == num_classes
    assert split.x_train.dtype == split.x_test.dtype == np.float32
    assert split.y_train.dtype == split.y_test.dtype == (np.int64 if num_classes else np.float32)
    if num_ood:
        assert split.x_ood is not None
        assert split.x_ood.shape == (num_ood, num_columns)
        assert split.x_ood.dtype == np.float32
    else:
        assert split.x_ood is None


@every_data_set
def test_everything_is_finite(name: str) -> None:
    split = loaded(name)
    for values in (split.x_train, split.y_train, split.x_test, split.y_test, split.x_ood):
        assert values is None or np.all(np.isfinite(values))


@every_data_set
def test_same_seed_same_split_other_seed_other_split(name: str) -> None:
    once, again, other = loaded(name), load_split(name, seed=0), load_split(name, seed=1)
    for field in ("x_train", "y_train", "x_test", "y_test", "x_ood"):
        np.testing.assert_array_equal(getattr(once, field), getattr(again, field))
    assert not np.array_equal(once.x_train, other.x_train)
    assert not np.array_equal(once.x_test, other.x_test)
    if once.x_ood is not None:
        assert not np.array_equal(once.x_ood, other.x_ood)


@every_data_set
def test_training_and_test_rows_are_disjoint(name: str) -> None:
    split = loaded(name)
    rows = np.concatenate([split.x_train, split.x_test])
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("name", SKLEARN_TABLES)
def test_training_and_test_together_are_the_whole_table(name: str) -> None:
    _, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    split = loaded(name)
    both = np.concatenate([split.y_train, split.y_test]).astype(np.float64)
    original = split.target_shift + split.target_scale * both
    np.testing.assert_allclose(np.sort(original), np.sort(targets), rtol=1e-4)


@pytest.mark.parametrize("name", CLASSIFICATIONS)
def test_labels_are_counted_from_zero_and_both_parts_have_every_class_in_the_same_shares(name: str) -> None:
    split = loaded(name)
    assert split.num_classes is not None
    np.testing.assert_array_equal(np.unique(split.y_train), np.arange(split.num_classes))
    train = np.bincount(split.y_train) / len(split.y_train)
    test = np.bincount(split.y_test, minlength=split.num_classes) / len(split.y_test)
    np.testing.assert_allclose(train, test, atol=0.02)
    assert (split.target_shift, split.target_scale) == (0.0, 1.0)


@pytest.mark.parametrize("name", CLASSIFICATIONS)
def test_rows_are_shuffled(name: str) -> None:
    split = loaded(name)
    assert len(np.unique(split.y_train[: len(split.y_train) // 2])) == split.num_classes


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_inputs_are_standardised_per_column_by_the_training_part_alone(name: str) -> None:
    split = loaded(name)
    training = split.x_train.astype(np.float64)
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(training.std(axis=0), 1, atol=1e-6)
    assert np.abs(split.x_test.astype(np.float64).mean(axis=0)).max() > 1e-4


def test_digits_are_standardised_with_one_mean_and_scale() -> None:
    split = loaded("digits")
    assert split.x_train.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert split.x_train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    pixels = original_digits(np.concatenate([split.x_train, split.x_test]), split)
    table, _ = datasets.load_digits(return_X_y=True)
    np.testing.assert_allclose(pixels, np.round(pixels), atol=1e-4)
    np.testing.assert_array_equal(sorted_rows(np.round(pixels)), sorted_rows(table))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_targets_are_standardised_by_the_training_part_and_can_be_brought_back(name: str) -> None:
    split = loaded(name)
    assert split.y_train.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert split.y_train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    raw = raw_parts(name)
    for scaled, original in ((split.y_train, raw.y_train), (split.y_test, raw.y_test)):
        back = split.target_shift + split.target_scale * scaled
        np.testing.assert_allclose(back, original, rtol=1e-4, atol=1e-5)


@every_data_set
def test_test_and_foreign_rows_are_scaled_by_the_training_part(name: str) -> None:
    split, raw = loaded(name), raw_parts(name)
    axis = None if name == "digits" else 0
    mean, deviation = raw.x_train.mean(axis=axis), raw.x_train.std(axis=axis)
    np.testing.assert_allclose(split.x_test, (raw.x_test - mean) / deviation, atol=1e-5)
    if raw.x_ood is not None:
        np.testing.assert_allclose(split.x_ood, (raw.x_ood - mean) / deviation, atol=1e-5)


def test_sine_gap_tests_where_it_trains_and_is_foreign_elsewhere() -> None:
    raw = raw_parts("sine_gap")
    assert raw.x_ood is not None
    for inputs in (raw.x_train, raw.x_test):
        left, right = np.split(np.sort(inputs[:, 0]), 2)
        assert 1.5 <= left.min() < left.max() <= 2.5
        assert 4.5 <= right.min() < right.max() <= 6.0
    ood = raw.x_ood
    assert not np.any(((ood > 1.5) & (ood < 2.5)) | ((ood > 4.5) & (ood < 6.0)))
    noise = raw.y_test - raw.x_test[:, 0] * np.sin(raw.x_test[:, 0])
    assert noise.std() == pytest.approx(0.25, rel=4 / math.sqrt(2 * len(noise)))  # 4 standard errors


@pytest.mark.parametrize(("name", "distance"), [("five_gaussians", 1.0), ("two_moons", 0.7)])
def test_foreign_points_in_the_plane_are_away_from_the_training_points(name: str, distance: float) -> None:
    raw = raw_parts(name)
    assert raw.x_ood is not None
    gaps = np.linalg.norm(raw.x_ood[:, None] - raw.x_train[None], axis=2).min(axis=1)
    assert np.mean(gaps > distance) > 0.9


def test_foreign_digits_are_turned_test_images_and_noise_on_the_training_scale() -> None:
    split = loaded("digits")
    assert split.x_ood is not None
    turned, noise = split.x_ood[:180], split.x_ood[180:]
    images = split.x_test[:180].reshape(180, 8, 8)
    np.testing.assert_array_equal(turned.reshape(180, 8, 8), np.rot90(images, axes=(1, 2)))
    # Turned once, the top row of pixels is what was the rightmost column.
    np.testing.assert_array_equal(turned[0, :8], images[0, :, 7])
    pixels = original_digits(noise, split)
    assert 0 <= pixels.min() < 0.01
    assert 15.99 < pixels.max() <= 16.0001
    assert pixels.mean() == pytest.approx(8, abs=0.1)
    assert pixels.var() == pytest.approx(16**2 / 12, rel=0.03)


def test_constant_columns_have_scale_one() -> None:
    # Rounding leaves the first column with a deviation that is not exactly 0.
    values = np.stack([np.full(1001, 0.1), np.zeros(1001), np.arange(1001.0)], axis=1)
    assert values[:, 0].std() > 0
    shift, scale = location_and_scale(values, axis=0)
    np.testing.assert_allclose(shift, [0.1, 0.0, 500.0])
    np.testing.assert_allclose(scale, [1.0, 1.0, values[:, 2].std()])
    np.testing.assert_allclose(((values - shift) / scale)[:, :2], 0, atol=1e-12)


def test_one_scale_for_everything() -> None:
    values = np.array([[0.0, 2.0], [4.0, 6.0]])
    shift, scale = location_and_scale(values, axis=None)
    assert shift == 3.0
    assert scale == pytest.approx(np.sqrt(5.0))


def test_location_and_scale_of_weighted_rows_are_those_of_repeated_rows():
    values, weights = np.random.default_rng(0).normal(size=(5, 2)), np.array([1, 3, 2, 1, 4])
    values[:, 1] = 7.0
    found, expected = location_and_scale(values, 0, weights), location_and_scale(values.repeat(weights, 0), 0)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert found[1][1] == 1
