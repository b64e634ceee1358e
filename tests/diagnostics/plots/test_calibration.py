"""What is drawn of calibration is what was measured."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble import metrics
from bayesemble.diagnostics.plots import plot_coverage, plot_pit, plot_reliability
from bayesemble.diagnostics.plots.calibration import LARGEST_MARKER
from bayesemble.metrics.curves import interval_coverage

plt = pytest.importorskip("matplotlib.pyplot")


def table(seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(3, 200, 4, generator=generator).mul(2).softmax(-1)
    return metrics.reliability(be.Predictive.from_probs(probs), torch.randint(4, (200,), generator=generator))


def numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(3, 50, generator=generator, dtype=torch.float64)
    return be.Predictive.from_normal(means, 1.0), torch.randn(50, generator=generator).double()


def drawn(ax, group):
    """All that belongs to a method."""
    return [one for one in [*ax.lines, *ax.collections, *ax.patches] if one.get_gid() == group]


def test_reliability_draws_each_bin_with_an_area_by_its_rows():
    result = table()
    ax = plot_reliability(result, label="one", color="#112233")
    line, points = drawn(ax, "method-one")
    assert np.array_equal(line.get_xydata(), torch.stack([result.confidence, result.accuracy], 1).numpy())
    assert np.array_equal(points.get_offsets(), line.get_xydata())
    assert np.allclose(points.get_sizes(), LARGEST_MARKER * result.count.numpy() / result.count.max().item())
    assert line.get_color() == "#112233"
    assert ax.get_xlabel() == "Confidence (probability)"
    assert ax.get_ylabel() == "Accuracy (share of rows)"
    assert not ax.get_title()


def test_methods_share_one_axes_and_one_diagonal():
    _, ax = plt.subplots()
    for number, label in enumerate(("one", "two", "three")):
        assert plot_reliability(table(number), ax, label=label) is ax
    (diagonal,) = drawn(ax, "reference")
    assert diagonal.get_slope() == 1
    lines = [drawn(ax, f"method-{label}")[0] for label in ("one", "two", "three")]
    assert len({line.get_color() for line in lines}) == 3
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "three"]
    assert all(one.get_gid() for one in [*ax.lines, *ax.collections, *ax.patches])


def test_a_table_without_bins_draws_the_diagonal_alone():
    nothing = torch.zeros(0, dtype=torch.float64)
    ax = plot_reliability(metrics.Reliability(nothing, nothing, nothing, nothing.long(), 0))
    ax.figure.canvas.draw()
    assert drawn(ax, "reference")


def test_coverage_draws_share_against_level():
    curve = interval_coverage(*numbers())
    ax = plot_coverage(curve, label="one")
    plot_coverage(interval_coverage(*numbers(1)), ax, label="two")
    (line,) = drawn(ax, "method-one")
    assert np.array_equal(line.get_xydata(), torch.stack([curve.level, curve.observed], 1).numpy())
    assert len(drawn(ax, "method-two")) == len(drawn(ax, "reference")) == 1
    assert ax.get_xlabel() == "Level of the interval (probability)"
    assert ax.get_ylabel() == "Targets inside (share)"


def test_pit_draws_a_density_over_the_unit_interval():
    values = metrics.pit(*numbers())
    ax = plot_pit(values, bins=5, label="one")
    plot_pit(metrics.pit(*numbers(1)), ax, bins=5, label="two")
    fill, outline = drawn(ax, "method-one")
    expected = [
        5 * np.mean([low <= value < low + 0.2 or value == low + 0.2 == 1 for value in values.tolist()])
        for low in (0, 0.2, 0.4, 0.6, 0.8)
    ]
    for patch in (fill, outline):
        assert np.allclose(patch.get_data().values, expected)
        assert np.allclose(patch.get_data().edges, [0, 0.2, 0.4, 0.6, 0.8, 1])
    (level,) = drawn(ax, "reference")
    assert set(level.get_ydata()) == {1.0}
    assert len(drawn(ax, "method-two")) == 2
    assert ax.get_xlabel() == "PIT value (probability)"
    assert ax.get_ylabel() == "Density (1 if calibrated)"


@pytest.mark.parametrize("values", [[], [0.5, 1.5], [float("nan")]])
def test_values_that_are_no_probabilities_are_refused(values):
    with pytest.raises(be.SettingError, match="PIT values"):
        plot_pit(values)
