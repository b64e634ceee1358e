"""Colours that can be told apart, axes that are made when none are given."""

import sys

import pytest

import bayesemble as be
from bayesemble.diagnostics.plots import style

plt = pytest.importorskip("matplotlib.pyplot")


def test_given_axes_are_drawn_on_and_new_ones_made_otherwise():
    _, ax = plt.subplots()
    assert style.new_axes(ax) is ax
    assert style.new_axes() is not ax
    plt.close("all")


def test_colours_repeat_after_the_last():
    assert style.colour(0) == style.PALETTE[0] == style.colour(len(style.PALETTE))
    assert len(set(style.PALETTE)) == len(style.PALETTE)


def test_neighbouring_colours_differ_in_lightness_too():
    """What prints in grey, or is seen without colour, can still be told apart from its neighbour."""

    def lightness(text):
        red, green, blue = (int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    pairs = zip(style.PALETTE, style.PALETTE[1:], strict=False)
    assert all(abs(lightness(one) - lightness(other)) > 0.03 for one, other in pairs)


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(be.MissingExtraError, match=r"bayesemble\[plots\]"):
        style.new_axes()
