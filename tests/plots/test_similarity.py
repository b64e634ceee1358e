"""Matrices of networks: the drawn numbers are those of the result."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.landscape.similarity import Similarity
from bayesemble.plots.similarity import plot_similarity

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed():
    plt.switch_backend("Agg")
    yield
    plt.close("all")


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
