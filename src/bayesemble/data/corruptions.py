"""Common corruptions of images at five severities, and rotations: familiar images as a bad day shows them.

Images are `(image, height, width, channel)`, real numbers in [0, 1], on the way in and out; every function takes
`(images, severity, generator)`. Each image has noise, angles and textures of its own.

Strengths are the published ones, of which there are two tables: that of CIFAR-10-C (made for 32 x 32) serves images
whose shorter side has up to 64 pixels, that of ImageNet-C (made for 224 x 224) larger ones. Whatever is a length in
pixels (radii, shifts, grains) is multiplied by shorter side / 32, or / 224, so that it stays the same share of the
image; at these two sizes it is what was published. Strengths without a length (noise, quality, contrast) stay as they
are. Images of very few pixels feel blurs little and pixelation much.

On average, corrupted images lie farther from the clean ones with every severity. Single published steps need not, at
some sizes: those of glass, motion, snow, frost, fog and pixelation.

The functions are written from the definitions and share no code or random numbers with the published ones: expect
like difficulty, not equal images. What differs on purpose is said at each function; results are comparable among
themselves, and only roughly with published tables.

Reference: Hendrycks & Dietterich (2019), "Benchmarking neural network robustness to common corruptions and
perturbations".
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import DataError, SettingError
from bayesemble.data import image_filters

Images = npt.NDArray[Any]
Corruption = Callable[[Images, int, np.random.Generator], Images]

LARGEST_SMALL_SIDE = 64
SMALL_SIDE, LARGE_SIDE = 32, 224
ROTATIONS = tuple(range(15, 181, 15))
"""Degrees of the rotated test sets of Ovadia et al. (2019), "Can you trust your model's uncertainty?"."""

# Strengths by severity 1 to 5; what they mean is said in the functions of these names.
_SMALL: dict[str, list[Any]] = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "defocus_blur": [0.3, 0.4, 0.5, 1.0, 1.5],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": [(1.05, 0.01), (1.10, 0.01), (1.15, 0.01), (1.20, 0.01), (1.25, 0.01)],
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.10, 0.15, 0.20, 0.30],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "elastic_transform": [(0.01, 0.006), (0.02, 0.012), (0.03, 0.018), (0.04, 0.024), (0.05, 0.03)],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
}
_LARGE: dict[str, list[Any]] = {
    "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],
    "shot_noise": [60, 25, 12, 5, 3],
    "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],
    "defocus_blur": [3, 4, 6, 8, 10],
    "glass_blur": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    "zoom_blur": [(1.10, 0.01), (1.15, 0.01), (1.20, 0.02), (1.24, 0.02), (1.30, 0.03)],
    "snow": [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    "frost": [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
    "fog": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
    "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
    "elastic_transform": _SMALL["elastic_transform"],
    "pixelate": [0.6, 0.5, 0.4, 0.3, 0.25],
    "jpeg_compression": [25, 18, 15, 10, 7],
}


def corrupt(images: Images, name: str, severity: int, generator: np.random.Generator) -> Images:
    """Corrupt images in one of the ways of `CORRUPTIONS`, at severity 1 (mild) to 5."""
    if name not in CORRUPTIONS:
        raise SettingError(f"unknown corruption {name!r}; choose one of {', '.join(CORRUPTIONS)}")
    return CORRUPTIONS[name](images, severity, generator)


def rotated(images: Images, degrees: float) -> Images:
    """Turn images counter-clockwise around their middle; what comes in from outside is black."""
    from scipy.ndimage import rotate

    _check(images)
    return _bounded(rotate(images, degrees, axes=(1, 2), reshape=False, order=1), images)


def turned_and_flipped(images: Images, generator: np.random.Generator, degrees: float = 90.0) -> Images:
    """Turn each image by an angle of its own, uniform between -degrees and degrees, and mirror every other by chance.

    On handwritten digits this is RotatedMNIST. An image is mirrored left to right with probability 1/2, after its turn.
    """
    _check(images)
    angles = generator.uniform(-degrees, degrees, len(images))
    mirrored = generator.random(len(images)) < 0.5
    turned = np.concatenate([rotated(image[None], float(angle)) for image, angle in zip(images, angles, strict=True)])
    return np.where(mirrored[:, None, None, None], turned[:, :, ::-1], turned)


# --- noise ---


def gaussian_noise(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Normal noise of the given standard deviation on every value, as in low light."""
    _, std = _strength("gaussian_noise", images, severity)
    return _bounded(images + generator.normal(0.0, std, images.shape), images)


