"""Drawn paths are the measured ones."""

import pytest
import torch

import bayesemble as be
from bayesemble.landscape.path import Path
from bayesemble.plots.path import plot_path

plt = pytest.importorskip("matplotlib.pyplot")


def result():
    positions = torch.linspace(0, 1, 5, dtype=torch.float64)
    return Path("bezier", (0, 2), positions, positions**2, positions / 2, torch.stack([positions, 1 - positions], 1))


def test_lines_axes_and_legend():
    ax = plot_path(result())
    plot_path(result(), ax, label="other", number=1)
    assert ax.lines[0].get_ydata() == pytest.approx([0, 1 / 16, 1 / 4, 9 / 16, 1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["bezier", "other"]
    assert ax.get_ylabel() == "loss (nats)"
    assert "member 0 (0) to member 2 (1)" in ax.get_xlabel()
    plt.close("all")


def test_differences_from_both_ends():
    ax = plot_path(result(), what="difference")
    assert len(ax.lines) == 2
    assert ax.lines[1].get_label() == "bezier, from member 2"
    plt.close("all")


def test_other_things_are_refused():
    with pytest.raises(be.SettingError, match="what is one of loss, error, difference"):
        plot_path(result(), what="cost")
