"""Arrays from files: NPZ, folders of idx files as MNIST has them, and folders with a subfolder of pictures per class.

Whatever the file, what comes back is named x_train, y_train, x_test and y_test, or x and y if it has no test part.
"""

from __future__ import annotations

import importlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError, MissingExtraError
from bayesemble.data.images import read_idx
from bayesemble.data.table_files import listed

Array = npt.NDArray[Any]

_NAMES = (("x_train", "y_train", "x_test", "y_test"), ("x", "y"), ("images", "labels"))
_INPUTS = ("x_test", "x", "images", "x_train")  # of a file that only gives inputs, the first that is there
_OURS = {"images": "x", "labels": "y"}
MOST_CLASSES = 1000
_CHANNELS = (1, 3, 4)
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def read_arrays(path: Path) -> dict[str, Array]:
    """All inputs and targets of an NPZ file or a folder."""
    if path.is_dir():
        return _read_idx_folder(path) if _has_idx(path) else _read_image_folder(path)
    with _Archive(path) as archive:
        for names in _NAMES:
            if set(names) <= set(archive.files):
                return {_OURS.get(name, name): archive[name] for name in names}
        wanted = ", or ".join(" and ".join(names) for names in _NAMES)
        raise DataError(f"{path} must hold arrays {wanted}; it has {listed(archive.files)}")


def read_inputs(path: Path) -> Array:
    """Inputs alone: of the test part if there is one, else all; pictures need no subfolders then."""
    if path.is_dir() and _has_idx(path):
        part = "t10k" if _find(path, "t10k", "images") else "train"
        return _read_idx_part(path, part)[0]
    if path.is_dir():
        files = _pictures(path) or [file for folder in _subfolders(path) for file in _pictures(folder)]
        if not files:
            raise DataError(f"{path} holds neither idx files nor pictures ({', '.join(_ENDINGS)})")
        return read_pictures(files)
    with _Archive(path) as archive:
        for name in _INPUTS:
            if name in archive.files:
                return archive[name]
        raise DataError(f"{path} must hold one of {', '.join(_INPUTS)}; it has {listed(archive.files)}")


class _Archive:
    """An NPZ file whose errors are sentences; nothing that is executable is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Any:
        self.file = self.path.open("rb")
        try:
            self.archive = np.load(self.file, allow_pickle=False)
            self.archive.__enter__()
        except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            self.file.close()
            raise DataError(f"{self.path} is not a whole npz file: {error}") from error
        return self.archive

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.archive.__exit__(kind, error, None)
        self.file.close()
        damaged = isinstance(error, OSError | ValueError | EOFError | zipfile.BadZipFile | zlib.error)
        if damaged and not isinstance(error, DataError):
            raise DataError(f"{self.path} is damaged, or holds more than plain arrays: {error}") from error


# --- idx ---


def _has_idx(folder: Path) -> bool:
    return any(_find(folder, part, what) for part in ("train", "t10k") for what in ("images", "labels"))


def _read_idx_folder(folder: Path) -> dict[str, Array]:
    found = {}
    for part, suffix in (("train", "_train"), ("t10k", "_test")):
        if _find(folder, part, "images") or _find(folder, part, "labels"):
            found["x" + suffix], found["y" + suffix] = _read_idx_part(folder, part)
    return found if len(found) == 4 else {name.partition("_")[0]: array for name, array in found.items()}


def _read_idx_part(folder: Path, part: str) -> tuple[Array, Array]:
    images, labels = _find(folder, part, "images"), _find(folder, part, "labels")
    if images is None or labels is None:
        raise DataError(f"{folder} has only one of the images and the labels of {part}; both are needed")
    both = read_idx(images, labels)
    return both.images, both.labels


def _find(folder: Path, part: str, what: str) -> Path | None:
    return next(iter(sorted(folder.glob(f"{part}-{what}*idx*ubyte*"))), None)


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


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)


def read_pictures(files: list[Path]) -> npt.NDArray[np.uint8]:
    """Pictures of one size `(image, height, width[, channel])`, in gray if the first is, else in three colours."""
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError(
            "pictures need Pillow, which is not here: pip install 'bayesemble[images]', or save arrays as NPZ"
        ) from error
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


# --- what arrays mean ---


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs as a matrix, and what is known of them."""

    rows: npt.NDArray[np.float32]
    one_scale: bool
    """Whether all columns are pixels, to be scaled alike."""
    image_shape: tuple[int, ...] | None


def as_rows(array: Array, source: str) -> Rows:
    """Rows `(row, column)` of a matrix, or of images laid out flat; bytes become numbers from 0 to 1."""
    if array.ndim not in (2, 3, 4) or 0 in array.shape or array.dtype.kind not in "biuf":
        raise DataError(
            f"{source} must be numbers (row, column) or images (row, height, width[, channel]), "
            f"got {array.dtype} of shape {array.shape}"
        )
    rows, shape = flat_images(array) if array.ndim > 2 else (array, None)
    rows = rows.astype(np.float32) / np.float32(255 if array.dtype == np.uint8 else 1)
    if not np.isfinite(rows).all():
        raise DataError(f"{source} holds numbers that are not finite; remove or fill in such rows")
    return Rows(rows, array.ndim > 2 or array.dtype == np.uint8, shape)


def as_targets(array: Array, source: str) -> Array:
    """One target for each row."""
    flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if flat.ndim != 1 or flat.dtype.kind not in "biufU":
        raise DataError(f"{source} must be one target for each row, got {array.dtype} of shape {array.shape}")
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise DataError(f"{source} holds targets that are not finite; remove such rows")
    return flat


def as_classes(
    targets: list[Array], source: str
) -> tuple[Literal["classification", "regression"], int | None, list[Array]]:
    """Classes numbered from 0 in their order, or real numbers as they are."""
    if all(one.dtype.kind == "f" for one in targets):
        return "regression", None, [one.astype(np.float64) for one in targets]
    classes = np.unique(np.concatenate(targets))
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise DataError(
            f"{source}: whole numbers are taken for classes, 2 to {MOST_CLASSES} of them, got {len(classes)}; "
            "save numbers to predict as real ones (float)"
        )
    return "classification", len(classes), [np.searchsorted(classes, one) for one in targets]


def flat_images(images: Array) -> tuple[Array, tuple[int, ...]]:
    """Images `(image, height, width[, channel])`, or with the channels first, as rows; and the shape of one."""
    if images.ndim == 4 and images.shape[1] in _CHANNELS and images.shape[3] not in _CHANNELS:
        images = np.moveaxis(images, 1, 3)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    return images.reshape(len(images), -1), images.shape[1:]
