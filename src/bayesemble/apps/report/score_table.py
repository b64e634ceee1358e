"""The table of a comparison: mean and standard error over seeds, the best and those tied with it marked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import fmean

from bayesemble.apps.compare.results import Comparison, standard_error
from bayesemble.apps.report.verdict import standing, tied_with_best
from bayesemble.diagnostics.plots.style import colour
from bayesemble.metrics.catalogue import SCORES, Score

COSTS = {
    "train_seconds": ("Training", "seconds", "to train all members of one run"),
    "predict_seconds": ("Prediction", "seconds", "to predict the test rows once"),
    "gradient_evaluations": ("Gradients", "evaluations", "gradients of a batch for one network, all members"),
    "parameters": ("Parameters", "numbers", "trained numbers of all members"),
    "peak_memory_mb": ("Memory", "MB at peak", "how far the process grew beyond libraries and data"),
}


@dataclass(frozen=True)
class Column:
    """A score or a cost."""

    name: str
    heading: str
    unit: str
    help: str
    descending: bool
    """Whether the first click sorts from the largest number down."""
    starts_costs: bool = False


@dataclass(frozen=True)
class Cell:
    """One number of one method; None where it is not known."""

    value: float | None = None
    error: float | None = None
    text: str = ""
    error_text: str = ""
    mark: str = ""
    """"best", "tied" or nothing."""


@dataclass(frozen=True)
class Row:
    """One method."""

    label: str
    number: int
    """Its place in the comparison, which its colour goes by."""
    cells: list[Cell]
    failure: str | None = None
    note: str = ""

    @property
    def parts(self) -> list[str]:
        """Its label in pieces between which a line may end."""
        return re.findall(r"[^:,]*[:,]|[^:,]+$", self.label)

    @property
    def colour(self) -> str:
        """Its colour in all figures; black is the colour of the text around it."""
        return colour(self.number).replace("#000000", "currentColor")

    @property
    def dashed(self) -> bool:
        """Whether its lines are dashed, because another method has the same colour."""
        return colour(self.number) in [colour(before) for before in range(self.number)]


def columns_of(comparison: Comparison) -> list[Column]:
    """The scores and costs that at least one result has, in a fixed order."""
    there = {name for result in comparison.results for name in result.scores | result.cost}
    scores = [_score_column(name, score) for name, score in SCORES.items() if score.on_page and name in there]
    known = [name for name in COSTS if name in there]
    costs = [Column(name, *COSTS[name], descending=False, starts_costs=name == known[0]) for name in known]
    return scores + costs


def _score_column(name: str, score: Score) -> Column:
    way = f"{score.arrow} better" if score.arrow else score.direction
    return Column(name, score.title, way, score.meaning, descending=score.better == "higher")


def rows_of(comparison: Comparison, columns: list[Column]) -> list[Row]:
    """One row per method, the best NLL on top, those that failed at the bottom."""
    cells = {label: [] for label in comparison.labels}  # type: dict[str, list[Cell]]
    for column in columns:
        for label, cell in _cells(comparison, column.name).items():
            cells[label].append(cell)
    order = standing(comparison, "nll")
    order += [label for label in comparison.labels if label not in order]
    return [_row(comparison, label, cells[label]) for label in order]


def _row(comparison: Comparison, label: str, cells: list[Cell]) -> Row:
    number = comparison.labels.index(label)
    mine = [result for result in comparison.results if result.label == label]
    failed = [result for result in mine if result.failure is not None]
    if len(failed) == len(mine):
        return Row(label, number, [], failure=failed[0].failure)
    note = f"failed with {len(failed)} of {len(mine)} seeds: {failed[0].failure}" if failed else ""
    return Row(label, number, cells, note=note)


def _cells(comparison: Comparison, name: str) -> dict[str, Cell]:
    values = {label: list(comparison.values(label, name).values()) for label in comparison.labels}
    means = {label: fmean(some) for label, some in values.items() if some}
    decimals = _decimals(name, list(means.values()))
    best: str | None = None
    tied: tuple[str, ...] = ()
    if name in SCORES and SCORES[name].arrow and len(means) > 1:  # of coverage neither more nor less is better
        best, tied = standing(comparison, name)[0], tied_with_best(comparison, name)

    def cell(label: str) -> Cell:
        if label not in means:
            return Cell()
        mean, error = means[label], standard_error(values[label])
        constant = name in COSTS and not error
        error_text = "" if error is None or constant else f"± {error:,.{decimals}f}"
        mark = "best" if label == best else "tied" if label in tied else ""
        return Cell(mean, error, f"{mean:,.{decimals}f}", error_text, mark)

    return {label: cell(label) for label in comparison.labels}


def _decimals(name: str, means: list[float]) -> int:
    """How many decimals the largest number of a column needs to show four figures; at most three."""
    if name in ("gradient_evaluations", "parameters", "peak_memory_mb"):
        return 0
    largest = max((abs(mean) for mean in means if math.isfinite(mean)), default=0.0)
    return max(0, 3 - len(f"{largest:.0f}") + 1) if largest >= 10 else 2 if name in COSTS and largest >= 1 else 3
