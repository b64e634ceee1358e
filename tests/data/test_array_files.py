"""Arrays from NPZ files, idx folders and folders of pictures."""

import gzip
import sys

import numpy as np
import pytest
import scipy.io
from PIL import Image

from bayesemble.core.errors import DataError, MissingExtraError
from bayesemble.data.array_files import READERS, Reader, files_of, find_reader, read_npz, read_pictures
from bayesemble.data.sources import load_data
from conftest import REAL_DATA

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def read_arrays(path):
    return find_reader(path).arrays(path)


def read_inputs(path):
    return find_reader(path).inputs(path)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def write(folder, images, labels, part="train"):
    (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def test_a_further_kind_of_file_is_one_row(tmp_path, monkeypatch):
    """And tables are none of these: they are read by `table_files`."""
    text = Reader(lambda path: path.suffix == ".nums", lambda path: {"x": np.loadtxt(path)}, np.loadtxt)
    monkeypatch.setitem(READERS, "text", text)
    (tmp_path / "a.nums").write_text("1 2\n3 4\n")
    assert read_arrays(tmp_path / "a.nums")["x"].tolist() == [[1, 2], [3, 4]]
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert find_reader(tmp_path / "a.csv") is None


# --- MAT ---


def write_mat(path, images=None, labels=None, **others):
    """Images `(image, height, width, channel)` as SVHN has them: the image axis last, the digit 0 as 10."""
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 3), dtype=np.uint8) if images is None else images
    labels = np.array([[1], [10], [3], [10], [9]], dtype=np.uint8) if labels is None else labels
    scipy.io.savemat(path, {"X": np.moveaxis(images, 0, 3), "y": labels} | others, do_compression=True)
    return images


def test_the_mat_files_of_svhn_are_read_with_images_first_and_ten_as_zero(tmp_path):
    train = write_mat(tmp_path / "train_32x32.mat")
    test = write_mat(tmp_path / "test_32x32.mat", train[:2], np.array([[2], [10]], dtype=np.uint8))
    found = read_arrays(tmp_path)
    assert np.array_equal(found["x_train"], train)
    assert found["y_train"].tolist() == [1, 0, 3, 0, 9]
    assert np.array_equal(found["x_test"], test[:2])
    assert found["y_test"].tolist() == [2, 0]
    assert np.array_equal(read_inputs(tmp_path), test)
    assert np.array_equal(read_arrays(tmp_path / "train_32x32.mat")["x"], train)
    assert [file.name for file in files_of(tmp_path)] == ["test_32x32.mat", "train_32x32.mat"]
    assert len(load_data(str(tmp_path)).x_train) == 5


def test_mat_files_of_another_kind_are_refused_in_a_sentence(tmp_path):
    write_mat(tmp_path / "train_32x32.mat")
    with pytest.raises(DataError, match=r"has no test_32x32\.mat; both are needed"):
        read_arrays(tmp_path)
    path = tmp_path / "a.mat"
    whole = (tmp_path / "train_32x32.mat").read_bytes()
    for content in (whole[: len(whole) // 2], b"MATLAB 7.3 MAT-file, Platform", b"", whole[:60]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as a MAT file"):
            read_arrays(path)
    scipy.io.savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(DataError, match="must hold X"):
        read_arrays(path)
    write_mat(path, labels=np.array([1, 2], dtype=np.uint8))
    with pytest.raises(DataError, match="a label for each image, got"):
        read_arrays(path)


# --- NPZ ---


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


def test_only_what_is_chosen_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), objects=np.array([{}], dtype=object))
    assert read_npz(tmp_path / "a.npz", lambda names: names[:1])["x"].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="cannot be read as an npz file of plain arrays: Object arrays"):
        read_npz(tmp_path / "a.npz", lambda names: names)


def test_npz_files_without_the_arrays_are_refused_with_what_they_hold(tmp_path):
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    with pytest.raises(DataError, match=r"other.npz must hold arrays .*x and y.*; it has 'data'"):
        read_arrays(tmp_path / "other.npz")
    with pytest.raises(DataError, match=r"other.npz must hold one of x_test, x, .*; it has 'data'"):
        read_inputs(tmp_path / "other.npz")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04].", b"PK\x03\x04"])
def test_what_is_no_npz_file_is_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a.npz cannot be read as an npz file .*cut off or of another kind"):
        read_arrays(tmp_path / "a.npz")


def test_cut_and_damaged_npz_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a.npz cannot be read as an npz file"):
        read_arrays(path)
    content[content.index(IMAGES.tobytes())] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"Bad CRC-32 for file 'images\.npy'"):
        read_arrays(path)


# --- idx ---


