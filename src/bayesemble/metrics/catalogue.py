"""The scores that tables and pages show: what they are called, which way is better, and what they say.

One row for each score. The command line, the report and its verdict read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Score:
    """How a score is shown and judged."""

    heading: str
    """What it is called; a line may end where it has a line break."""
    name: str
    """What it is called in full."""
    better: Literal["higher", "lower"] | float
    """Which way is better, or the value that is best."""
    meaning: str
    digits: int = 3
    in_terminal: bool = False
    """Whether a comparison shows it in a terminal, which is 80 characters wide."""
    on_page: bool = True

    @property
    def title(self) -> str:
        """The heading in one line, as it begins a sentence."""
        return self.heading[0].upper() + self.heading[1:].replace("\n", " ")

    @property
    def arrow(self) -> str:
        """Which way is better, as a sign; nothing where neither is."""
        return {"higher": "↑", "lower": "↓"}.get(str(self.better), "")

    @property
    def direction(self) -> str:
        """Which way is better, in words."""
        return f"{self.better} is better" if isinstance(self.better, str) else f"{self.better:g} is best"

    def loss(self, value: float) -> float:
        """A number that is lower where the score is better; what is no number is worst."""
        if math.isnan(value):
            return math.inf
        if isinstance(self.better, str):
            return -value if self.better == "higher" else value
        return abs(value - self.better)


SCORES = {
    "accuracy": Score(
        "accuracy", "accuracy", "higher", "share of rows whose most probable class is right", in_terminal=True
    ),
    "rmse": Score(
        "RMSE",
        "root mean squared error",
        "lower",
        "root mean squared error of the mean, in units of the target",
        in_terminal=True,
    ),
    "nll": Score(
        "NLL",
        "negative log likelihood",
        "lower",
        "mean -log probability (density) of the targets, in nats per row",
        in_terminal=True,
    ),
    "nll_per_label": Score(
        "NLL per label",
        "negative log likelihood of a label",
        "lower",
        "NLL of rows that have several labels, such as pixels or tokens, by the number of these",
    ),
    "ece": Score(
        "ECE",
        "expected calibration error",
        "lower",
        "mean gap between confidence and accuracy in 15 bins",
        in_terminal=True,
    ),
    "brier": Score("Brier", "Brier score", "lower", "squared distance of the probabilities from the truth"),
    "crps": Score(
        "CRPS",
        "continuous ranked probability score",
        "lower",
        "distance of the predicted distribution from the target, in its units",
    ),
    "coverage_90": Score(
        "in 90 %\ninterval",
        "coverage of the 90 % interval",
        0.9,
        "share of targets inside the 90 % interval",
        in_terminal=True,
    ),
    "ood_auroc": Score(
        "foreign\nAUROC",
        "foreign data told apart",
        "higher",
        "chance that a foreign row is more uncertain than a known one; 0.5 is guessing",
        in_terminal=True,
    ),
    "aurc": Score(
        "AURC",
        "area under the risk-coverage curve",
        "lower",
        "risk, averaged over all shares of rows that are answered",
    ),
    "overconfidence": Score(
        "overconfidence",
        "overconfidence",
        0.0,
        "mean confidence minus accuracy; above 0 is too sure, below not sure enough",
        on_page=False,
    ),
    "ood_auroc_epistemic": Score(
        "foreign AUROC,\nepistemic",
        "foreign data told apart by disagreement",
        "higher",
        "ood_auroc by what members disagree about alone; 0.5 for a single model",
        on_page=False,
    ),
}
