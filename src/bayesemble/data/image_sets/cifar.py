"""CIFAR-10 and CIFAR-100 from the folders that they are published in, in the binary or the Python form.

    cifar-10-batches-bin/    data_batch_1.bin ... data_batch_5.bin, test_batch.bin       a label, 3072 pixels
    cifar-100-binary/        train.bin, test.bin                                         coarse and fine label, pixels
    cifar-10-batches-py/     data_batch_1 ... data_batch_5, test_batch                   pickles
    cifar-100-python/        train, test                                                 pickles

Pickles are read as data alone: see `plain_pickle.py`.

Reference: Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError
from bayesemble.data.image_sets.plain_pickle import read_plain_pickle

Array = npt.NDArray[Any]

_PIXELS = 3 * 32 * 32
_TRAIN = {"data_batch_*": "test_batch", "train": "test"}  # names without ending: CIFAR-10, CIFAR-100
_LABELS = (b"labels", b"fine_labels")


def is_cifar(folder: Path) -> bool:
    """Whether a folder holds batches of CIFAR."""
    return folder.is_dir() and bool(cifar_files(folder))


def read_cifar(folder: str | Path) -> dict[str, Array]:
    """Images `(image, 32, 32, 3)` in bytes and labels (the fine ones), as x_train, y_train, x_test and y_test."""
    folder = Path(folder)
    files = cifar_files(folder)
    if not files:
        raise DataError(f"{folder} holds no batches of CIFAR: data_batch_1 ... and test_batch, or train and test")
    arrays = {}
    for part, paths in files.items():
        found = [_read(path, fine=path.stem in ("train", "test")) for path in paths]
        arrays[f"x_{part}"] = np.concatenate([images for images, _ in found])
        arrays[f"y_{part}"] = np.concatenate([labels for _, labels in found])
    return arrays


def read_cifar_inputs(folder: Path) -> Array:
    """Images of the test part alone."""
    (path,) = cifar_files(folder)["test"]
    return _read(path, fine=path.stem == "test")[0]


def cifar_files(folder: Path) -> dict[str, list[Path]]:
    """The files of the training and the test part; empty if this is no such folder."""
    for train, test in _TRAIN.items():
        for ending in (".bin", ""):
            batches = sorted(path for path in folder.glob(train + ending) if path.is_file() and path.suffix == ending)
            if batches and (folder / (test + ending)).is_file():
                return {"train": batches, "test": [folder / (test + ending)]}
    return {}


def _read(path: Path, fine: bool) -> tuple[Array, Array]:
    return _read_binary(path, fine) if path.suffix == ".bin" else _read_python(path)


def _read_binary(path: Path, fine: bool) -> tuple[Array, Array]:
    """Rows of one label (or two, of which the second is the fine one) and the pixels, colour by colour."""
    width = _PIXELS + 1 + fine
    try:
        content = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not len(content) or len(content) % width:
        raise DataError(f"{path} is cut off: rows have {width} bytes, and {len(content)} are no multiple of it")
    rows = content.reshape(-1, width)
    return _images(rows[:, -_PIXELS:]), rows[:, int(fine)].astype(np.int64)


def _read_python(path: Path) -> tuple[Array, Array]:
    found = read_plain_pickle(path)
    found = {key.encode() if isinstance(key, str) else key: item for key, item in found.items()}
    labels = next((found[name] for name in _LABELS if name in found), None)
    pixels = found.get(b"data")
    if labels is None or not isinstance(pixels, np.ndarray):
        raise DataError(f"{path} is no batch of CIFAR: it needs data, and labels or fine_labels")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        raise DataError(
            f"{path} must hold bytes of shape ({len(labels)}, {_PIXELS}), got {pixels.dtype} of {pixels.shape}"
        )
    return _images(pixels), np.asarray(labels, dtype=np.int64)


def _images(pixels: Array) -> Array:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
