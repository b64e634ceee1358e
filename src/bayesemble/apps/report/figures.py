"""The figures of a comparison: one drawing for all methods, or, where they would cover one another, one for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bayesemble import metrics, plots
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.report.figures_by_target import draw_classes, draw_numbers, thinned
from bayesemble.apps.report.opened_runs import Shown
from bayesemble.apps.report.page import drawing
from bayesemble.core.errors import BayesembleError
from bayesemble.diagnostics import weighting
from bayesemble.diagnostics.plots.style import PALETTE, colour
from bayesemble.metrics.catalogue import SCORES
from bayesemble.metrics.curves import SizeCurve
from bayesemble.metrics.selective import RiskCoverage

DRAWN_SCORES = ("nll", "accuracy", "rmse", "ood_auroc", "ece", "crps")
"""Scores that have a figure: the first three of them that all methods have."""
_SIZE = (4.0, 3.0)  # inches
_SMALL = (3.0, 2.2)
_POINTS = 200  # of a line
_EPOCHS = 100  # of a history
_MEMBERS = 10  # lines of a history
_SIZES = 10  # of ensembles
_MANY = 12  # networks; from here on their number is drawn on a logarithmic scale
_WEIGHED = 20  # members whose weights are drawn
_AGAIN = (0, (5, 1.5, 1, 1.5))  # lines of a method whose colour was used before


@dataclass
class Figures:
    """What was drawn, by name, and what could not be."""

    comparison: Comparison
    shown: Sequence[Shown]
    drawings: dict[str, str] = field(default_factory=dict)
    multiples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """A drawing for each method, with its label."""
    missing: list[str] = field(default_factory=list)
    weighed: str = ""
    """The method whose members were weighed."""

    def draw(self) -> None:
        """Draw all that applies."""
        classes = self.comparison.data.get("kind") != "regression"
        self._try("scores", self._scores)
        if not self.shown:
            return
        self._try("calibration", lambda: (draw_classes if classes else draw_numbers)(self))
        for part in (self._risk, self._ood, self._sizes, self._forces, self._weights):
            self._try(part.__name__.strip("_"), part)

    def _try(self, name: str, part: Callable[[], None]) -> None:
        try:
            part()
        except BayesembleError as error:
            self.missing.append(f"The figure of {name}: {error}")

    def together(self, name: str, draw: Callable[[Shown, Any], Any], some: Sequence[Shown] | None = None) -> None:
        """One drawing for all methods. The switches of the page are its legend."""

        def draw_all(ax: Any) -> None:
            for one in self.shown if some is None else some:
                draw(one, ax)
            _finish(ax, self.comparison.labels)

        self.drawings[name] = drawing(name, draw_all, size=_SIZE)

    def apart(self, name: str, draw: Callable[[Shown, Any], Any]) -> None:
        """One small drawing for each method."""

        def draw_one(one: Shown) -> Callable[[Any], None]:
            def finished(ax: Any) -> None:
                draw(one, ax)
                _finish(ax, [])

            return finished

        self.multiples[name] = [
            (one.label, drawing(f"{name}-{one.number}", draw_one(one), size=_SMALL)) for one in self.shown
        ]

    def _scores(self) -> None:
        rows = [row for row in self.comparison.summary() if "failure" not in row]
        colours = {label: colour(number) for number, label in enumerate(self.comparison.labels)}
        for score in [name for name in DRAWN_SCORES if rows and all(name in row for row in rows)][:3]:
            higher = SCORES[score].better == "higher"
            words = f"{SCORES[score].title} ({SCORES[score].direction})"

            def draw(ax: Any, score: str = score, higher: bool = higher, words: str = words) -> None:
                plots.plot_scores(rows, score, ax, quantity=words, higher_is_better=higher, colors=colours)
                ax.set_yticklabels([_short(tick.get_text()) for tick in ax.get_yticklabels()])

            height = max(_SIZE[1] * 0.7, 0.6 + 0.32 * len(rows))
            self.drawings[f"score_{score}"] = drawing(f"score_{score}", draw, size=(_SIZE[0], height))

    def _risk(self) -> None:
        classes = self.shown[0].split.num_classes is not None
        words = "Error rate of the kept rows" if classes else "Squared error of the kept rows"

        def draw(one: Shown, ax: Any) -> None:
            curve = metrics.risk_coverage(one.predictive, one.targets)
            # The first rows are so few that their risk is noise.
            places = thinned(len(curve.risk), _POINTS, first=len(curve.risk) // 20)
            some = RiskCoverage(curve.coverage[places], curve.risk[places])
            plots.plot_risk_coverage(some, ax, quantity=words, label=one.label, color=one.colour)

        self.together("risk", draw)

    def _ood(self) -> None:
        """Doubt on known and foreign data. Bins are the same for all methods."""
        if all(one.ood is None for one in self.shown):
            return
        classes = self.shown[0].split.num_classes
        known = {one.label: _uncertainties(one.predictive, classes) for one in self.shown}
        ood = {one.label: _uncertainties(one.ood, classes) for one in self.shown if one.ood is not None}
        every = torch.cat([*known.values(), *ood.values()]).numpy()
        low = 0.0 if classes is not None else float(np.quantile(every, 0.005))
        high = math.log(classes) if classes is not None else float(np.quantile(every, 0.995))
        edges = np.linspace(low, high, 26).tolist()
        quantity, unit = ("Entropy", "nat") if classes is not None else ("Log10 of the spread", "decade")

        def draw(one: Shown, ax: Any) -> None:
            words: Any = {"quantity": quantity, "unit": unit, "label": one.label, "color": one.colour}
            plots.plot_entropy(known[one.label], ood.get(one.label), ax, bins=edges, **words)

        self.apart("ood", draw)

    def _sizes(self) -> None:
        classes = self.shown[0].split.num_classes is not None
        several = [one for one in self.shown if one.several]
        if not several:
            self.missing.append("Scores against ensemble size: every method here is a single network.")
            return
        self.together("size_nll", lambda one, ax: _draw_sizes(one, ax, metrics.nll, "NLL (nats per row)"), several)
        score: Callable[[Any, Any], float] = metrics.accuracy if classes else metrics.rmse
        words = "Accuracy (share of rows)" if classes else "RMSE (units of the target)"
        self.together("size_score", lambda one, ax: _draw_sizes(one, ax, score, words), several)

    def _forces(self) -> None:
        pushed = [one for one in self.shown if any("repulsion_norm" in row for row in one.ensemble.history)]
        if pushed:
            self.together(
                "forces",
                lambda one, ax: plots.plot_forces(
                    thinned_history(one.ensemble.history), ax, label=one.label, color=one.colour
                ),
                pushed,
            )

    def _weights(self) -> None:
        """Of the best method whose members themselves are averaged, not networks drawn from them."""
        own = [one for one in self.shown if 1 < one.predictive.num_members == one.ensemble.num_members <= _WEIGHED]
        if not own:
            self.missing.append("Weights of members: no method here averages between 2 and 20 members of its own.")
            return
        chosen = min(own, key=lambda one: metrics.nll(one.predictive, one.targets))
        split = chosen.split
        weights = {
            "equal": torch.full((chosen.predictive.num_members,), 1 / chosen.predictive.num_members),
            "evidence": weighting.evidence(chosen.ensemble, (split.x_train, split.y_train)).weights,
            "stacking": weighting.stacking_weights(chosen.predictive.member_log_prob(chosen.targets).double()),
        }
        self.weighed = chosen.label

        def draw(ax: Any) -> None:
            plots.plot_weights(weights, ax, label=chosen.label, color=chosen.colour)
            ax.set_ylim(0, 1.25 * max(float(some.max()) for some in weights.values()))
            ax.legend(ax.containers, list(weights), loc="upper center", ncols=3, frameon=False, fontsize="small")

        self.drawings["weights"] = drawing("weights", draw, size=_SIZE)


def history_drawing(one: Shown) -> str:
    """The losses of one method over its training."""

    def draw(ax: Any) -> None:
        plots.plot_history(thinned_history(one.ensemble.history), ax, label=one.label, color=one.colour)
        _finish(ax, [])

    return drawing(f"history-{one.number}", draw, size=_SIZE)


def thinned_history(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many epochs, the last one among them, and so many members."""
    return [
        {key: value[:_MEMBERS] if isinstance(value, list) else value for key, value in history[place].items()}
        for place in thinned(len(history), _EPOCHS)
    ]


