"""Methods in one figure: what is drawn is what was measured, and each method can be told and switched off."""

import io
import re

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble import metrics
from bayesemble.diagnostics.plots import plot_scores, plot_size_curve
from bayesemble.diagnostics.plots.style import as_array, colour, method_axes
from bayesemble.metrics.curves import size_curve

plt = pytest.importorskip("matplotlib.pyplot")

ROWS = [
    {"method": "map", "nll": {"mean": 0.5, "error": 0.02}, "accuracy": {"mean": 0.8, "error": 0.01}},
    {"method": "deep_ensemble", "nll": {"mean": 0.3, "error": 0.03}, "accuracy": {"mean": 0.9, "error": 0.02}},
    {"method": "emp", "nll": {"mean": 0.4, "error": None}, "accuracy": {"mean": 0.7, "error": None}},
]


def curve(seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(4, 50, 3, generator=generator).softmax(-1)
    targets = torch.randint(3, (50,), generator=generator)
    return size_curve(be.Predictive.from_probs(probs), targets, metrics.nll)


def drawn(ax, group):
    """All that belongs to a method."""
    return [one for one in [*ax.lines, *ax.collections, *ax.patches] if one.get_gid() == group]


def test_size_curve_draws_mean_and_deviation():
    result = curve()
    ax = plot_size_curve(result, quantity="NLL (nats per row)", label="one")
    line, band = drawn(ax, "method-one")
    assert np.array_equal(line.get_xydata(), torch.stack([result.size.double(), result.mean], 1))
    corners = band.get_paths()[0].vertices
    for size, mean, std in zip(result.size, result.mean, result.std, strict=True):
        heights = corners[corners[:, 0] == size.item(), 1]
        assert np.allclose([heights.min(), heights.max()], [mean - std, mean + std])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Ensemble size (members)", "NLL (nats per row)")
    ax.figure.canvas.draw()
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


@pytest.mark.parametrize(
    ("score", "higher", "order"),
    [("nll", False, ["deep_ensemble", "emp", "map"]), ("accuracy", True, ["deep_ensemble", "map", "emp"])],
)
def test_scores_are_sorted_from_the_best_on_top(score, higher, order):
    ax = plot_scores(ROWS, score, quantity="what it is", higher_is_better=higher)
    assert [text.get_text() for text in ax.get_yticklabels()] == order
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    for row in ROWS:
        mean, error = row[score]["mean"], row[score]["error"]
        dot, *bars = drawn(ax, f"method-{row['method']}")
        assert dot.get_xydata().tolist() == [[mean, order.index(row["method"])]]
        assert len(bars) == (error is not None)
        for bar in bars:
            assert np.allclose(bar.get_segments()[0][:, 0], [mean - error, mean + error])
            assert np.allclose(bar.get_segments()[0][:, 1], order.index(row["method"]))
    assert ax.get_xlabel() == "what it is"
    assert [text.get_gid() for text in ax.get_yticklabels()] == [f"method-{name}" for name in order]


def test_scores_keep_the_colours_of_methods_whatever_their_order():
    ax = plot_scores(ROWS, "nll", colors={"emp": "#123456"})
    found = [drawn(ax, f"method-{row['method']}")[0].get_color() for row in ROWS]
    assert found == [colour(0), colour(1), "#123456"]
    assert ax.get_xlabel() == "nll"


def test_a_score_that_is_not_there_is_refused_and_one_that_is_no_number_comes_last():
    with pytest.raises(be.SettingError, match="'map' has no score 'brier'; it has nll, accuracy"):
        plot_scores(ROWS, "brier")
    broken = {"method": "broken", "nll": {"mean": float("nan"), "error": None}}
    ax = plot_scores([broken, *ROWS], "nll")
    assert ax.get_yticklabels()[-1].get_text() == "broken"


def test_a_method_keeps_its_colour_and_those_without_a_name_have_a_number():
    _, ax = plt.subplots()
    for label in ("one", None, "one", "two"):
        plot_size_curve(curve(), ax, label=label)
    assert [len(drawn(ax, f"method-{name}")) for name in ("one", "1", "two")] == [4, 2, 2]
    assert method_axes(ax, "one", None) == (ax, "method-one", colour(0))
    assert method_axes(ax, None, None) == (ax, "method-3", colour(3))
    assert method_axes(ax, "two", "#123456") == (ax, "method-two", "#123456")


def test_the_page_finds_every_part_of_a_method():
    """Line, band, and both parts of its entry in the legend are groups of the SVG with the method's id."""
    ax = plot_size_curve(curve(), label="one")
    plot_size_curve(curve(1), ax, label="two words")
    page = io.StringIO()
    ax.figure.savefig(page, format="svg")
    for label in ("one", "two words"):
        assert len(re.findall(rf'<g id="method-{label}"', page.getvalue())) == 4


def test_any_numbers_can_be_drawn():
    for values in ([1, 2], torch.tensor([1.0, 2.0], requires_grad=True), np.array([1, 2], dtype=np.float32)):
        assert as_array(values).tolist() == [1.0, 2.0]
