"""A map of a plane: its numbers, its members, and what is clipped."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.landscape import plane, radial_plane
from bayesemble.plots import plot_plane
from helpers import quick_fit, small_mlp, table

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=4))


@pytest.fixture(scope="module")
def result(ensemble):
    return plane(ensemble, table(40, seed=1), (3, 0, 1), resolution=7)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def bar_of(axes):
    (other,) = (one for one in axes.figure.axes if one is not axes)
    return other.get_ylabel()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("loss", "loss in nats"),
        ("error", "share of wrong classes"),
        ("difference", "share of other classes than member 0"),
    ],
)
def test_labels_members_and_aspect(result, what, words):
    axes = plot_plane(result, what=what, reference=1)
    assert axes.get_xlabel() == axes.get_ylabel() == "distance in weight space"
    assert bar_of(axes).startswith(words)
    assert axes.get_aspect() == 1
    assert [text.get_text() for text in axes.texts] == ["3", "0", "1"]
    dots = axes.collections[-1].get_offsets()
    assert torch.allclose(torch.as_tensor(dots.data), result.corners)


def test_the_drawn_surface_is_the_result(result, monkeypatch):
    _, axes = plt.subplots()
    drawn, real = [], axes.contourf
    monkeypatch.setattr(axes, "contourf", lambda *given, **more: drawn.append(given) or real(*given, **more))
    assert plot_plane(result, axes, "difference", reference=2) is axes
    x, y, surface, levels = drawn[0]
    assert (x == result.x.numpy()).all()
    assert (y == result.y.numpy()).all()
    assert (surface == result.difference[..., 2].numpy()).all()
    assert levels[0] <= surface.min()
    assert levels[-1] >= surface.max()


def test_very_large_losses_are_clipped_and_the_bar_says_so(result):
    loss = result.loss.clone()
    loss[0, 0], loss[0, 1], loss[6, 6] = 1e9, float("inf"), float("nan")
    axes = plot_plane(replace(result, loss=loss))
    high = max(float(loss[loss.isfinite()].quantile(0.9)), float(result.at_corners.loss.max()))
    assert bar_of(axes) == f"loss in nats, clipped at {high:.3g}"
    assert max(axes.collections[0].levels) == pytest.approx(high)
    flat = plot_plane(replace(result, error=torch.zeros_like(result.error)), what="error")
    assert bar_of(flat) == "share of wrong classes"


def test_numbers_have_other_words():
    x, _ = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian()), (x, x[:, :2]))
    result = plane(ensemble, (x, x[:, :2]), resolution=4)
    assert bar_of(plot_plane(result, what="error")).startswith("root mean squared error")
    assert bar_of(plot_plane(result, what="difference")).startswith("root mean squared difference from member 0")


def test_the_origin_of_a_radial_plane_is_marked(ensemble):
    axes = plot_plane(radial_plane(ensemble, table(), (2, 1), resolution=4))
    assert [text.get_text() for text in axes.texts] == ["2", "1", "origin"]


def test_odd_wishes_are_refused(result):
    with pytest.raises(be.SettingError, match="what is"):
        plot_plane(result, what="accuracy")
    with pytest.raises(be.SettingError, match="reference"):
        plot_plane(result, what="difference", reference=3)
    with pytest.raises(be.SettingError, match="finite"):
        plot_plane(replace(result, loss=torch.full_like(result.loss, float("nan"))))


def test_what_is_clipped_has_the_last_colour_and_no_hole(result):
    loss = result.loss.clone()
    loss[:2, :2] = 100.0
    axes = plot_plane(replace(result, loss=loss))
    axes.figure.canvas.draw()
    box, pixels = axes.get_window_extent(), np.asarray(axes.figure.canvas.buffer_rgba())
    row, column = int(len(pixels) - box.y0 - 0.05 * box.height), int(box.x0 + 0.05 * box.width)
    bright = matplotlib.colormaps["viridis"](1.0, bytes=True)
    assert np.abs(pixels[row, column].astype(int) - np.asarray(bright).astype(int)).max() < 20
