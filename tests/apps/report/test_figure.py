"""One figure for all methods or for each of them; lines are thinned and told apart."""

import re
from types import SimpleNamespace

import pytest

from bayesemble.apps.report.figure import draw_apart, draw_together, padded, thinned
from bayesemble.diagnostics.plots.style import PALETTE

pytest.importorskip("matplotlib")


def line(one, ax):
    ax.plot([0, 1], [0, 1], gid=f"method-{one.label}", color="red", label=one.label)
    ax.legend()


def methods(*numbers):
    return [SimpleNamespace(label=f"method {number}", number=number) for number in numbers]


def test_a_method_beyond_the_palette_has_lines_of_its_own():
    labels = [f"method {number}" for number in range(len(PALETTE) + 1)]
    drawn = draw_together("lines", line, methods(0, len(PALETTE)), labels)
    first, last = re.findall(r'data-method="method \d+".*?</g>', drawn, flags=re.DOTALL)
    assert "stroke-dasharray" not in first
    assert "stroke-dasharray" in last
    assert "legend" not in drawn, "the switches of the page are the legend"


def test_apart_every_method_has_a_drawing_of_its_own():
    drawn = dict(draw_apart("lines", line, methods(0, 2)))
    assert list(drawn) == ["method 0", "method 2"]
    for label, text in drawn.items():
        assert re.findall(r'data-method="([^"]+)"', text) == [label]


def test_thinning_keeps_both_ends():
    assert thinned(5, 10) == [0, 1, 2, 3, 4]
    assert thinned(5, 5) == [0, 1, 2, 3, 4]
    assert thinned(9, 10, first=6) == [6, 7, 8]
    some = thinned(1000, 10, first=50)
    assert (len(some), some[0], some[-1]) == (10, 50, 999)


def test_padding_adds_a_share_on_both_sides():
    assert padded([1.0, 3.0], 0.5) == (0.0, 4.0)
