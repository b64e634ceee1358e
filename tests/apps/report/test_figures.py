"""Figures of a comparison: all that apply are drawn, every part belongs to its method, and lines are thinned."""

import re

import pytest

from bayesemble.apps.report.figures import FIGURES, draw_figures, thinned_history
from bayesemble.apps.report.opened_runs import open_methods
from bayesemble.core.errors import DataError
from comparisons import made, tiny

plt = pytest.importorskip("matplotlib.pyplot")


def drawn(folder, comparison):
    shown, missing = open_methods(folder, comparison)
    assert missing == []
    return draw_figures(comparison, shown)


def test_figures_of_classes(tmp_path):
    figures = drawn(tmp_path, tiny(tmp_path))
    assert figures.missing == []
    assert figures.drawings.keys() == {
        *("score_nll", "score_accuracy", "score_ood_auroc", "reliability", "confidence", "risk"),
        *("size_nll", "size_score", "diversity", "forces", "weights"),
    }
    assert figures.multiples.keys() == {"ood"}
    assert [label for label, _ in figures.multiples["ood"]] == ["map", "deep_ensemble", "repulsive"]
    for name in ("score_nll", "reliability", "confidence", "risk"):
        methods = set(re.findall(r'data-method="([^"]+)"', figures.drawings[name]))
        assert methods == {"map", "deep_ensemble", "repulsive"}, name
    assert set(re.findall(r'data-method="([^"]+)"', figures.drawings["forces"])) == {"repulsive"}
    assert figures.weighed in ("deep_ensemble", "repulsive")
    assert all("legend" not in text for name, text in figures.drawings.items() if name != "weights")


def test_figures_of_numbers(tmp_path):
    figures = drawn(tmp_path, tiny(tmp_path, "sine_gap", "map", seeds=1))
    assert {"score_nll", "score_rmse", "coverage", "risk"} <= figures.drawings.keys()
    assert figures.multiples.keys() == {"ood", "bands", "pit"}
    assert "size_nll" not in figures.drawings
    assert "every method here is a single network" in " ".join(figures.missing)


def test_without_runs_scores_are_still_drawn():
    figures = draw_figures(made({"one": {"nll": [1.0, 2.0]}, "two": {"nll": [2.0, 3.0]}}), [])
    assert figures.drawings.keys() == {"score_nll"}


def test_histories_are_thinned():
    history = [{"epoch": epoch, "loss": [1.0] * 30, "seconds": 0.1} for epoch in range(1, 2001)]
    some = thinned_history(history)
    assert len(some) == 100
    assert (some[0]["epoch"], some[-1]["epoch"]) == (1, 2000)
    assert len(some[0]["loss"]) == 10
    assert some[0]["seconds"] == 0.1
    assert thinned_history(history[:7]) == [row | {"loss": [1.0] * 10} for row in history[:7]]


def test_what_cannot_be_drawn_is_named_by_its_title(tmp_path, monkeypatch):
    def broken(shown):
        raise DataError("no rows")

    monkeypatch.setattr("bayesemble.apps.report.figures.FIGURES", (FIGURES[0]._replace(prepare=broken),))
    figures = drawn(tmp_path, tiny(tmp_path, methods="map", seeds=1))
    assert "risk" not in figures.drawings
    assert "Risk against coverage: no rows" in figures.missing