@pytest.mark.parametrize("packed", [False, True])
def test_idx_folders_have_a_training_and_a_test_part(tmp_path, packed):
    both = [gzip.compress(part) if packed else part for part in (idx(IMAGES), idx(LABELS))]
    write(tmp_path, *both)
    assert np.array_equal(read_arrays(tmp_path)["x"], IMAGES)
    write(tmp_path, both[0], gzip.compress(idx(LABELS[::-1])), part="t10k")
    found = read_arrays(tmp_path)
    assert list(found) == ["x_train", "y_train", "x_test", "y_test"]
    assert found["x_train"].dtype == np.uint8
    assert np.array_equal(found["x_test"], IMAGES)
    assert np.array_equal(found["y_train"], LABELS)
    assert np.array_equal(found["y_test"], LABELS[::-1])
    assert np.array_equal(read_inputs(tmp_path), IMAGES)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="only one of the images and the labels of t10k"):
        read_arrays(tmp_path)


def test_idx_images_may_have_channels(tmp_path):
    colour = np.stack([IMAGES] * 3, axis=-1)
    assert np.array_equal(read_arrays(write(tmp_path, idx(colour), idx(LABELS)))["x"], colour)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(LABELS), idx(IMAGES), "starts with 00 00 08 01 instead of 00 00 08 03 or 00 00 08 04.*mixed up"),
        (idx(IMAGES), idx(IMAGES), "labels-idx1-ubyte is not the idx file.*starts with 00 00 08 03 instead of"),
        (b"\x89PNG and more", idx(LABELS), "is not the idx file that was needed: it starts with 89 50 4e 47"),
        (b"\0\0\x0d\x03" + bytes(12), idx(LABELS), "it starts with 00 00 0d 03"),
        (b"\0\0", idx(LABELS), "images-idx3-ubyte is cut off: an idx file starts with 4 bytes.*, it has 2"),
        (idx(IMAGES)[:10], idx(LABELS), "is cut off: its first 16 bytes describe it, but it has only 10"),
        (idx(IMAGES)[:-1], idx(LABELS), r"is cut off: shape \(5, 4, 3\) needs 60 bytes, it has 59; get the file again"),
        (idx(IMAGES) + b"\0", idx(LABELS), r"holds more than it says: shape \(5, 4, 3\) needs 60 bytes, it has 61"),
        (
            gzip.compress(idx(IMAGES), mtime=0)[:-12],
            idx(LABELS),
            "images-idx3-ubyte cannot be read: .*cut off or damaged",
        ),
        (gzip.compress(idx(IMAGES), mtime=0)[:-4] + b"oops", idx(LABELS), "cannot be read: .*get it again"),
        (b"\x1f\x8bnonsense", idx(LABELS), "cannot be read: "),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, idx(LABELS), "is cut off: shape"),
    ],
)
def test_wrong_idx_files_are_refused_with_what_is_wrong(tmp_path, images, labels, message):
    with pytest.raises(DataError, match=message):
        read_arrays(write(tmp_path, images, labels))


@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason="the folder with MNIST is not here")
def test_mnist_is_read():
    found = read_arrays(REAL_DATA / "mnist")
    assert found["x_test"].shape == (10000, 28, 28)
    assert np.bincount(found["y_test"]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


# --- pictures ---


def pictures(folder, names, shape=(4, 5, 3)):
    generator = np.random.default_rng(len(names))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)


def test_a_folder_of_pictures_has_a_subfolder_for_each_class(tmp_path):
    pictures(tmp_path, ["cat/1.png", "cat/2.png", "dog/1.png"])
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / "notes.txt").write_text("not a class")
    pictures(tmp_path, [".cache/1.png"])
    found = read_arrays(tmp_path)
    assert found["x"].shape == (3, 4, 5, 3)
    assert found["y"].tolist() == ["cat", "cat", "dog"]
    assert np.array_equal(found["x"][0], np.asarray(Image.open(tmp_path / "cat" / "1.png")))
    assert read_inputs(tmp_path).shape == (3, 4, 5, 3)
    assert read_inputs(tmp_path / "cat").shape == (2, 4, 5, 3), "inputs alone need no classes"


def test_gray_pictures_stay_gray(tmp_path):
    pictures(tmp_path, ["a/1.png", "b/1.jpg"], shape=(4, 5))
    assert read_arrays(tmp_path)["x"].shape == (2, 4, 5)


@pytest.mark.parametrize(("first", "shape"), [((4, 5), (2, 4, 5)), ((4, 5, 3), (2, 4, 5, 3))])
def test_all_pictures_are_in_gray_or_in_colours_as_the_first_is(tmp_path, first, shape):
    pictures(tmp_path, ["a/1.png"], shape=first)
    pictures(tmp_path, ["b/1.png"], shape=(4, 5, 3) if len(first) == 2 else (4, 5))
    assert read_arrays(tmp_path)["x"].shape == shape


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
