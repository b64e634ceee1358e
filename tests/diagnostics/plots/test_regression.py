"""What is drawn of predicted numbers is what was predicted."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.plots import plot_bands, plot_predictions
from bayesemble.metrics.curves import prediction_bands

plt = pytest.importorskip("matplotlib.pyplot")


def predicted(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(30, generator=generator, dtype=torch.float64)
    means = x.sin() + 0.2 * torch.randn(4, 30, generator=generator, dtype=torch.float64)
    return be.Predictive.from_normal(means, 0.3), x, 100 + torch.randn(30, generator=generator).double()


def drawn(ax, group):
    """All that belongs to a method."""
    return [one for one in [*ax.lines, *ax.collections, *ax.patches] if one.get_gid() == group]


def ends(band):
    """Lower and upper end of a filled band at each place, in order."""
    corners = band.get_paths()[0].vertices
    places = np.unique(corners[:, 0])
    values = [corners[corners[:, 0] == place, 1] for place in places]
    return places, np.array([some.min() for some in values]), np.array([some.max() for some in values])


@pytest.mark.parametrize("kind", [{"levels": (0.5, 0.9)}, {"stds": (1, 2, 3)}])
def test_bands_are_drawn_from_end_to_end_and_their_epistemic_part_apart(kind):
    predictive, x, y = predicted()
    bands = prediction_bands(predictive, x, **kind)
    ax = plot_bands(bands, data=(x, y), label="one", input_name="Time (s)", target_name="Height (m)")
    mean, *fills = drawn(ax, "method-one")
    assert np.array_equal(mean.get_xydata(), torch.stack([bands.position, bands.mean], 1))
    lows, highs = [*bands.low, bands.epistemic_low], [*bands.high, bands.epistemic_high]
    assert len(fills) == len(bands.names) + 1
    for fill, low, high in zip(fills, lows, highs, strict=True):
        places, bottom, top = ends(fill)
        assert np.allclose(places, bands.position)
        assert np.allclose(bottom, low)
        assert np.allclose(top, high)
    assert fills[-1].get_hatch()
    (points,) = drawn(ax, "data")
    assert np.array_equal(points.get_xydata(), torch.stack([x, y], 1))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Time (s)", "Height (m)")
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    expected = ["one: mean", *(f"one: {name}" for name in bands.names), "one: epistemic part", "data"]
    assert sorted(words) == sorted(expected)


def test_a_second_method_is_drawn_beside_the_first_and_the_data_once():
    ax = None
    for seed, label in enumerate(("one", "two")):
        predictive, x, y = predicted(seed)
        ax = plot_bands(prediction_bands(predictive, x), ax, data=(x, y), label=label)
    assert len(drawn(ax, "method-one")) == len(drawn(ax, "method-two")) == 4
    assert len(drawn(ax, "data")) == 1
    assert drawn(ax, "method-one")[0].get_color() != drawn(ax, "method-two")[0].get_color()


def test_predictions_are_drawn_against_targets_with_bars_of_the_widest_band():
    predictive, _, y = predicted()
    bands = prediction_bands(predictive.rescale(100, 1), y)
    ax = plot_predictions(bands, label="one", target_name="height (m)")
    points, bars = drawn(ax, "method-one")
    assert np.array_equal(points.get_xydata(), torch.stack([bands.position, bands.mean], 1))
    expected = torch.stack([torch.stack([bands.position] * 2, 1), torch.stack([bands.low[-1], bands.high[-1]], 1)], 2)
    assert np.array_equal(bars.get_segments(), expected)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("True height (m)", "Predicted height (m)")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one: mean and 90 %"]
    plot_predictions(bands, ax, label="two")
    assert len(drawn(ax, "reference")) == 1
    assert ax.get_xlim()[0] > 90, "the diagonal does not stretch the axes to 0"


def test_a_mean_outside_its_own_interval_can_be_drawn():
    predictive = be.Predictive.from_normal([[0.0], [1000.0]], 1.0, weights=[0.97, 0.03])
    bands = prediction_bands(predictive, [0.0])
    assert bands.mean[0] > bands.high[-1, 0]
    plot_predictions(bands).figure.canvas.draw()
