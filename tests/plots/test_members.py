"""Members by diversity and accuracy: dots and limits are where the formulas put them."""

import numpy as np
import pytest
import torch

from bayesemble.landscape.diversity import DiversityAccuracy
from bayesemble.plots import plot_member_diversity

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


def result():
    accuracy, apart = torch.tensor([0.8, 0.9, 1.0]), torch.tensor([0.3, 0.05, 0.1])
    return DiversityAccuracy({"member": accuracy}, {"member": apart}, 0.9, 5)


def test_dots_and_limits():
    ax = plot_member_diversity(result(), label="one")
    (dots,) = ax.collections
    assert np.allclose(dots.get_offsets(), [[0.8, 1.5], [0.9, 0.5]])  # one without errors has no place
    independent, perturbed = ax.lines
    a = independent.get_xdata()
    assert np.allclose(independent.get_ydata() * (1 - a), 0.9 * (1 - a) + 0.1 * a + 0.1 * (1 - a) * 3 / 4)
    b = perturbed.get_xdata()
    assert b.max() <= 0.9
    assert np.allclose(perturbed.get_ydata() * (1 - b), (0.9 - b) / (0.9 - 0.1 / 4))
    assert {one.get_gid() for one in (dots, independent, perturbed)} == {"method-one"}


def test_methods_share_axes_with_colours_of_their_own():
    ax = plot_member_diversity(result(), label="one", color="#123456")
    plot_member_diversity(result(), ax, label="two")
    assert [line.get_gid() for line in ax.lines] == ["method-one"] * 2 + ["method-two"] * 2
    assert ax.lines[0].get_color() == "#123456"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]


def test_members_without_any_error_leave_the_plane_empty():
    perfect = DiversityAccuracy({"member": torch.ones(3)}, {"member": torch.zeros(3)}, 1.0, 3)
    ax = plot_member_diversity(perfect, label="one")
    assert len(ax.collections[0].get_offsets()) == 0
