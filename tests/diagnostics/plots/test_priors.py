"""What is drawn of priors is what their results hold."""

import numpy as np
import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.diagnostics.learned_prior import LearnedPrior
from bayesemble.diagnostics.plots import plot_learned_prior, plot_matched_prior

plt = pytest.importorskip("matplotlib.pyplot")


def test_rings_and_discs_have_the_areas_of_the_weights():
    learned = LearnedPrior(
        torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1]), 0.75
    )
    ax = plot_learned_prior(learned, label="deep")
    rings, discs = ax.collections
    assert np.allclose(rings.get_offsets(), learned.positions)
    assert np.allclose(rings.get_sizes() / 900, [0.5, 0.5])
    assert np.allclose(discs.get_sizes() / 900, [0.9, 0.1])
    assert {one.get_gid() for one in ax.collections} == {"method-deep"}
    assert "75% of all distances" in ax.get_ylabel()


def test_functions_are_drawn_along_their_input():
    x = torch.tensor([[2.0], [0.0], [1.0]])
    task = be.Task(lambda: nn.Linear(1, 1), be.Gaussian(0.1))
    matched = be.match_prior(task, inputs=x, kernel=torch.eye(3), num=20, steps=2)
    for part in ("before", "after", "wanted"):
        ax = plot_matched_prior(matched, part)
        assert len(ax.lines) == 10
        line, values = ax.lines[3], getattr(matched, part)[3].flatten()
        assert line.get_xdata().tolist() == [0.0, 1.0, 2.0]
        assert np.allclose(line.get_ydata(), values[[1, 2, 0]])
    with pytest.raises(SettingError, match="part is one of before, after, wanted, not 'later'"):
        plot_matched_prior(matched, "later")
    wide = be.Task(lambda: nn.Linear(2, 1), be.Gaussian(0.1))
    many = be.match_prior(wide, inputs=torch.eye(2), kernel=torch.eye(2), num=20, steps=1)
    with pytest.raises(SettingError, match="functions of one input can be drawn"):
        plot_matched_prior(many)