def shot_noise(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Noise of counting light: Poisson counts, of which white has the given number on average."""
    _, photons = _strength("shot_noise", images, severity)
    return _bounded(generator.poisson(images * photons) / photons, images)


def impulse_noise(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Salt and pepper: the given share of values becomes 0 or 1, as from broken bits."""
    _, share = _strength("impulse_noise", images, severity)
    draws = generator.uniform(size=images.shape)
    return _bounded(np.where(draws < share, draws < share / 2, images), images)


# --- blur ---


def defocus_blur(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Every point becomes a disk of the given radius, as out of focus."""
    scale, radius = _strength("defocus_blur", images, severity)
    return _bounded(image_filters.defocused(images, scale * radius), images)


def glass_blur(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Frosted glass: soften (standard deviation), swap pixels with near ones (reach, rounds), soften again.

    More softening hides some of the swaps, so the published severity 3 may lie closer to the clean image than 2.
    """
    scale, deviation, reach, rounds = _strength("glass_blur", images, severity)
    soft = image_filters.softened(images, scale * deviation)
    shuffled = image_filters.shuffled_nearby(soft, scale * reach, int(rounds), generator)
    return _bounded(image_filters.softened(shuffled, scale * deviation), images)


def motion_blur(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """The camera moved: every point leaves a fading trail (radius, standard deviation) within 45 degrees of level.

    At 32 pixels the published severities 3 and 4 differ only in where a trail that has long faded is cut off.
    """
    scale, radius, deviation = _strength("motion_blur", images, severity)
    angles = generator.uniform(-45, 45, len(images))
    return _bounded(_trailed(images, angles, scale, radius, deviation), images)


def zoom_blur(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """The camera came closer: the mean of the image and its enlargements from 1 to the given factor, in steps."""
    _, largest, step = _strength("zoom_blur", images, severity)
    factors = 1 + step * np.arange(round((largest - 1) / step) + 1)
    total = images + sum(image_filters.enlarged(images, factor) for factor in factors)
    return _bounded(total / (len(factors) + 1), images)


# --- weather ---


def snow(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Flakes with trails fall over a whitened image.

    A layer of normal noise (mean, standard deviation) is enlarged to flakes (grain), cut off below a threshold and
    trailed downwards (radius, standard deviation); it is added as it is and turned by half. The last strength is
    what is left of the image's own colours. Flakes keep their size in pixels where lengths would shrink.
    """
    scale, mean, std, grain, threshold, radius, deviation, colour = _strength("snow", images, severity)
    noise = generator.normal(mean, std, (*images.shape[:3], 1))
    flakes = image_filters.enlarged(noise, max(1.0, scale) * grain)
    flakes = np.where(flakes < threshold, 0.0, flakes).clip(0, 1)
    flakes = _trailed(flakes, generator.uniform(-135, -45, len(images)), scale, radius, deviation)
    white = np.maximum(images, 1.5 * image_filters.gray(images) + 0.5)
    return _bounded(colour * images + (1 - colour) * white + flakes + flakes[:, ::-1, ::-1], images)


def frost(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Ice crystals over the image: so much of the image plus so much of a frost texture.

    The published corruption lays photographs of frosted windows over the image, which cannot be shipped here. The
    texture is generated instead: the ridges of a plasma fractal, bright veins on dark. As the published steps also
    darken the image, a bright one may come closer to itself from severity 3 to 4.
    """
    _, kept, added = _strength("frost", images, severity)
    ridges = 1 - np.abs(2 * image_filters.plasma(images.shape[:3], 1.7, generator)[..., None] - 1)
    return _bounded(kept * images + added * ridges**4, images)


def fog(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Clouds of the given strength, the whole dimmed to the brightness it had; rougher clouds have a smaller decay."""
    _, strength, decay = _strength("fog", images, severity)
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    clouds = image_filters.plasma(images.shape[:3], decay, generator)[..., None]
    return _bounded((images + strength * clouds) * brightest / (brightest + strength), images)


def brightness(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """More light: so much is added to the value of hue, saturation and value."""
    _, added = _strength("brightness", images, severity)
    value = images.max(axis=-1, keepdims=True)
    lifted = np.minimum(value + added, 1.0)
    coloured = images * (lifted / np.where(value > 0, value, 1.0))
    return _bounded(np.where(value > 0, coloured, lifted), images)


# --- digital ---


def contrast(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Less contrast: distances from the mean of each image and channel shrink to the given share."""
    _, share = _strength("contrast", images, severity)
    means = images.mean(axis=(1, 2), keepdims=True)
    return _bounded(means + share * (images - means), images)


def elastic_transform(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Stretch the image as rubber: three points are moved, with all in between, and then every place a little.

    The points move by up to the first strength along each axis, the places by smooth random shifts whose standard
    deviation is the second; both are shares of the shorter side. These ten numbers are ours: the published ones
    trade large smooth shifts for small rough ones, so that severity 5 may lie closer to the clean image than 1.
    """
    _, affine, shift = _strength("elastic_transform", images, severity)
    side = min(images.shape[1:3])
    return _bounded(image_filters.stretched(images, affine * side, shift * side, 0.04 * side, generator), images)


def pixelate(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Too few pixels: the given share of them along each axis is left, as blocks of their mean."""
    _, share = _strength("pixelate", images, severity)
    return _bounded(image_filters.pixelated(images, 1 / share), images)


def jpeg_compression(images: Images, severity: int, generator: np.random.Generator) -> Images:
    """Through JPEG at the given quality."""
    _, quality = _strength("jpeg_compression", images, severity)
    return _bounded(image_filters.through_jpeg(images, int(quality)), images)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}
"""Every corruption by name, in the customary order: noise, blur, weather, digital."""


def _strength(name: str, images: Images, severity: int) -> tuple[float, ...]:
    """The scale of lengths, and the strengths of a corruption for images of this size."""
    _check(images)
    if severity not in (1, 2, 3, 4, 5):
        raise SettingError(f"severity is a whole number from 1 to 5, got {severity!r}")
    side = min(images.shape[1:3])
    small = side <= LARGEST_SMALL_SIDE
    strengths = (_SMALL if small else _LARGE)[name][severity - 1]
    scale = side / (SMALL_SIDE if small else LARGE_SIDE)
    return (scale, *strengths) if isinstance(strengths, tuple) else (scale, strengths)


def _check(images: Images) -> None:
    if images.ndim != 4 or images.dtype.kind != "f" or 0 in images.shape:
        raise DataError(
            "images must be real numbers (image, height, width, channel), "
            f"got {images.dtype} {images.shape}; divide bytes by 255, and give gray images a channel: images[..., None]"
        )
    if not (images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"images must lie in [0, 1], got {images.min():g}..{images.max():g}; scale them after corrupting"
        )


def _bounded(values: Images, images: Images) -> Images:
    """Values in [0, 1], in the number type of the images they came from."""
    return values.clip(0, 1).astype(images.dtype)


def _trailed(images: Images, degrees: Images, scale: float, radius: float, deviation: float) -> Images:
    """A trail as published: twice the radius long, a point in every pixel; then all lengths scaled."""
    return image_filters.trailed(images, degrees, scale * 2 * radius, scale * deviation, step=min(1.0, scale))
