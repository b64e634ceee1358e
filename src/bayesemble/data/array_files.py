"""Arrays from files: NPZ, idx files (MNIST), CIFAR, MAT files (SVHN), and folders of pictures by class.

Whatever the file, what comes back is named x_train, y_train, x_test and y_test, or x and y if it has no test part. Only
plain arrays are read, nothing that is executable. A further kind of file is a row of `READERS`.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError
from bayesemble.core.lazy import import_extra
from bayesemble.data.image_sets.cifar import cifar_files, is_cifar, read_cifar, read_cifar_inputs
from bayesemble.data.table_files import listed

Array = npt.NDArray[Any]

_NAMES = (("x_train", "y_train", "x_test", "y_test"), ("x", "y"), ("images", "labels"))
_INPUTS = ("x_test", "x", "images", "x_train")  # the first of them that is there
_OURS = {"images": "x", "labels": "y"}
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_MAT_FILES = "*_32x32.mat"
_GZIP_MAGIC = b"\x1f\x8b"
_IDX_UNSIGNED_BYTES = 8  # the only type of number that image sets use


class Reader(NamedTuple):
    """How one kind of file or folder is read."""

    fits: Callable[[Path], bool]
    """Whether a path is of this kind."""
    arrays: Callable[[Path], dict[str, Array]]
    """All inputs and targets."""
    inputs: Callable[[Path], Array]
    """Inputs alone: those of the test part if there is one, else all."""


def find_reader(path: Path) -> Reader | None:
    """The first reader whose kind a path is of; None for a file of another kind, such as a table."""
    return next((reader for reader in READERS.values() if reader.fits(path)), None)


def files_of(path: Path) -> list[Path]:
    """The files that a set is read from: the one it is, or those of a folder that readers look at."""
    if not path.is_dir():
        return [path]
    cifar = [file for part in cifar_files(path).values() for file in part]
    pictures = [file for one in (path, *_subfolders(path)) for file in _pictures(one)]
    return sorted({*cifar, *pictures, *path.glob("*idx*ubyte*"), *path.glob(_MAT_FILES)})


# --- NPZ ---


def read_npz(path: Path, choose: Callable[[list[str]], Iterable[str]]) -> dict[str, Array]:
    """The arrays of an NPZ file whose names are chosen from all of them."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in choose(archive.files)}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays: {error}; it may be cut off or of another kind"
        ) from error


def _read_npz_arrays(path: Path) -> dict[str, Array]:
    def choose(names: list[str]) -> tuple[str, ...]:
        for wanted in _NAMES:
            if set(wanted) <= set(names):
                return wanted
        needed = ", or ".join(" and ".join(wanted) for wanted in _NAMES)
        raise DataError(f"{path} must hold arrays {needed}; it has {listed(names)}")

    return {_OURS.get(name, name): array for name, array in read_npz(path, choose).items()}


def _read_npz_inputs(path: Path) -> Array:
    def choose(names: list[str]) -> list[str]:
        if found := [name for name in _INPUTS if name in names]:
            return found[:1]
        raise DataError(f"{path} must hold one of {', '.join(_INPUTS)}; it has {listed(names)}")

    (inputs,) = read_npz(path, choose).values()
    return inputs


# --- idx ---


def _has_idx(folder: Path) -> bool:
    return any(_find(folder, part, what) for part in ("train", "t10k") for what in ("images", "labels"))


def _read_idx_folder(folder: Path) -> dict[str, Array]:
    arrays = {}
    for part, suffix in (("train", "_train"), ("t10k", "_test")):
        if _find(folder, part, "images") or _find(folder, part, "labels"):
            arrays["x" + suffix], arrays["y" + suffix] = _read_idx_part(folder, part)
    return arrays if len(arrays) == 4 else {name.partition("_")[0]: array for name, array in arrays.items()}


def _read_idx_inputs(folder: Path) -> Array:
    return _read_idx_part(folder, "t10k" if _find(folder, "t10k", "images") else "train")[0]


def _read_idx_part(folder: Path, part: str) -> tuple[Array, Array]:
    images, labels = _find(folder, part, "images"), _find(folder, part, "labels")
    if images is None or labels is None:
        raise DataError(f"{folder} has only one of the images and the labels of {part}; both are needed")
    return _read_idx(images, (3, 4)), _read_idx(labels, (1,))


def _find(folder: Path, part: str, what: str) -> Path | None:
    return next(iter(sorted(folder.glob(f"{part}-{what}*idx*ubyte*"))), None)


