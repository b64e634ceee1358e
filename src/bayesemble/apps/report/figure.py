"""One figure of a comparison: all methods in one drawing, or a drawing for each, where they would cover one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesemble.apps.report.opened_runs import Shown
from bayesemble.apps.report.page import drawing
from bayesemble.diagnostics.plots.style import PALETTE

INCHES = (4.0, 3.0)
_SMALL_INCHES = (3.0, 2.2)
_DASHES_OF_A_REPEATED_COLOUR = (0, (5, 1.5, 1, 1.5))

DrawOne = Callable[[Shown, Any], Any]
"""Draws one method on axes."""


class Figure(NamedTuple):
    """What is drawn, and for which methods."""

    name: str
    title: str
    prepare: Callable[[Sequence[Shown]], DrawOne]
    """Works out what methods share, such as the ends of an axis, and gives what draws one of them."""
    choose: Callable[[Sequence[Shown]], Sequence[Shown]] = lambda shown: shown
    """The methods that it applies to."""
    apart: bool = False
    """Whether each method has a small drawing of its own."""
    absent: str = ""
    """What is said if it applies to no method; nothing by default."""


def by_itself(draw: DrawOne) -> Callable[[Sequence[Shown]], DrawOne]:
    """Prepare what methods share where they share nothing."""
    return lambda shown: draw


def draw_together(
    name: str, draw: DrawOne, shown: Sequence[Shown], labels: Sequence[str], size: tuple[float, float] = INCHES
) -> str:
    """One drawing for all methods. The switches of the page are its legend; labels are those of the comparison."""

    def draw_all(ax: Any) -> None:
        for one in shown:
            draw(one, ax)
        finish(ax, labels)

    return drawing(name, draw_all, size=size)


def draw_apart(name: str, draw: DrawOne, shown: Sequence[Shown]) -> list[tuple[str, str]]:
    """One small drawing for each method, with its label."""
    return [(one.label, draw_together(f"{name}-{one.number}", draw, [one], [], _SMALL_INCHES)) for one in shown]


def finish(ax: Any, labels: Sequence[str]) -> None:
    """Take the legend away, and dash the lines of methods that share their colour with one before them."""
    if ax.get_legend() is not None:
        ax.get_legend().remove()
    again = {f"method-{label}" for label in labels[len(PALETTE) :]}
    for line in ax.lines:
        if line.get_gid() in again and line.get_linestyle() == "-":
            line.set_linestyle(_DASHES_OF_A_REPEATED_COLOUR)


def several(shown: Sequence[Shown]) -> list[Shown]:
    """The methods that average more than one network."""
    return [one for one in shown if one.several]


def thinned(num: int, most: int, first: int = 0) -> list[int]:
    """Indices from `first` to the last of `num`, `most` of them at most."""
    return sorted({round(index) for index in np.linspace(first, num - 1, most)})


def padded(ends: Sequence[float], share: float = 0.05) -> tuple[float, float]:
    """From the lowest to the highest, and a share of their distance on both sides."""
    room = share * max(max(ends) - min(ends), 1e-9)
    return min(ends) - room, max(ends) + room
