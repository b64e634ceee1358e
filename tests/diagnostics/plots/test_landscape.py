"""A map of a plane: its numbers, its members, and what is clipped."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import Sharpness, plane, radial_plane
from bayesemble.diagnostics.landscape.embeddings import Embedding
from bayesemble.diagnostics.landscape.paths import Path
from bayesemble.diagnostics.landscape.similarities import Similarity
from bayesemble.diagnostics.plots import plot_plane, plot_sharpness
from bayesemble.diagnostics.plots.landscape import plot_embedding, plot_path, plot_similarity
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


plt = pytest.importorskip("matplotlib.pyplot")


def path_result():
    positions = torch.linspace(0, 1, 5, dtype=torch.float64)
    return Path("bezier", (0, 2), positions, positions**2, positions / 2, torch.stack([positions, 1 - positions], 1))


def test_lines_axes_and_legend():
    ax = plot_path(path_result())
    plot_path(path_result(), ax, label="other", number=1)
    assert ax.lines[0].get_ydata() == pytest.approx([0, 1 / 16, 1 / 4, 9 / 16, 1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["bezier", "other"]
    assert ax.get_ylabel() == "loss (nats)"
    assert "member 0 (0) to member 2 (1)" in ax.get_xlabel()
    plt.close("all")


def test_differences_from_both_ends():
    ax = plot_path(path_result(), what="difference")
    assert len(ax.lines) == 2
    assert ax.lines[1].get_label() == "bezier, from member 2"
    plt.close("all")


def test_other_things_are_refused():
    with pytest.raises(be.SettingError, match="what is one of loss, error, difference"):
        plot_path(path_result(), what="cost")


matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.parametrize(("classes", "words"), [(True, "share of wrong classes"), (False, "root mean squared error")])
def test_points_numbers_and_labels(classes, words):
    eigenvalues = torch.tensor([[3.0, 1.0], [5.0, 2.0], [4.0, 0.5]]).double()
    error, others = torch.tensor([0.1, 0.2, 0.3]).double(), torch.ones(3).double()
    _, ax = plt.subplots()
    assert plot_sharpness(Sharpness(eigenvalues, others, others, others, error, classes), ax) is ax
    points = torch.as_tensor(ax.collections[0].get_offsets().data)
    assert torch.equal(points, torch.stack([error, eigenvalues[:, 0]], 1))
    assert [text.get_text() for text in ax.texts] == ["0", "1", "2"]
    assert ax.get_xlabel() == words
    assert ax.get_ylabel() == "largest eigenvalue of the Hessian"
    plt.close("all")


plt = pytest.importorskip("matplotlib.pyplot")


def made(names, divergence=True):
    matrices = torch.arange(3.0 * len(names) ** 2).reshape(3, len(names), len(names))
    return Similarity(names, matrices[0], matrices[1], "disagreement", matrices[2] if divergence else None)


@pytest.mark.parametrize(
    ("what", "label"),
    [
        ("cosine", "cosine of the weights"),
        ("difference", "disagreement"),
        ("jensen_shannon", "Jensen-Shannon divergence (nats)"),
    ],
)
def test_the_matrix_and_its_colour_bar(what, label):
    result = made([(0, None), (2, None)])
    _, given = plt.subplots()
    ax = plot_similarity(result, given, what)
    assert ax is given
    assert np.array_equal(ax.images[0].get_array(), getattr(result, what).numpy())
    assert ax.images[0].colorbar.ax.get_ylabel() == label
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "2"]
    assert ax.get_xlabel() == ax.get_ylabel() == "member"


def test_epochs_are_named_and_labels_thinned_out():
    ax = plot_similarity(made([(1, epoch) for epoch in range(3)]))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0", "1", "2"]
    assert ax.get_ylabel() == "epoch of member 1"
    both = plot_similarity(made([(member, epoch) for member in (0, 2) for epoch in (1, 4)]))
    assert [text.get_text() for text in both.get_xticklabels()] == ["0, 1", "0, 4", "2, 1", "2, 4"]
    assert both.get_xlabel() == "member, epoch"
    many = plot_similarity(made([(0, epoch) for epoch in range(41)]))
    assert list(many.get_xticks()) == list(range(0, 41, 4))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(be.SettingError, match="numbers have no Jensen-Shannon divergence"):
        plot_similarity(made([(0, None)], divergence=False), what="jensen_shannon")
    with pytest.raises(be.SettingError, match="what is one of cosine, difference, jensen_shannon, not 'kl'"):
        plot_similarity(made([(0, None)]), what="kl")


plt = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.parametrize(("kind", "name"), [("tsne", "t-SNE axis"), ("pca", "principal component")])
def test_each_path_is_a_line_with_a_star_at_its_end(kind, name):
    plt.switch_backend("Agg")
    points = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0))
    ax = plot_embedding(Embedding(points, [0, 3], [0, 1, 2, 7], kind))
    lines = ax.get_lines()
    for member in range(2):
        path, star = lines[2 * member], lines[2 * member + 1]
        assert np.array_equal(np.stack(path.get_data(), 1), points[member].numpy())
        assert np.array_equal(np.stack(star.get_data(), 1), points[member, -1:].numpy())
        assert path.get_color() == star.get_color()
    assert lines[0].get_color() != lines[2].get_color()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["member 0", "member 3", "epoch 7, the last"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (f"{name} 1", f"{name} 2")
    plt.close("all")


def test_given_axes_are_drawn_on():
    plt.switch_backend("Agg")
    _, given = plt.subplots()
    assert plot_embedding(Embedding(torch.zeros(1, 3, 2), [0], [0, 1, 2], "pca"), given) is given
    plt.close("all")
