"""Looks at a stream of rows that may go on for ever, with one bound on the probability of any false alarm.

Rows are counted in windows of `WINDOW`. At the end of each, the window alone is tested, which finds a sudden change
whenever it comes; after 2, 4, 8, ... windows all rows so far are tested, which finds a small one. Look k of either kind
may spend a share 1 / (k (k + 1)) of half of the error rate, and these shares add up to 1; each look divides its share
among its tests (Bonferroni). So with probability 1 - alpha there is never an alarm, however long the stream, as long as
its rows are drawn from what the reference was drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesemble.apps.serve.watch.two_samples import larger_p_value, p_value
from bayesemble.apps.tables.profile import Counts, Histogram

WINDOW = 250
FEWEST_ROWS = 20


@dataclass(frozen=True)
class Watched:
    """One quantity of rows with its histogram in training."""

    kind: str
    """One of column, doubt, surprise, unlike."""
    name: str
    histogram: Histogram

    def p_value(self, counts: Counts) -> float:
        """P(counts as far from the reference, without a change); of unlike rows, more of them alone count."""
        if self.kind != "unlike":
            return p_value(self.histogram, counts)
        there = self.histogram.counts
        return float(larger_p_value(counts[1], int(counts.sum()), there[1], int(there.sum())))


@dataclass(frozen=True, eq=False)
class Alarm:
    """What one look found to be unlike the reference."""

    watched: Watched
    counts: Counts
    rows: int
    """After how many rows of the stream it was found."""
    over: int
    """In how many rows it was found: the last window, or all so far."""
    p_value: float
    """Corrected for all tests of the look."""


class Stream:
    """Counts of what comes in, and looks at them."""

    def __init__(self, watched: list[Watched], alpha: float) -> None:
        self.watched, self.alpha = watched, alpha
        self.rows = 0
        self.window: list[Counts] = self._zeros()
        self.total: list[Counts] = self._zeros()
        """Of all rows, those of the window included."""
        self._in_window = self._windows = self._totals = 0

    def update(self, values: Mapping[tuple[str, str], Any]) -> list[Alarm]:
        """Take the values of some rows, by kind and name; the alarms that they lead to."""
        alarms, begin, num = [], 0, len(next(iter(values.values())))
        while begin < num:
            end = min(num, begin + WINDOW - self._in_window)
            for place, one in enumerate(self.watched):
                counts = one.histogram.count(values[one.kind, one.name][begin:end])
                self.window[place] += counts
                self.total[place] += counts
            self.rows += end - begin
            self._in_window += end - begin
            begin = end
            if self._in_window == WINDOW:
                alarms += self._look()
        return alarms

    def finish(self) -> list[Alarm]:
        """A last look at what has come since the last, and at everything, where a stream has an end."""
        if self.rows < FEWEST_ROWS:
            return []
        alarms = self._look_at_window() if self._in_window >= FEWEST_ROWS else []
        return alarms + (self._look_at_total() if self._windows > 0 else [])

    def _look(self) -> list[Alarm]:
        alarms = self._look_at_window()
        if self._windows == 2 << self._totals:
            alarms += self._look_at_total()
        return alarms

    def _look_at_window(self) -> list[Alarm]:
        self._windows += 1
        alarms = self._test(self.window, self._in_window, self._windows)
        self.window, self._in_window = self._zeros(), 0
        return alarms

    def _look_at_total(self) -> list[Alarm]:
        self._totals += 1
        return self._test(self.total, self.rows, self._totals)

    def _test(self, counts: list[Counts], over: int, number: int) -> list[Alarm]:
        allowed = self.alpha / 2 / (number * (number + 1)) / len(self.watched)
        alarms = []
        for one, here in zip(self.watched, counts, strict=True):
            found = one.p_value(here)
            if found <= allowed:
                corrected = min(1.0, found * len(self.watched))
                alarms.append(Alarm(one, here.copy(), self.rows, over, corrected))
        return alarms

    def _zeros(self) -> list[Counts]:
        return [np.zeros(len(one.histogram.counts), np.int64) for one in self.watched]
