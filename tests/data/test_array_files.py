"""Arrays from NPZ files, idx folders and folders of pictures."""

import gzip
import sys

import numpy as np
import pytest
from PIL import Image

from bayesemble.core.errors import DataError, MissingExtraError
from bayesemble.data.array_files import flat_images, read_arrays, read_inputs, read_pictures


def idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.mark.parametrize(
    "names", [("x", "y"), ("images", "labels"), ("x_train", "y_train", "x_test", "y_test")], ids="-".join
)
def test_npz_files_are_read_by_their_names(tmp_path, names):
    arrays = {name: np.arange(6).reshape(3, 2) + place for place, name in enumerate(names)}
    np.savez(tmp_path / "a.npz", **arrays, other=np.zeros(2))
    found = read_arrays(tmp_path / "a.npz")
    expected = dict(zip(("x", "y") if len(names) == 2 else names, arrays.values(), strict=True))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_inputs_alone_are_those_of_the_test_part_if_there_is_one(tmp_path):
    np.savez(tmp_path / "parts.npz", x_train=np.zeros((2, 3)), x_test=np.ones((4, 3)))
    np.savez(tmp_path / "whole.npz", images=np.ones((5, 2, 2)))
    assert read_inputs(tmp_path / "parts.npz").shape == (4, 3)
    assert read_inputs(tmp_path / "whole.npz").shape == (5, 2, 2)


def test_damaged_npz_files_are_refused_with_a_sentence(tmp_path):
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    with pytest.raises(DataError, match=r"other.npz must hold arrays .*x and y.*; it has 'data'"):
        read_arrays(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, []], dtype=object), y=np.zeros(2))
    with pytest.raises(DataError, match=r"objects.npz is damaged, or holds more than plain arrays"):
        read_arrays(tmp_path / "objects.npz")
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"text.npz is not a whole npz file"):
        read_arrays(tmp_path / "text.npz")
    np.savez(tmp_path / "whole.npz", x=np.zeros((500, 4)), y=np.zeros(500))
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"cut.npz is not a whole npz file"):
        read_arrays(tmp_path / "cut.npz")


def test_idx_folders_have_a_training_and_a_test_part(tmp_path):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (7, 3, 2)), np.array([0, 1, 0, 1, 1, 0, 1])
    for part in ("train", "t10k"):
        idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    found = read_arrays(tmp_path)
    assert found["x_train"].shape == (7, 3, 2, 1)
    assert np.allclose(found["x_test"][..., 0] * 255, images)
    assert np.array_equal(found["y_test"], labels)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="only one of the images and the labels of t10k"):
        read_arrays(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    assert read_arrays(tmp_path)["x"].shape == (7, 3, 2, 1)


def pictures(folder, names, shape=(4, 5, 3)):
    generator = np.random.default_rng(len(names))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)


def test_a_folder_of_pictures_has_a_subfolder_for_each_class(tmp_path):
    pictures(tmp_path, ["cat/1.png", "cat/2.png", "dog/1.png"])
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    found = read_arrays(tmp_path)
    assert found["x"].shape == (3, 4, 5, 3)
    assert found["y"].tolist() == ["cat", "cat", "dog"]
    assert np.array_equal(found["x"][0], np.asarray(Image.open(tmp_path / "cat" / "1.png")))
    assert read_inputs(tmp_path).shape == (3, 4, 5, 3)
    assert read_inputs(tmp_path / "cat").shape == (2, 4, 5, 3), "inputs alone need no classes"


def test_gray_pictures_stay_gray(tmp_path):
    pictures(tmp_path, ["a/1.png", "b/1.jpg"], shape=(4, 5))
    assert read_arrays(tmp_path)["x"].shape == (2, 4, 5)


def test_folders_that_cannot_be_read_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(DataError, match="has 0 subfolders; idx files were needed, or pictures"):
        read_arrays(tmp_path)
    with pytest.raises(DataError, match="holds neither idx files nor pictures"):
        read_inputs(tmp_path)
    pictures(tmp_path, ["cat/1.png"])
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"dog holds no pictures"):
        read_arrays(tmp_path)
    pictures(tmp_path, ["dog/1.png"], shape=(9, 5, 3))
    with pytest.raises(DataError, match=r"1.png is \(4, 5\), .*1.png is \(9, 5\)"):
        read_arrays(tmp_path)
    (tmp_path / "dog" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"1.png cannot be read as a picture"):
        read_arrays(tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bayesemble\[images\]'"):
        read_pictures([tmp_path / "1.png"])


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
