"""What arrays from files mean: rows of numbers or images, and targets that are classes or real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError

Array = npt.NDArray[Any]

MOST_CLASSES = 1000
_CHANNELS = (1, 3, 4)


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