def _read_idx(path: Path, axes: tuple[int, ...]) -> Array:
    """The array of one idx file: two zero bytes, type, number of axes, their sizes (big-endian), then the numbers.

    Reference: the format as described with the MNIST database, LeCun, Cortes & Burges (1998).
    """
    content = _read_bytes(path)
    if len(content) < 4:
        raise DataError(f"{path} is cut off: an idx file starts with 4 bytes that describe it, it has {len(content)}")
    if content[:3] != bytes([0, 0, _IDX_UNSIGNED_BYTES]) or content[3] not in axes:
        wanted = " or ".join(f"00 00 08 {count:02x}" for count in axes)
        raise DataError(
            f"{path} is not the idx file that was needed: it starts with {content[:4].hex(' ')} instead of {wanted} "
            "(images have 3 axes or 4, labels 1); are images and labels mixed up?"
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is cut off: its first {start} bytes describe it, but it has only {len(content)}")
    shape = tuple(int.from_bytes(content[start_of : start_of + 4], "big") for start_of in range(4, start, 4))
    expected, found = math.prod(shape), len(content) - start
    if found != expected:
        state = "is cut off" if found < expected else "holds more than it says"
        raise DataError(f"{path} {state}: shape {shape} needs {expected} bytes, it has {found}; get the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is packed; what counts is how it starts, not what it is called."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == _GZIP_MAGIC else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; it may be cut off or damaged, get it again") from None


# --- MAT ---


def _has_mat(path: Path) -> bool:
    return path.suffix.lower() == ".mat" if path.is_file() else path.is_dir() and any(path.glob(_MAT_FILES))


def _read_mat_arrays(path: Path) -> dict[str, Array]:
    if path.is_file():
        return dict(zip(("x", "y"), _read_mat(path), strict=True))
    parts = {part: path / f"{part}_32x32.mat" for part in ("train", "test")}
    missing = [file.name for file in parts.values() if not file.is_file()]
    if missing:
        raise DataError(f"{path} has no {' and no '.join(missing)}; both are needed, or the path of a single file")
    return {
        f"{name}_{part}": array
        for part, file in parts.items()
        for name, array in zip("xy", _read_mat(file), strict=True)
    }


def _read_mat_inputs(path: Path) -> Array:
    test = path / "test_32x32.mat"
    return _read_mat(path if path.is_file() else test if test.is_file() else next(iter(sorted(path.glob(_MAT_FILES)))))[
        0
    ]


def _read_mat(path: Path) -> tuple[Array, Array]:
    """Images `(image, height, width, channel)` and labels of a file as SVHN has it: X has the images last, 10 means 0.

    Reference: Netzer et al. (2011), "Reading digits in natural images with unsupervised feature learning".
    """
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file makes the parser fail in any way
        raise DataError(
            f"{path} cannot be read as a MAT file of version 5 to 7: {error}; it may be cut off or of another kind"
        ) from error
    images, labels = found.get("X"), found.get("y")
    if images is None or labels is None:
        raise DataError(f"{path} must hold X (height, width, channel, image) and y, as the cropped digits of SVHN have")
    if images.ndim != 4 or images.dtype != np.uint8 or labels.size != images.shape[3] or labels.dtype.kind not in "uif":
        raise DataError(
            f"{path} must hold X (height, width, channel, image) in bytes and a label for each image, got "
            f"{images.dtype} of shape {images.shape} and {labels.dtype} of shape {labels.shape}"
        )
    numbers = labels.reshape(-1).astype(np.int64)
    return np.ascontiguousarray(np.moveaxis(images, 3, 0)), np.where(numbers == 10, 0, numbers)


# --- pictures ---


def _read_image_folder(folder: Path) -> dict[str, Array]:
    files = {path: _pictures(path) for path in _subfolders(folder)}
    if len(files) < 2:
        raise DataError(
            f"{folder} has {len(files)} subfolders; idx files were needed, or pictures in one subfolder for each class"
        )
    for path, found in files.items():
        if not found:
            raise DataError(f"{path} holds no pictures ({', '.join(_ENDINGS)}); each class needs some")
    names = [path.name for path, found in files.items() for _ in found]
    return {"x": read_pictures([file for found in files.values() for file in found]), "y": np.array(names)}


def _read_image_inputs(folder: Path) -> Array:
    files = _pictures(folder) or [file for path in _subfolders(folder) for file in _pictures(path)]
    if not files:
        raise DataError(f"{folder} holds neither idx files nor pictures ({', '.join(_ENDINGS)})")
    return read_pictures(files)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)


def read_pictures(files: list[Path]) -> npt.NDArray[np.uint8]:
    """Pictures of one size `(image, height, width[, channel])`, in gray if the first is, else in three colours."""
    pillow = import_extra("PIL.Image", "pictures need Pillow", "'bayesemble[images]', or save arrays as NPZ")
    arrays: list[Array] = []
    mode = ""
    for file in files:
        try:
            with pillow.open(file) as picture:
                mode = mode or ("L" if picture.mode in ("1", "L") else "RGB")
                arrays.append(np.asarray(picture.convert(mode), dtype=np.uint8))
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise DataError(f"{file} cannot be read as a picture: {error}") from error
        if arrays[-1].shape != arrays[0].shape:
            raise DataError(
                f"pictures must be of one size: {files[0]} is {arrays[0].shape[:2]}, {file} is {arrays[-1].shape[:2]} "
                "(height, width); resize them first"
            )
    return np.stack(arrays)


READERS = {
    "npz": Reader(lambda path: path.suffix.lower() == ".npz" and path.is_file(), _read_npz_arrays, _read_npz_inputs),
    "idx": Reader(lambda path: path.is_dir() and _has_idx(path), _read_idx_folder, _read_idx_inputs),
    "cifar": Reader(is_cifar, read_cifar, read_cifar_inputs),
    "mat": Reader(_has_mat, _read_mat_arrays, _read_mat_inputs),
    "pictures": Reader(Path.is_dir, _read_image_folder, _read_image_inputs),
}
"""Kinds of files and folders; a path is read by the first that it fits."""
