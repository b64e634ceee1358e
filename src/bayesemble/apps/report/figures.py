"""The figures of a comparison: a table of them, and what was drawn of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from bayesemble import metrics, plots
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.report.figure import (
    INCHES,
    DrawOne,
    Figure,
    by_itself,
    draw_apart,
    draw_together,
    several,
    thinned,
)
from bayesemble.apps.report.figures_by_target import FIGURES_OF_CLASSES, FIGURES_OF_NUMBERS, size_curve
from bayesemble.apps.report.opened_runs import Shown
from bayesemble.apps.report.page import drawing
from bayesemble.core.errors import BayesembleError
from bayesemble.diagnostics import weighting
from bayesemble.diagnostics.plots.style import colour
from bayesemble.metrics.catalogue import SCORES
from bayesemble.metrics.selective import RiskCoverage
from bayesemble.predictive import Predictive

DRAWN_SCORES = ("nll", "accuracy", "rmse", "ood_auroc", "ece", "crps")
"""Scores that have a figure: the first three of them that all methods have."""
_POINTS_OF_A_LINE = 200
_EPOCHS_OF_A_HISTORY = 100
_MEMBERS_OF_A_HISTORY = 10
_MOST_WEIGHED = 20


@dataclass
class Drawn:
    """What was drawn, by name, and what could not be."""

    drawings: dict[str, str] = field(default_factory=dict)
    multiples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """A drawing for each method, with its label."""
    titles: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    weighed: str = ""
    """The method whose members were weighed."""


def draw_figures(comparison: Comparison, shown: Sequence[Shown]) -> Drawn:
    """Draw all that applies."""
    drawn = Drawn()
    _attempt("Scores over seeds", drawn, partial(_draw_scores, comparison, drawn))
    if shown:
        classes = comparison.data.get("kind") != "regression"
        for figure in (*(FIGURES_OF_CLASSES if classes else FIGURES_OF_NUMBERS), *FIGURES):
            drawn.titles[figure.name] = figure.title
            _attempt(figure.title, drawn, partial(_draw, figure, comparison, shown, drawn))
        _attempt("Weights of members", drawn, partial(_draw_weights, shown, drawn))
    return drawn


def _attempt(title: str, drawn: Drawn, draw: Callable[[], None]) -> None:
    try:
        draw()
    except BayesembleError as error:
        drawn.missing.append(f"{title}: {error}")


def _draw(figure: Figure, comparison: Comparison, shown: Sequence[Shown], drawn: Drawn) -> None:
    chosen = figure.choose(shown)
    if not chosen:
        drawn.missing.extend([figure.absent] if figure.absent else [])
    elif figure.apart:
        drawn.multiples[figure.name] = draw_apart(figure.name, figure.prepare(chosen), chosen)
    else:
        drawn.drawings[figure.name] = draw_together(
            figure.name, figure.prepare(chosen), chosen, labels=comparison.labels
        )


# --- one for all kinds of targets ---


def _risk(one: Shown, ax: Any) -> None:
    classes = one.split.num_classes is not None
    quantity = "Error rate of the kept rows" if classes else "Squared error of the kept rows"
    curve = metrics.risk_coverage(one.predictive, one.targets)
    # The risk of the first few rows is noise.
    indices = thinned(len(curve.risk), _POINTS_OF_A_LINE, first=len(curve.risk) // 20)
    some = RiskCoverage(curve.coverage[indices], curve.risk[indices])
    plots.plot_risk_coverage(some, ax, quantity=quantity, label=one.label, color=one.colour)


def _ood(shown: Sequence[Shown]) -> DrawOne:
    """Uncertainty of known and foreign rows. Bins are the same for all methods."""
    classes = shown[0].split.num_classes
    known = {one.label: _uncertainty(one.predictive, classes) for one in shown}
    ood = {one.label: _uncertainty(one.ood, classes) for one in shown if one.ood is not None}
    every = torch.cat([*known.values(), *ood.values()]).numpy()
    low = 0.0 if classes is not None else float(np.quantile(every, 0.005))
    high = math.log(classes) if classes is not None else float(np.quantile(every, 0.995))
    edges = np.linspace(low, high, 26).tolist()
    quantity, unit = ("Entropy", "nat") if classes is not None else ("Log10 of the spread", "decade")

    def draw(one: Shown, ax: Any) -> None:
        look: Any = {"quantity": quantity, "unit": unit, "label": one.label, "color": one.colour}
        plots.plot_entropy(known[one.label], ood.get(one.label), ax, bins=edges, **look)

    return draw


def _uncertainty(predictive: Predictive, classes: int | None) -> torch.Tensor:
    """Entropy of classes; of numbers log10 of the standard deviation, which can differ by orders of magnitude."""
    total = predictive.uncertainty()
    return total if classes is not None else total.sqrt().log10()


def _forces(one: Shown, ax: Any) -> None:
    plots.plot_forces(thinned_history(one.ensemble.history), ax, label=one.label, color=one.colour)


def _pushed(shown: Sequence[Shown]) -> list[Shown]:
    return [one for one in shown if any("repulsion_norm" in row for row in one.ensemble.history)]


FIGURES = (
    Figure("risk", "Risk against coverage", by_itself(_risk)),
    Figure(
        "ood",
        "Doubt on known and on foreign data",
        _ood,
        lambda shown: shown if any(one.ood is not None for one in shown) else [],
        apart=True,
    ),
    Figure(
        "size_nll",
        "NLL against ensemble size",
        size_curve(metrics.nll, "NLL (nats per row)"),
        several,
        absent="Scores against ensemble size: every method here is a single network.",
    ),
    Figure("forces", "Driving and repelling forces", by_itself(_forces), _pushed),
)


# --- drawings that are not made method by method ---


def _draw_scores(comparison: Comparison, drawn: Drawn) -> None:
    rows = [row for row in comparison.summary() if "failure" not in row]
    colours = {label: colour(number) for number, label in enumerate(comparison.labels)}
    for name in [name for name in DRAWN_SCORES if rows and all(name in row for row in rows)][:3]:
        higher = SCORES[name].better == "higher"
        quantity = f"{SCORES[name].title} ({SCORES[name].direction})"

        def draw(ax: Any, name: str = name, higher: bool = higher, quantity: str = quantity) -> None:
            plots.plot_scores(rows, name, ax, quantity=quantity, higher_is_better=higher, colors=colours)
            ax.set_yticklabels([_short(tick.get_text()) for tick in ax.get_yticklabels()])

        height = max(INCHES[1] * 0.7, 0.6 + 0.32 * len(rows))
        drawn.drawings[f"score_{name}"] = drawing(f"score_{name}", draw, size=(INCHES[0], height))


def _draw_weights(shown: Sequence[Shown], drawn: Drawn) -> None:
    """Those of the best method whose members themselves are averaged, not networks drawn from them."""
    own = [one for one in shown if 1 < one.predictive.num_members == one.ensemble.num_members <= _MOST_WEIGHED]
    if not own:
        drawn.missing.append(
            f"Weights of members: no method here averages between 2 and {_MOST_WEIGHED} members of its own."
        )
        return
    chosen = min(own, key=lambda one: metrics.nll(one.predictive, one.targets))
    split = chosen.split
    weights = {
        "equal": torch.full((chosen.predictive.num_members,), 1 / chosen.predictive.num_members),
        "evidence": weighting.evidence(chosen.ensemble, (split.x_train, split.y_train)).weights,
        "stacking": weighting.stacking_weights(chosen.predictive.member_log_prob(chosen.targets).double()),
    }
    drawn.weighed = chosen.label

    def draw(ax: Any) -> None:
        plots.plot_weights(weights, ax, label=chosen.label, color=chosen.colour)
        ax.set_ylim(0, 1.25 * max(float(some.max()) for some in weights.values()))
        ax.legend(ax.containers, list(weights), loc="upper center", ncols=3, frameon=False, fontsize="small")

    drawn.drawings["weights"] = drawing("weights", draw, size=INCHES)


def history_drawing(one: Shown) -> str:
    """The losses of one method over its training."""
    return draw_together(f"history-{one.number}", _history, [one], labels=[])


def _history(one: Shown, ax: Any) -> None:
    plots.plot_history(thinned_history(one.ensemble.history), ax, label=one.label, color=one.colour)


def thinned_history(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history of fewer epochs, the last one among them, and fewer members, for figures."""
    return [
        {
            key: value[:_MEMBERS_OF_A_HISTORY] if isinstance(value, list) else value
            for key, value in history[index].items()
        }
        for index in thinned(len(history), _EPOCHS_OF_A_HISTORY)
    ]


def _short(label: str) -> str:
    """A label in lines that leave room for the figure."""
    return label.replace(":", ":\n", 1).replace(",", ",\n")
