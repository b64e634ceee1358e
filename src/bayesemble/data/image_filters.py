"""What corruptions of images are made of: blurs, enlargements, shuffles, clouds and JPEG.

Images are `(image, height, width, channel)`; results may leave [0, 1] a little, whoever needs bounds cuts them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import SettingError

Images = npt.NDArray[Any]

LUMA = np.array([0.299, 0.587, 0.114])
"""How much red, green and blue add to the gray that the eye sees, as in JPEG."""


def gray(images: Images) -> Images:
    """One channel: red, green and blue as the eye weighs them, or the mean of any other number of channels."""
    values = images @ LUMA if images.shape[-1] == 3 else images.mean(axis=-1)
    return np.asarray(values[..., None])


# --- blurs ---


def softened(images: Images, deviation: float, beyond: str = "nearest") -> Images:
    """Blur with a Gaussian of this standard deviation in pixels; below an eighth of a pixel nothing happens.

    What lies beyond the edges is what is "nearest", or the opposite edge ("wrap").
    """
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(images, (0, deviation, deviation, 0), mode=beyond))


def defocused(images: Images, radius: float) -> Images:
    """Blur with a disk of this radius in pixels; pixels cut by its edge get their share."""
    rows, columns = radius * np.mgrid[-1:1:33j, -1:1:33j].reshape(2, 1, -1)
    inside = np.hypot(rows, columns) <= radius
    return _convolved(images, _kernels(rows, columns, inside / inside.sum()))


def trailed(images: Images, degrees: Images, length: float, deviation: float, step: float) -> Images:
    """Blur along one direction for each image with half a Gaussian, cut off at a length; counter-clockwise from right.

    Length, deviation and the step between the points of the trail are in pixels.
    """
    distances = np.arange(0, min(length, 5 * deviation) + 1e-9, step)  # by then it has faded
    weights = np.exp(-0.5 * (distances / deviation) ** 2)
    angles = np.deg2rad(degrees)[:, None]
    rows, columns = -distances * np.sin(angles), distances * np.cos(angles)
    return _convolved(images, _kernels(rows, columns, weights / weights.sum()))


def _kernels(rows: Images, columns: Images, weights: Images) -> Images:
    """Draw points `(kernel, point)` that may lie between pixels: each is shared among the four pixels around it."""
    reach = int(np.ceil(max(np.abs(rows).max(), np.abs(columns).max()))) + 1
    kernels = np.zeros((len(rows), 2 * reach + 1, 2 * reach + 1))
    each = np.arange(len(rows))[:, None]
    for row in (np.floor(rows), np.floor(rows) + 1):
        for column in (np.floor(columns), np.floor(columns) + 1):
            share = weights * (1 - np.abs(rows - row)) * (1 - np.abs(columns - column))
            np.add.at(kernels, (each, row.astype(int) + reach, column.astype(int) + reach), share)
    return kernels


def _convolved(images: Images, kernels: Images) -> Images:
    """Convolve with one kernel `(1, size, size)`, or one for each image; edges go on as they are."""
    from scipy.signal import fftconvolve

    reach = kernels.shape[1] // 2
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    return np.asarray(fftconvolve(padded, kernels[..., None], mode="valid", axes=(1, 2)))


# --- where pixels come from ---


def enlarged(images: Images, factor: float) -> Images:
    """Enlarge around the middle by linear interpolation, and cut to the old size."""

    def matrix(size: int) -> Images:
        middle = (size - 1) / 2
        places = middle + (np.arange(size) - middle) / factor
        return np.stack([np.interp(places, np.arange(size), pixel) for pixel in np.eye(size)], axis=1)

    return _multiplied(images, matrix(images.shape[1]), matrix(images.shape[2]))


def pixelated(images: Images, width: float) -> Images:
    """Give each pixel the mean of the block its middle lies in; blocks are `width` wide, the last may be cut."""

    def matrix(size: int) -> Images:
        block = np.floor((np.arange(size) + 0.5) / width)[:, None]
        starts, ends = block * width, np.minimum((block + 1) * width, size)
        overlap = (np.minimum(ends, np.arange(1, size + 1)) - np.maximum(starts, np.arange(size))).clip(0)
        return np.asarray(overlap / overlap.sum(axis=1, keepdims=True))

    return _multiplied(images, matrix(images.shape[1]), matrix(images.shape[2]))


def _multiplied(images: Images, rows: Images, columns: Images) -> Images:
    """Apply one matrix down the columns of images and one along their rows."""
    return np.asarray(np.einsum("ih,nhwc,jw->nijc", rows, images, columns, optimize=True))


def shuffled_nearby(images: Images, reach: float, rounds: int, generator: np.random.Generator) -> Images:
    """Go through the pixels and swap each with a near one, in each image by itself.

    Along each axis the other lies up to `reach` before or less than `reach` behind; a reach between two whole numbers
    is rounded up or down at random, pixel by pixel.
    """
    count, height, width = images.shape[:3]
    places, each = np.tile(np.arange(height * width)[:, None], count), np.arange(count)
    margin = int(np.ceil(reach))
    for _ in range(rounds):
        reaches = np.floor(reach + generator.uniform(size=(height, width, 1, count)))
        moves = np.floor(reaches * generator.uniform(-1, 1, (height, width, 2, count))).astype(int)
        for row in range(height - margin, margin - 1, -1):
            for column in range(width - margin, margin - 1, -1):
                here = row * width + column
                there = here + moves[row, column, 0] * width + moves[row, column, 1]
                places[there, each], places[here] = places[here].copy(), places[there, each]
    return np.take_along_axis(images.reshape(count, height * width, -1), places.T[..., None], 1).reshape(images.shape)


def stretched(images: Images, affine: float, shift: float, grain: float, generator: np.random.Generator) -> Images:
    """Stretch images as rubber; what is missing at the edges is mirrored. All lengths are in pixels.

    Three points move by up to `affine` along each axis, with all in between; then every place moves by smooth random
    shifts of standard deviation `shift` whose smoothness is `grain`.
    """
    from scipy.ndimage import map_coordinates

    count, height, width = images.shape[:3]
    places = _moved_affinely(count, height, width, affine, generator)
    noise = softened(generator.normal(size=places.shape), grain, beyond="wrap")  # alike in every place
    places = np.moveaxis(places + shift * noise / noise.std(), -1, 1)
    layers = [
        [map_coordinates(layer, where, order=1, mode="mirror") for layer in np.moveaxis(image, -1, 0)]
        for image, where in zip(images, places, strict=True)
    ]
    return np.moveaxis(np.asarray(layers), 1, -1)


def _moved_affinely(count: int, height: int, width: int, reach: float, generator: np.random.Generator) -> Images:
    """Where each pixel `(image, height, width, 2)` is taken from when three points around the middle are moved."""
    middle, third = np.array([height, width]) / 2, min(height, width) / 3
    points = middle + third * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = points + generator.uniform(-reach, reach, (count, 3, 2))
    # Three points and where they go fix an affine map: [row, column, 1] @ map = moved.
    maps = np.linalg.solve(np.column_stack([points, np.ones(3)]), moved)
    pixels = np.stack([*np.mgrid[:height, :width], np.ones((height, width))], axis=-1)
    return np.asarray(np.einsum("hwk,nkd->nhwd", pixels, maps, optimize=True))


# --- textures ---


def plasma(shape: tuple[int, ...], decay: float, generator: np.random.Generator) -> Images:
    """Clouds of shape `(image, height, width)` from 0 to 1 whose waves shrink by `decay` when their length is halved.

    Noise is filtered so that amplitudes fall as frequency^-(1 + log2 decay): what midpoint displacement tends to.
    """
    height, width = shape[1:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    waves = np.fft.rfft2(generator.normal(size=shape)) * frequency ** -(1 + np.log2(decay))
    clouds = np.fft.irfft2(waves, s=(height, width))
    low, high = (edge(clouds, axis=(1, 2), keepdims=True) for edge in (np.min, np.max))
    return np.asarray((clouds - low) / np.where(high > low, high - low, 1.0))


# --- JPEG ---

_LUMINANCE_STEPS = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
_COLOUR_STEPS = np.full((8, 8), 99)
_COLOUR_STEPS[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]


def through_jpeg(images: Images, quality: int) -> Images:
    """What JPEG leaves of images in [0, 1] at a quality from 1 to 100.

    The cosine coefficients of blocks of 8 x 8 are rounded to multiples of the standard's tables (scaled by quality as
    the Independent JPEG Group does); colour is kept at half resolution. What follows, the coding, loses nothing.
    Images of three channels are red, green and blue; of any other number, each channel is taken as gray.

    Reference: ITU-T T.81 (1992), annex K; Wallace (1991), "The JPEG still picture compression standard".
    """
    if not 1 <= quality <= 100:
        raise SettingError(f"quality is a number from 1 to 100, got {quality}")
    values = np.rint(255.0 * images)
    if images.shape[-1] != 3:
        return _quantised(values, _LUMINANCE_STEPS, quality) / 255
    luma = gray(values)
    ranges = 2 - 2 * LUMA[[0, 2]]
    red_blue = _quantised_at_half_resolution((values[..., [0, 2]] - luma) / ranges, quality)
    luma = _quantised(luma, _LUMINANCE_STEPS, quality)
    red, blue = np.moveaxis(luma + ranges * red_blue, -1, 0)
    green = (luma[..., 0] - LUMA[0] * red - LUMA[2] * blue) / LUMA[1]
    return np.stack([red, green, blue], axis=-1) / 255


def _quantised(values: Images, steps: Images, quality: int, middle: float = 128) -> Images:
    """Round the cosine coefficients of blocks of 8 x 8 pixels whose middle value is `middle`."""
    from scipy.fft import dctn, idctn

    count, height, width, channels = values.shape
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    table = np.floor((steps * scale + 50) / 100).clip(1, 255)[:, None, :, None]
    padded = np.pad(values - middle, ((0, 0), (0, -height % 8), (0, -width % 8), (0, 0)), mode="edge")
    blocks = padded.reshape(count, padded.shape[1] // 8, 8, padded.shape[2] // 8, 8, channels)
    rounded = np.rint(dctn(blocks, axes=(2, 4), norm="ortho") / table) * table
    restored = idctn(rounded, axes=(2, 4), norm="ortho").reshape(padded.shape)
    return np.asarray(restored[:, :height, :width] + middle)


def _quantised_at_half_resolution(colours: Images, quality: int) -> Images:
    """Quantise the means of 2 x 2 pixels and give each of the four the result."""
    height, width = colours.shape[1:3]
    padded = np.pad(colours, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    means = (padded[:, ::2] + padded[:, 1::2]) / 2
    means = (means[:, :, ::2] + means[:, :, 1::2]) / 2
    doubled = _quantised(means, _COLOUR_STEPS, quality, middle=0).repeat(2, axis=1).repeat(2, axis=2)
    return doubled[:, :height, :width]
