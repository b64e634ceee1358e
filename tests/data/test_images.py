import gzip
from pathlib import Path

import numpy as np
import pytest

from bayesemble.core.errors import DataError
from bayesemble.data.images import read_idx, read_npz
from conftest import REAL_DATA

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write(folder: Path, images: bytes, labels: bytes) -> tuple[Path, Path]:
    paths = folder / "images-idx3-ubyte", folder / "labels-idx1-ubyte"
    for path, content in zip(paths, (images, labels), strict=True):
        path.write_bytes(content)
    return paths


def save(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def check(read) -> None:
    assert read.images.shape == (5, 4, 3, 1)
    assert read.images.dtype == np.float32
    np.testing.assert_allclose(read.images[..., 0], IMAGES / 255, rtol=1e-6)
    assert read.labels.dtype == np.int64
    assert read.labels.tolist() == [3, 1, 4, 1, 5]


# --- idx ---


@pytest.mark.parametrize("packed", [False, True])
def test_idx_pairs_are_read_packed_or_not_whatever_they_are_called(tmp_path: Path, packed: bool) -> None:
    parts = [idx(IMAGES), idx(LABELS)]
    check(read_idx(*write(tmp_path, *[gzip.compress(part) if packed else part for part in parts])))


def test_paths_may_be_text(tmp_path: Path) -> None:
    images, labels = write(tmp_path, idx(IMAGES), idx(LABELS))
    check(read_idx(str(images), str(labels)))


def test_idx_images_may_have_channels(tmp_path: Path) -> None:
    colour = np.stack([IMAGES] * 3, axis=-1)
    assert read_idx(*write(tmp_path, idx(colour), idx(LABELS))).images.shape == (5, 4, 3, 3)


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
        (idx(IMAGES), idx(LABELS[:4]), "there are 5 images but 4 labels; are they of one set?"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), r"must be \(image, height, width\[, channel\]\), got shape \(0, 4, 3\)"),
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
def test_wrong_idx_files_are_refused_with_what_is_wrong(
    tmp_path: Path, images: bytes, labels: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(*write(tmp_path, images, labels))


# --- npz ---


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.int64), LABELS.astype(">i4")])
def test_npz_files_are_read(tmp_path: Path, labels: np.ndarray) -> None:
    check(read_npz(save(tmp_path, images=IMAGES, labels=labels, more=np.zeros(2))))


def test_npz_images_may_be_real_numbers_and_have_channels(tmp_path: Path) -> None:
    colour = np.stack([IMAGES / 255] * 3, axis=-1)
    read = read_npz(save(tmp_path, images=colour, labels=LABELS))
    assert read.images.dtype == np.float32
    np.testing.assert_allclose(read.images, colour, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "must hold arrays images and labels, it has images"),
        ({"x": IMAGES, "y": LABELS}, "must hold arrays images and labels, it has x, y"),
        ({"images": IMAGES, "labels": LABELS[:3]}, "there are 5 images but 3 labels"),
        ({"images": IMAGES[0], "labels": LABELS}, r"got shape \(4, 3\)"),
        ({"images": IMAGES, "labels": LABELS[:, None]}, r"row of whole numbers from 0, got uint8 \(5, 1\)"),
        ({"images": IMAGES, "labels": LABELS / 2}, "row of whole numbers from 0, got float64"),
        ({"images": IMAGES, "labels": -LABELS.astype(int)}, "row of whole numbers from 0, got int64"),
        ({"images": IMAGES.astype(int), "labels": LABELS}, "bytes, or real numbers from 0 to 1, got int64 from"),
        ({"images": IMAGES.astype(float), "labels": LABELS}, "bytes, or real numbers from 0 to 1, got float64 from"),
        ({"images": np.full((5, 2, 2), np.nan), "labels": LABELS}, "got float64 from nan"),
    ],
)
def test_wrong_arrays_are_refused_with_what_is_wrong(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_npz(save(tmp_path, **arrays))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None, 3, 4, 5], dtype=object)
    with pytest.raises(DataError, match="not a whole npz file of plain numbers: Object arrays cannot be loaded"):
        read_npz(save(tmp_path, images=objects, labels=LABELS))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04]."])
def test_what_is_no_npz_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(DataError, match="is not a whole npz file: it may be of another kind, or cut off"):
        read_npz(tmp_path / "set.npz")


def test_cut_and_damaged_npz_files_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="is not a whole npz file"):
        read_npz(path)
    place = content.index(IMAGES.tobytes())
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"Bad CRC-32 for file 'images\.npy'"):
        read_npz(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nothing\.npz"):
        read_npz(tmp_path / "nothing.npz")
    with pytest.raises(DataError, match=r"there is no file .*a-idx3"):
        read_idx(tmp_path / "a-idx3", tmp_path / "b-idx1")
    with pytest.raises(DataError, match=r"cannot be read: .*directory"):
        read_npz(tmp_path)


def test_the_first_rows_can_be_taken(tmp_path: Path) -> None:
    read = read_npz(save(tmp_path, images=IMAGES, labels=LABELS))
    assert len(read) == len(read.first(None)) == len(read.first(99)) == 5
    assert read.first(2).labels.tolist() == [3, 1]
    assert read.first(2).images.shape == (2, 4, 3, 1)


# --- real files ---


@pytest.mark.skipif(not (REAL_DATA / "mnist").is_dir(), reason="the folder with MNIST is not here")
def test_mnist_is_read() -> None:
    start = REAL_DATA / "mnist" / "t10k"
    read = read_idx(f"{start}-images-idx3-ubyte.gz", f"{start}-labels-idx1-ubyte.gz")
    assert read.images.shape == (10000, 28, 28, 1)
    assert np.bincount(read.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.skipif(not (REAL_DATA / "cifar10").is_dir(), reason="the folder with CIFAR-10 is not here")
def test_cifar_is_read() -> None:
    read = read_npz(REAL_DATA / "cifar10" / "cifar10_test5k.npz")
    assert read.images.shape == (5000, 32, 32, 3)
    assert np.bincount(read.labels).tolist() == [488, 505, 512, 497, 507, 488, 491, 495, 504, 513]
    np.testing.assert_allclose(read.images.mean(axis=(0, 1, 2)), [0.4914, 0.4822, 0.4465], atol=0.01)
