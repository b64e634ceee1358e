import pickle

import numpy as np
import pytest

from bayesemble.core.errors import DataError
from bayesemble.data.array_files import files_of, find_reader
from bayesemble.data.image_sets.cifar import is_cifar, read_cifar


def batch(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8), generator.integers(0, 10, rows)


def by_colour(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def write(folder, hundred: bool, binary: bool) -> dict[str, np.ndarray]:
    """Two batches and a test batch as published; what they must come back as."""
    folder.mkdir()
    names = {"train": ["train"]} if hundred else {"train": ["data_batch_1", "data_batch_2"]}
    names["test"] = ["test" if hundred else "test_batch"]
    expected = {}
    for part, files in names.items():
        found = [batch(3, seed=len(part) + index) for index, _ in enumerate(files)]
        for name, (images, labels) in zip(files, found, strict=True):
            if binary:
                coarse = [np.full((3, 1), 77)] if hundred else []
                rows = np.concatenate([*coarse, labels[:, None], by_colour(images)], 1).astype(np.uint8)
                (folder / f"{name}.bin").write_bytes(rows.tobytes())
            else:
                held = {b"data": by_colour(images), b"fine_labels" if hundred else b"labels": labels.tolist()}
                (folder / name).write_bytes(pickle.dumps(held | {b"coarse_labels": [77] * 3}, protocol=2))
        expected[f"x_{part}"] = np.concatenate([images for images, _ in found])
        expected[f"y_{part}"] = np.concatenate([labels for _, labels in found])
    return expected


@pytest.mark.parametrize("hundred", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_both_sets_come_back_from_both_forms(tmp_path, hundred, binary):
    expected = write(tmp_path / "cifar", hundred, binary)
    reader = find_reader(tmp_path / "cifar")
    for found in (read_cifar(tmp_path / "cifar"), reader.arrays(tmp_path / "cifar")):
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    np.testing.assert_array_equal(reader.inputs(tmp_path / "cifar"), expected["x_test"])
    assert len(files_of(tmp_path / "cifar")) == (2 if hundred else 3)


def test_other_folders_are_none_of_cifar(tmp_path):
    assert not is_cifar(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert not is_cifar(tmp_path)
    with pytest.raises(DataError, match="holds no batches of CIFAR"):
        read_cifar(tmp_path)


def test_files_that_are_cut_off_or_hold_something_else_are_refused(tmp_path):
    write(tmp_path / "cifar", hundred=False, binary=True)
    path = tmp_path / "cifar" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="rows have 3073 bytes, and 9218 are no multiple"):
        read_cifar(tmp_path / "cifar")
    write(tmp_path / "python", hundred=True, binary=False)
    for held, message in (
        ({b"data": np.zeros((3, 5), np.uint8), b"fine_labels": [0, 1, 2]}, r"must hold bytes of shape \(3, 3072\)"),
        ({b"data": np.zeros((3, 3072), np.uint8)}, "it needs data, and labels or fine_labels"),
    ):
        (tmp_path / "python" / "train").write_bytes(pickle.dumps(held, protocol=2))
        with pytest.raises(DataError, match=message):
            read_cifar(tmp_path / "python")