def _draw_sizes(one: Shown, ax: Any, score: Callable[[Any, Any], float], words: str) -> None:
    predictive = one.predictive
    num = int((predictive.weights > 0).sum())
    sizes = sorted({round(size) for size in np.geomspace(1, num, _SIZES)})
    subsets = max(2, min(20, 2_000_000 // (predictive.num_rows * num)))
    curve: SizeCurve = metrics.size_curve(predictive, one.targets, score, sizes, subsets)
    plots.plot_size_curve(curve, ax, quantity=words, label=one.label, color=one.colour)
    if num > _MANY:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:.0f}")


def _uncertainties(predictive: Any, classes: int | None) -> torch.Tensor:
    """Entropy of classes; of numbers log10 of the standard deviation, which can differ by orders of magnitude."""
    return predictive.uncertainty() if classes is not None else predictive.uncertainty().sqrt().log10()


def _finish(ax: Any, labels: Sequence[str]) -> None:
    """Take the legend away, and dash the lines of methods that share their colour with one before them."""
    if ax.get_legend() is not None:
        ax.get_legend().remove()
    again = {f"method-{label}" for label in labels[len(PALETTE) :]}
    for line in ax.lines:
        if line.get_gid() in again and line.get_linestyle() == "-":
            line.set_linestyle(_AGAIN)


def _short(label: str) -> str:
    """A label in lines that leave room for the figure."""
    return label.replace(":", ":\n", 1).replace(",", ",\n")
