"""What is drawn of doubt is what was measured."""

import itertools
import math

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble import metrics
from bayesemble.diagnostics.plots import plot_accuracy_against_confidence, plot_entropy, plot_risk_coverage

plt = pytest.importorskip("matplotlib.pyplot")


def predicted(seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(3, 150, 4, generator=generator).mul(sharpness).softmax(-1)
    return be.Predictive.from_probs(probs), torch.randint(4, (150,), generator=generator)


def drawn(ax, group):
    """All that belongs to a method."""
    return [one for one in [*ax.lines, *ax.collections, *ax.patches] if one.get_gid() == group]


def density(values, edges):
    """Share of values in each bin by its width; the last bin holds its upper edge."""
    shares = [
        np.mean([low <= value < high or value == high == edges[-1] for value in values])
        for low, high in itertools.pairwise(edges)
    ]
    return np.array(shares) / np.diff(edges)


def test_entropy_draws_known_data_filled_and_foreign_data_dashed():
    known, ood = predicted()[0].uncertainty(), predicted(1, 0.5)[0].uncertainty()
    ax = plot_entropy(known, ood, bins=7, label="one")
    outline, fill, dashed = drawn(ax, "method-one")
    edges = np.linspace(0, max(known.max(), ood.max()).item(), 8)
    for patch, values in ((outline, known), (fill, known), (dashed, ood)):
        assert np.allclose(patch.get_data().edges, edges)
        assert np.allclose(patch.get_data().values, density(values.double().tolist(), edges))
    assert [patch.get_fill() for patch in (outline, fill, dashed)] == [False, True, False]
    assert [patch.get_linestyle() for patch in (outline, dashed)] == ["-", "--"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one: known data", "one: foreign data"]
    assert ax.get_xlabel() == "Entropy (nat)"
    assert ax.get_ylabel() == "Density (1/nat)"


def test_given_edges_are_kept_and_hold_all_rows():
    edges = [0.0, math.log(2), math.log(4)]
    ax = plot_entropy([-1e-7, 0.1, 1.0, math.log(4) + 1e-7], bins=edges)
    (outline, _) = drawn(ax, "method-0")
    assert np.allclose(outline.get_data().values * np.diff(edges), [0.5, 0.5])


def test_unit_and_quantity_are_those_of_the_doubt_and_no_doubt_at_all_can_be_drawn():
    ax = plot_entropy(torch.zeros(5), quantity="Variance", unit="m²")
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "Variance (m²)"
    assert ax.get_ylabel() == "Density (1/m²)"
    with pytest.raises(be.SettingError, match="at least one row"):
        plot_entropy([])


def test_accuracy_is_drawn_against_the_threshold():
    curve = metrics.accuracy_against_confidence(*predicted())
    ax = plot_accuracy_against_confidence(curve, label="one")
    other = metrics.accuracy_against_confidence(*predicted(1))
    assert plot_accuracy_against_confidence(other, ax, label="two", color="#123456") is ax
    (line,), (second,) = drawn(ax, "method-one"), drawn(ax, "method-two")
    assert np.allclose(line.get_xydata(), torch.stack([curve.threshold.double(), curve.accuracy], 1))
    assert second.get_color() == "#123456"
    assert ax.get_xlabel() == "Confidence threshold τ (probability)"
    assert ax.get_ylabel() == "Accuracy of rows with confidence ≥ τ (share)"


def test_risk_is_drawn_against_the_share_of_rows_kept():
    curve = metrics.risk_coverage(*predicted())
    ax = plot_risk_coverage(curve, label="one")
    plot_risk_coverage(metrics.risk_coverage(*predicted(1)), ax, label="two")
    (line,), (_,) = drawn(ax, "method-one"), drawn(ax, "method-two")
    assert np.allclose(line.get_xydata(), torch.stack([curve.coverage.double(), curve.risk], 1))
    assert ax.get_xlabel() == "Rows kept (share)"
    assert ax.get_ylabel() == "Error rate of the kept rows (share)"
    assert plot_risk_coverage(curve, quantity="Mean squared error (m²)").get_ylabel() == "Mean squared error (m²)"
