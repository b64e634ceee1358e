"""What is drawn of training is what the history holds."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.diagnostics.plots import plot_forces, plot_history, plot_weights
from helpers import quick_fit, small_mlp, table

plt = pytest.importorskip("matplotlib.pyplot")


def trained(method, **options):
    with seeds.scoped(0):
        task = be.Task(small_mlp, be.Categorical())
    return quick_fit(task, table(), method, epochs=3, **options).history


def drawn(ax, group):
    """All that belongs to a method."""
    return [one for one in [*ax.lines, *ax.collections, *ax.patches] if one.get_gid() == group]


def words(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_each_member_has_a_line_and_their_average_a_dashed_one():
    history = trained(be.DeepEnsemble(num_members=3), validation=table(seed=1))
    ax = plot_history(history, label="one")
    *members, average = drawn(ax, "method-one")
    assert len(members) == 3
    for place, line in enumerate(members):
        assert line.get_xdata().tolist() == [1, 2, 3]
        assert line.get_ydata().tolist() == [row["loss"][place] for row in history]
    assert average.get_ydata().tolist() == [row["validation_loss"] for row in history]
    assert average.get_linestyle() == "--"
    assert words(ax) == ["one: training, each member", "one: validation, averaged"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Epoch", "Loss (nats per row)")


def test_without_validation_members_are_drawn_alone_and_methods_side_by_side():
    history = trained(be.DeepEnsemble(num_members=2))
    ax = plot_history(history)
    plot_history(history, ax)
    assert len(drawn(ax, "method-0")) == len(drawn(ax, "method-1")) == 2
    assert drawn(ax, "method-0")[0].get_color() != drawn(ax, "method-1")[0].get_color()


def test_forces_are_means_over_members_with_their_range():
    history = trained(be.Repulsive(num_members=3))
    ax = plot_forces(history, label="one")
    driving, repelling, *spans = drawn(ax, "method-one")
    for line, span, key in zip((driving, repelling), spans, ("driving_norm", "repulsion_norm"), strict=True):
        norms = np.array([row[key] for row in history])
        assert np.allclose(line.get_ydata(), norms.mean(1))
        corners = span.get_paths()[0].vertices
        for epoch, (low, high) in enumerate(zip(norms.min(1), norms.max(1), strict=True), start=1):
            heights = corners[corners[:, 0] == epoch, 1]
            assert np.allclose([heights.min(), heights.max()], [low, high])
    assert words(ax) == ["one: driving", "one: repulsion"]
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Epoch", "Length of the force (nats per unit)")


def test_no_repulsion_is_drawn_on_a_plain_axis_and_beside_others():
    off = trained(be.Repulsive(num_members=2, repulsion=0.0))
    ax = plot_forces(off, label="off")
    assert ax.get_yscale() == "linear"
    plot_forces(trained(be.Stein(num_members=2)), ax, label="svgd")
    ax.figure.canvas.draw()
    assert len(drawn(ax, "method-off")) == len(drawn(ax, "method-svgd")) == 4


def test_a_member_at_a_time_can_be_drawn():
    history = trained(be.Repulsive(num_members=2, sequential=True))
    assert len(drawn(plot_history(history, label="one"), "method-one")) == 1
    plot_forces(history).figure.canvas.draw()


def test_a_history_without_forces_or_epochs_is_refused():
    with pytest.raises(be.SettingError, match="no 'driving_norm'; it has gradients, loss, seconds"):
        plot_forces(trained(be.DeepEnsemble(num_members=2)))
    with pytest.raises(be.SettingError, match="no epoch"):
        plot_history([])


def test_weights_are_bars_side_by_side():
    weights = {"equal": torch.full((4,), 0.25), "evidence": [0.7, 0.1, 0.2, 0.0], "stacking": np.eye(4)[1]}
    ax = plot_weights(weights, label="one")
    bars = drawn(ax, "method-one")
    heights = np.array([bar.get_height() for bar in bars]).reshape(3, 4)
    assert np.allclose(heights, [np.asarray(some) for some in weights.values()])
    lefts = np.array([bar.get_x() for bar in bars]).reshape(3, 4)
    centres = lefts + bars[0].get_width() / 2
    assert np.allclose(centres.mean(0), range(4))
    assert np.allclose(np.diff(lefts, axis=0), bars[0].get_width())
    assert words(ax) == ["one: equal", "one: evidence", "one: stacking"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Member", "Weight (share)")
    assert [text.get_gid() for text in ax.get_legend().get_texts()] == ["method-one"] * 3


def test_weights_in_one_colour_differ_in_lightness():
    ax = plot_weights({"equal": [0.5, 0.5], "evidence": [0.9, 0.1]}, label="one", color="#0072B2")
    equal, _, evidence, _ = drawn(ax, "method-one")
    assert equal.get_facecolor()[:3] == evidence.get_facecolor()[:3]
    assert equal.get_alpha() > evidence.get_alpha()


@pytest.mark.parametrize("weights", [{}, {"equal": [0.5, 0.5], "evidence": [1.0]}, {"equal": [[1.0]]}])
def test_weights_of_different_members_are_refused(weights):
    with pytest.raises(be.SettingError, match="one weight per member"):
        plot_weights(weights)
