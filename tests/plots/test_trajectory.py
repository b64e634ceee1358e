"""Paths on a plane: a line for each member, a star where it ends."""

import numpy as np
import pytest
import torch

from bayesemble.landscape.trajectory import Embedding
from bayesemble.plots.trajectory import plot_embedding

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
