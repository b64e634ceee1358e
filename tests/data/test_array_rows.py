"""What arrays mean: which are rows, images, classes and numbers, and which are refused."""

import numpy as np
import pytest

from bayesemble.core.errors import DataError
from bayesemble.data.array_rows import MOST_CLASSES, as_classes, as_rows, as_targets, flat_images

BYTES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


def test_bytes_become_numbers_from_0_to_1_and_other_numbers_stay():
    images = as_rows(BYTES, "a.npz")
    assert (images.image_shape, images.one_scale, images.rows.dtype) == ((4, 3), True, np.float32)
    np.testing.assert_allclose(images.rows, BYTES.reshape(5, 12) / 255, rtol=1e-6)
    table = as_rows(BYTES[:, :, 0].astype(np.int64), "a.npz")
    assert (table.image_shape, table.one_scale) == (None, False)
    assert np.array_equal(table.rows, BYTES[:, :, 0])
    assert as_rows(BYTES[:, :, 0], "a.npz").one_scale, "bytes are pixels, laid out flat too"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), r"must be numbers \(row, column\) or images .*, got float64 of shape \(3,\)"),
        (np.zeros((0, 4, 3)), r"got float64 of shape \(0, 4, 3\)"),
        (np.array([["a"]]), "got <U1 of shape"),
        (np.array([[np.nan, 1.0]]), "holds numbers that are not finite"),
    ],
)
def test_what_are_no_rows_is_refused(array, message):
    with pytest.raises(DataError, match=f"a.npz.*{message}"):
        as_rows(array, "a.npz")


def test_targets_are_one_for_each_row():
    assert as_targets(np.array([[1.5], [2.5]]), "y").tolist() == [1.5, 2.5]
    for array, message in ((np.zeros((3, 2)), "one target for each row"), (np.array([1, np.inf]), "not finite")):
        with pytest.raises(DataError, match=message):
            as_targets(array, "y")


def test_whole_numbers_and_texts_are_classes_and_real_numbers_are_numbers():
    kind, count, (train, test) = as_classes([np.array(["b", "a", "c"]), np.array(["a"])], "y")
    assert (kind, count, train.tolist(), test.tolist()) == ("classification", 3, [1, 0, 2], [0])
    kind, count, (train,) = as_classes([np.array([7, -2, 7], dtype=np.int8)], "y")
    assert (kind, count, train.tolist()) == ("classification", 2, [1, 0, 1])
    kind, count, (train,) = as_classes([np.array([1.0, 2.0], dtype=np.float32)], "y")
    assert (kind, count, train.dtype) == ("regression", None, np.float64)
    for targets in (np.zeros(4, int), np.arange(MOST_CLASSES + 1)):
        with pytest.raises(DataError, match=f"2 to {MOST_CLASSES} of them, got"):
            as_classes([targets], "y")


def test_images_become_rows_and_know_their_shape():
    last = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)
    rows, shape = flat_images(last)
    assert shape == (4, 5, 3)
    assert np.array_equal(rows, last.reshape(2, -1))
    first, shape = flat_images(np.moveaxis(last, 3, 1))
    assert shape == (4, 5, 3)
    assert np.array_equal(first, rows), "channels first are put last"
    assert flat_images(last[..., :1])[1] == (4, 5)
    assert flat_images(last[..., 0])[1] == (4, 5)
