"""The plane of diversity and accuracy, and ensembles of subspaces: drawn as they were found."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape.diversity import DiversityAccuracy, independent_limit, perturbed_limit
from bayesemble.diagnostics.landscape.neighbourhoods import SubspaceEnsembles
from bayesemble.diagnostics.plots import plot_member_diversity
from bayesemble.diagnostics.plots.diversity import plot_diversity_accuracy, plot_subspace_ensembles

plt = pytest.importorskip("matplotlib.pyplot")


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_points_limits_and_reference_of_the_plane():
    result = DiversityAccuracy(
        {"member": numbers(0.7, 0.75), "random": numbers(0.3, 1.0)},
        {"member": numbers(0.4, 0.3), "random": numbers(0.6, 0.2)},
        reference_accuracy=0.7,
        num_classes=10,
    )
    ax = plot_diversity_accuracy(result)
    members, random = ax.collections
    assert np.allclose(members.get_offsets(), [[0.7, 0.4 / 0.3], [0.75, 0.3 / 0.25]])
    assert np.allclose(random.get_offsets(), [[0.3, 0.6 / 0.7]])  # a network without errors has no place
    assert not np.array_equal(members.get_facecolors(), random.get_facecolors())
    assert len(members.get_paths()[0].vertices) != len(random.get_paths()[0].vertices)  # markers differ too
    upper, lower, star = ax.get_lines()
    a, r = torch.as_tensor(upper.get_xdata()), 0.7
    assert float(a.min()) == pytest.approx(0.1)
    assert np.allclose(upper.get_ydata(), independent_limit(a, r, 10) / (1 - a))
    a = torch.as_tensor(lower.get_xdata())
    assert float(a.max()) <= 0.7
    assert np.allclose(lower.get_ydata(), perturbed_limit(a, r, 10) / (1 - a))
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_marker()) == ([0.7], [0], "*")
    expected = ["independent errors", "random changes", "independent members", "random directions", "reference"]
    assert legend(ax) == expected
    assert ax.get_xlabel() == "accuracy"
    assert ax.get_ylabel() == "disagreement with the reference / error rate"


def test_a_reference_without_errors_can_be_drawn():
    result = DiversityAccuracy({"member": numbers(1.0)}, {"member": numbers(0.0)}, 1.0, 2)
    lines = plot_diversity_accuracy(result).get_lines()
    assert all(np.isfinite(line.get_ydata()).all() for line in lines)


def test_ensembles_of_subspaces_by_size():
    accuracy = {"member": numbers(0.7, 0.75, 0.78), "pca": numbers(0.71, 0.74, 0.75)}
    brier = {"member": numbers(0.4, 0.35, 0.3), "pca": numbers(0.39, 0.36, 0.34)}
    result = SubspaceEnsembles([1, 2, 3], accuracy, brier)
    _, given = plt.subplots()
    assert plot_subspace_ensembles(result, given) is given
    for what, label in (("accuracy", "accuracy"), ("brier", "Brier score")):
        ax = plot_subspace_ensembles(result, what=what)
        for line, values in zip(ax.get_lines(), getattr(result, what).values(), strict=True):
            assert list(line.get_xdata()) == [1, 2, 3]
            assert np.array_equal(line.get_ydata(), values.numpy())
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of members", label)
        assert legend(ax) == ["members alone", "low-rank Gaussian"]
    with pytest.raises(be.SettingError, match="what is one of accuracy, brier, not 'nll'"):
        plot_subspace_ensembles(result, what="nll")


plt = pytest.importorskip("matplotlib.pyplot")


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
