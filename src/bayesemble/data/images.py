"""Labelled images from files: idx pairs as MNIST has them, and npz files. Only plain arrays are read."""

import gzip
import math
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError

Array = npt.NDArray[Any]

GZIP_MAGIC = b"\x1f\x8b"
IDX_BYTES = 8  # the only type of number that image sets use: unsigned bytes


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images and their classes, row by row."""

    images: npt.NDArray[np.float32]
    """`(image, height, width, channel)` in [0, 1]; gray images have one channel."""
    labels: npt.NDArray[np.int64]
    """`(image,)`, from 0."""

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, num: int | None) -> "LabelledImages":
        """The first so many rows, or all (None)."""
        return LabelledImages(self.images[:num], self.labels[:num])


def read_idx(images: str | Path, labels: str | Path) -> LabelledImages:
    """Read a pair of idx files of unsigned bytes, packed with gzip or not: MNIST, Fashion-MNIST and their kin.

    Reference: the format as described with the MNIST database, LeCun, Cortes & Burges (1998).
    """
    return _labelled(_read_idx_array(Path(images), (3, 4)), _read_idx_array(Path(labels), (1,)), f"{images}, {labels}")


def read_npz(path: str | Path) -> LabelledImages:
    """Read an npz file with arrays `images` (bytes, or real numbers in [0, 1]) and `labels`.

    Images are `(image, height, width)` or `(image, height, width, channel)`.
    """
    arrays = _read_npz_arrays(Path(path), ("images", "labels"))
    return _labelled(arrays["images"], arrays["labels"], str(path))


def _read_idx_array(path: Path, axes: tuple[int, ...]) -> Array:
    """The array of one idx file: two zero bytes, type, number of axes, their sizes (big-endian), then the numbers."""
    content = _read_bytes(path)
    if len(content) < 4:
        raise DataError(f"{path} is cut off: an idx file starts with 4 bytes that describe it, it has {len(content)}")
    if content[:3] != bytes([0, 0, IDX_BYTES]) or content[3] not in axes:
        wanted = " or ".join(f"00 00 08 {count:02x}" for count in axes)
        raise DataError(
            f"{path} is not the idx file that was needed: it starts with {content[:4].hex(' ')} instead of {wanted} "
            "(images have 3 axes or 4, labels 1); are images and labels mixed up?"
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is cut off: its first {start} bytes describe it, but it has only {len(content)}")
    shape = tuple(int.from_bytes(content[place : place + 4], "big") for place in range(4, start, 4))
    expected, found = math.prod(shape), len(content) - start
    if found != expected:
        state = "is cut off" if found < expected else "holds more than it says"
        raise DataError(f"{path} {state}: shape {shape} needs {expected} bytes, it has {found}; get the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is packed; what counts is how it starts, not what it is called."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == GZIP_MAGIC else content
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; it may be cut off or damaged, get it again") from None


def _read_npz_arrays(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    content = _read_bytes(path)
    if not zipfile.is_zipfile(BytesIO(content)):
        raise DataError(f"{path} is not a whole npz file: it may be of another kind, or cut off")
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            found = list(archive.files)
            arrays = {name: archive[name] for name in names if name in found}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole npz file of plain numbers: {error}") from None
    if len(arrays) < len(names):
        raise DataError(f"{path} must hold arrays {' and '.join(names)}, it has {', '.join(found) or 'none'}")
    return arrays


def _labelled(images: Array, labels: Array, source: str) -> LabelledImages:
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(f"images of {source} must be (image, height, width[, channel]), got shape {images.shape}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        raise DataError(f"labels of {source} must be a row of whole numbers from 0, got {labels.dtype} {labels.shape}")
    if len(images) != len(labels):
        raise DataError(f"{source}: there are {len(images)} images but {len(labels)} labels; are they of one set?")
    images = images[..., None] if images.ndim == 3 else images
    return LabelledImages(_unit_range(images, source), labels.astype(np.int64))


def _unit_range(images: Array, source: str) -> npt.NDArray[np.float32]:
    if images.dtype == np.uint8:
        return images.astype(np.float32) / np.float32(255)
    if images.dtype.kind != "f" or not (images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"images of {source} must be bytes, or real numbers from 0 to 1, "
            f"got {images.dtype} from {images.min()} to {images.max()}"
        )
    return images.astype(np.float32)
