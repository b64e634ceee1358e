"""Labelled images for the benchmarks, from a folder of data sets: fashion-mnist (idx files) and cifar10 (npz files)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayesemble.data.array_files import find_reader


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images `(image, height, width, channel)` in [0, 1], and their classes."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, num: int | None) -> "LabelledImages":
        """The first rows, or all (None)."""
        return LabelledImages(self.images[:num], self.labels[:num])


def load_images(folder: Path, name: str) -> tuple[LabelledImages, LabelledImages]:
    """Training and test part of a data set."""
    if name == "cifar10":
        parts = [read(folder / name / file) for file in ("cifar10_train10k.npz", "cifar10_test5k.npz")]
        return labelled(parts[0]["x"], parts[0]["y"]), labelled(parts[1]["x"], parts[1]["y"])
    found = read(folder / name)
    return labelled(found["x_train"], found["y_train"]), labelled(found["x_test"], found["y_test"])


def read(path: Path) -> dict[str, np.ndarray]:
    reader = find_reader(path)
    assert reader is not None, path
    return reader.arrays(path)


def labelled(images: np.ndarray, labels: np.ndarray) -> LabelledImages:
    images = images[..., None] if images.ndim == 3 else images
    return LabelledImages(images.astype(np.float32) / np.float32(255), labels.astype(np.int64))
