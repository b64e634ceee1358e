"""Images side by side, with a few words below each."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.settings import require
from bayesemble.diagnostics.plots.style import as_array, load_pyplot, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_gallery(images: Any, words: Sequence[str], ax: Axes | None = None, *, columns: int = 6) -> Axes:
    """Draw images in rows, each with its words below.

    Args:
        images: `(image, height, width)` in grey, or `(image, height, width, 3)` in colours, of any scale; the smallest
            number of all is drawn black, the largest white.
        words: One text per image.
        columns: Images in a row.
    """
    shades = _shades(images)
    require(len(words) == len(shades), f"one text for each of {len(shades)} images was needed, got {len(words)}")
    rows = -(-len(shades) // columns)
    ax = new_axes(ax, width=1.2 * columns, height=1.5 * rows)
    height, width = shades.shape[1:3]
    step_down, step_right = 1.35 * height, 1.12 * width
    for index, (shade, text) in enumerate(zip(shades, words, strict=True)):
        left, top = (index % columns) * step_right, (index // columns) * step_down
        ax.imshow(shade, cmap="gray", vmin=0, vmax=1, extent=(left, left + width, top + height, top))
        ax.text(left + width / 2, top + 1.04 * height, text, ha="center", va="top", fontsize="small")
    ax.set(xlim=(0, columns * step_right - 0.12 * width), ylim=(rows * step_down, 0))
    ax.set_axis_off()
    return ax


def data_uris(images: Any) -> list[str]:
    """Images as small PNG files inside addresses, for a page that makes no request; shapes as in `plot_gallery`."""
    load_pyplot()
    from matplotlib.image import imsave

    addresses = []
    for shade in _shades(images):
        file = io.BytesIO()
        imsave(file, shade, cmap="gray", vmin=0, vmax=1, format="png")
        addresses.append("data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii"))
    return addresses


def _shades(images: Any) -> NumpyArray:
    """Images between 0, the smallest number of all, and 1, the largest."""
    values = as_array(images)
    colours = values.ndim == 4 and values.shape[-1] in (1, 3)
    require(
        len(values) > 0 and (values.ndim == 3 or colours),
        f"images (image, height, width) or (image, height, width, 3) were needed, got shape {values.shape}",
    )
    values = values[..., 0] if values.ndim == 4 and values.shape[-1] == 1 else values
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)
