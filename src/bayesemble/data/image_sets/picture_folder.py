"""Pictures in one subfolder for each class, as ImageNet has them, read when they are needed.

loader = DataLoader(PictureFolder("imagenet/train", augment=True), batch_size=256, shuffle=True, num_workers=8)
be.fit(task, be.EMP(), loader, epochs=100)
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.lazy import import_extra

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by colour
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

_SHORTER_SIDE = 256 / 224  # of a picture before its middle is cut out, in sizes of what is cut out
_AREA, _ASPECT, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


class PictureFolder(Dataset[tuple[Tensor, int]]):
    """Pictures `(3, size, size)`, standardised by colour, and the numbers of their classes.

    The middle is cut out of each, after its shorter side has become 256/224 of the size. With `augment`, a part of
    random area (8 to 100 per cent) and aspect (3/4 to 4/3) is, and every other is mirrored, by torch's random numbers.

    Args:
        folder: With a subfolder for each class; classes are numbered in the order of their names.
        size: Height and width of what comes out.
        classes: Their names, if they are to be those of another folder.
        augment: Whether pictures are cut at random, for training.
        mean: What is subtracted of the colours in [0, 1].
        std: What they are divided by then.

    Reference: Szegedy et al. (2015) for the random parts.
    """

    def __init__(
        self,
        folder: str | Path,
        size: int = 224,
        classes: list[str] | None = None,
        augment: bool = False,
        mean: tuple[float, float, float] = MEAN,
        std: tuple[float, float, float] = STD,
    ) -> None:
        self.folder, self.size, self.augment = Path(folder), size, augment
        if size < 1:
            raise SettingError(f"size is a number of pixels from 1, got {size}")
        found = sorted(path.name for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.classes = found if classes is None else classes
        strange = [name for name in found if name not in self.classes]
        if strange:
            raise DataError(f"{self.folder} has a class {strange[0]!r} that is not among the {len(self.classes)} known")
        self.files = [
            (file, number)
            for number, name in enumerate(self.classes)
            if name in found
            for file in sorted((self.folder / name).iterdir())
            if file.suffix.lower() in ENDINGS
        ]
        if not self.files:
            raise DataError(f"{self.folder} has no pictures ({', '.join(ENDINGS)}) in a subfolder for each class")
        self._shift, self._scale = (torch.tensor(values).reshape(3, 1, 1) for values in (mean, std))
        self._pillow = import_extra("PIL.Image", "pictures need Pillow", "'bayesemble[images]'")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A standardised picture and its class."""
        pixels = torch.from_numpy(self.pixels(index)).permute(2, 0, 1).float() / 255
        return (pixels - self._shift) / self._scale, self.files[index][1]

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """The classes of all pictures."""
        return np.array([number for _, number in self.files], dtype=np.int64)

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """The part that is cut out of one picture, `(size, size, 3)` in bytes."""
        path, _ = self.files[index]
        try:
            with self._pillow.open(path) as picture:
                whole = picture.convert("RGB")
        except (OSError, ValueError, SyntaxError, self._pillow.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as a picture: {error}") from error
        box, mirrored = self._random_part(*whole.size) if self.augment else (self._middle(*whole.size), False)
        small = whole.resize((self.size, self.size), self._pillow.Resampling.BILINEAR, box=box)
        pixels = np.asarray(small, dtype=np.uint8)
        return pixels[:, ::-1].copy() if mirrored else pixels.copy()

    def _middle(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The square in the middle that has 224/256 of the shorter side; all of a picture that is as large already."""
        whole = width == height == self.size
        side = min(width, height) / (1 if whole else _SHORTER_SIDE)
        left, top = (width - side) / 2, (height - side) / 2
        return left, top, left + side, top + side

    def _random_part(self, width: int, height: int) -> tuple[tuple[float, float, float, float], bool]:
        mirrored = bool(torch.rand(()) < 0.5)
        for _ in range(_TRIES):
            share, aspect, left, top = torch.rand(4).tolist()
            area = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * share)
            ratio = math.exp(math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * aspect)
            wide, tall = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if wide <= width and tall <= height:
                left, top = left * (width - wide), top * (height - tall)
                return (left, top, left + wide, top + tall), mirrored
        return self._middle(width, height), mirrored


class Pictures:
    """The pixels of a folder as if they were one array `(image, size, size, 3)`, read as slices are taken."""

    def __init__(self, folder: PictureFolder) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Read these pictures."""
        return np.stack([self.folder.pixels(index) for index in range(len(self))[rows]])
