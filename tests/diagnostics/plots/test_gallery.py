"""Images side by side: they are drawn where they belong, in the shades they have."""

import base64
import io

import numpy as np
import pytest

import bayesemble as be
from bayesemble.diagnostics.plots import plot_gallery
from bayesemble.diagnostics.plots.gallery import data_uris

plt = pytest.importorskip("matplotlib.pyplot")

IMAGES = np.arange(7 * 2 * 3, dtype=float).reshape(7, 2, 3)


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


def test_images_stand_in_rows_with_their_words_below():
    ax = plot_gallery(IMAGES, [f"image {i}" for i in range(7)], columns=3)
    assert len(ax.images) == 7
    assert [text.get_text() for text in ax.texts] == [f"image {i}" for i in range(7)]
    corners = [image.get_extent() for image in ax.images]
    assert corners[3][0] == corners[0][0]  # the fourth begins a new row
    assert corners[3][3] > corners[0][2]
    shades = np.stack([image.get_array() for image in ax.images])
    assert np.allclose(shades, IMAGES / IMAGES.max())
    for text, (left, right, bottom, _) in zip(ax.texts, corners, strict=True):
        assert left < text.get_position()[0] < right
        assert text.get_position()[1] > bottom


@pytest.mark.parametrize("shape", [(7, 2, 3), (7, 2, 3, 1), (7, 2, 3, 3)])
def test_addresses_hold_the_pixels(shape):
    values = np.linspace(-2.0, 5.0, int(np.prod(shape))).reshape(shape)
    addresses = data_uris(values)
    assert len(addresses) == 7
    head, body = addresses[-1].split(",")
    assert head == "data:image/png;base64"
    pixels = plt.imread(io.BytesIO(base64.b64decode(body)), format="png")[..., :3]
    expected = (values[-1] + 2) / 7
    expected = expected if shape[-1] == 3 and len(shape) == 4 else np.repeat(expected.reshape(2, 3, 1), 3, axis=2)
    assert np.allclose(pixels, expected, atol=1 / 250)


def test_images_without_contrast_and_other_shapes():
    assert len(data_uris(np.ones((1, 2, 2)))) == 1
    with pytest.raises(be.SettingError, match="images"):
        data_uris(np.ones((2, 2)))
    with pytest.raises(be.SettingError, match="one text for each of 7"):
        plot_gallery(IMAGES, ["one"])
