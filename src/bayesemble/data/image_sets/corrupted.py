"""Corrupted images as they are published: CIFAR-10-C and CIFAR-100-C (arrays), ImageNet-C (folders of pictures).

    table = be.metrics.published_corruption_table(predict, image_sets.cifar_c("CIFAR-10-C"))
    be.metrics.mean_corruption_error(table.errors, baseline.errors)

Reference: Hendrycks & Dietterich (2019), "Benchmarking neural network robustness to common corruptions and
perturbations".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError
from bayesemble.data.corruptions import CORRUPTIONS
from bayesemble.data.image_sets.picture_folder import PictureFolder, Pictures

SEVERITIES = (1, 2, 3, 4, 5)


class CorruptedPart(NamedTuple):
    """Images of one corruption and severity."""

    corruption: str
    severity: int
    images: Any
    """Bytes `(image, height, width, 3)`: an array, or what gives arrays when slices of it are taken."""
    targets: npt.NDArray[np.int64]


def cifar_c(folder: str | Path, corruptions: tuple[str, ...] | None = None) -> Iterator[CorruptedPart]:
    """Parts of CIFAR-10-C or CIFAR-100-C: `labels.npy`, and an array for each corruption with all severities in a row.

    Arrays stay on disk until they are looked at. Without a choice, these are the 15 corruptions of the benchmark; the
    four extra ones are read where they are asked for by name.
    """
    folder = Path(folder)
    labels = _array(folder / "labels.npy")
    for name in corruptions or _found(folder, ".npy"):
        images = _array(folder / f"{name}.npy")
        count = len(images) // len(SEVERITIES)
        if images.ndim != 4 or images.dtype != np.uint8 or len(images) % len(SEVERITIES) or len(labels) < count:
            raise DataError(
                f"{folder / name}.npy must hold bytes (image, height, width, 3), {len(SEVERITIES)} severities in a row "
                f"with a label for each image; got {images.dtype} of {images.shape} and {len(labels)} labels"
            )
        for severity in SEVERITIES:
            rows = slice((severity - 1) * count, severity * count)
            targets = labels[rows] if len(labels) == len(images) else labels[:count]
            yield CorruptedPart(name, severity, images[rows], np.asarray(targets, dtype=np.int64))


def imagenet_c(
    folder: str | Path, classes: list[str], size: int = 224, corruptions: tuple[str, ...] | None = None
) -> Iterator[CorruptedPart]:
    """Parts of ImageNet-C: `<corruption>/<severity>/<class>/*.JPEG`, also inside `noise`, `blur`, `weather`, `digital`.

    Args:
        folder: Where the archives were unpacked.
        classes: Names of the classes in the order of the network's outputs, as `PictureFolder.classes` has them.
        size: Height and width of what comes out; published pictures have 224.
        corruptions: Names, if not all 15 of the benchmark that are there.
    """
    folder = Path(folder)
    for name in corruptions or _found(folder, ""):
        place = next((path for path in (folder / name, *sorted(folder.glob(f"*/{name}"))) if path.is_dir()), None)
        if place is None:
            raise DataError(f"{folder} has no folder {name}")
        for severity in SEVERITIES:
            if not (place / str(severity)).is_dir():
                raise DataError(f"{place} has no folder {severity}: severities 1 to 5 are needed")
            pictures = PictureFolder(place / str(severity), size, classes)
            yield CorruptedPart(name, severity, Pictures(pictures), pictures.targets)


def _found(folder: Path, ending: str) -> list[str]:
    """The corruptions of the benchmark that a folder has, in their customary order."""
    found = [name for name in CORRUPTIONS if (folder / f"{name}{ending}").exists() or any(folder.glob(f"*/{name}"))]
    if not found:
        raise DataError(f"{folder} has none of the corruptions {', '.join(CORRUPTIONS)}")
    return found


def _array(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as an array: {error}") from error
    return array
