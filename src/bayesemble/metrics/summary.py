"""The scores of a predictive distribution, by the kind of its target: at once, or gathered part by part.

Sums are kept, not rows, so that any number of rows can be scored in bounded memory. Only telling foreign data apart
needs the doubt of every row: two numbers each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.metrics.calibration import reliability
from bayesemble.metrics.ood import auroc
from bayesemble.metrics.scores import accuracy, brier, coverage, nll, rmse
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive, SurvivalPredictive

_BINS = 15


class Summary:
    """Gathers scores over parts of a data set: `update` with each, then `compute`.

    The result equals that of `summarise` on all rows at once.
    """

    def __init__(self, ood: bool = False) -> None:
        """With `ood=True`, the uncertainty of each row is kept, so that `update_ood` can be used."""
        self.num_rows = 0
        self.sums: dict[str, tuple[float, int]] = {}
        self.bins = torch.zeros(3, _BINS, dtype=torch.float64)  # totals of confidence, accuracy and rows
        self.uncertainties: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        if ood:
            self.uncertainties = {"ood_auroc": ([], []), "ood_auroc_epistemic": ([], [])}

    def update(self, predictive: Predictive, targets: Any) -> None:
        """Add rows with known targets."""
        self._keep_uncertainties(predictive, ood=False)
        rows = int(predictive.rows_that_count(targets).sum())
        self.num_rows += rows
        if not rows:
            return
        self._add({"nll": nll(predictive, targets)}, rows)
        if isinstance(predictive, ClassPredictive):
            predictive, targets = predictive.counted(targets)
            means = {"accuracy": accuracy(predictive, targets), "brier": brier(predictive, targets)}
            means["overconfidence"] = float(predictive.probs.amax(-1).double().mean()) - means["accuracy"]
            self._add(means, targets.numel())
            table = reliability(predictive, targets, bins=_BINS)
            shares = torch.stack([table.confidence, table.accuracy, torch.ones_like(table.confidence)])
            self.bins.index_add_(1, table.index, shares * table.count)
        elif isinstance(predictive, RealPredictive):
            found = {"coverage_90": coverage(predictive, targets, 0.9)}
            if not isinstance(predictive, SurvivalPredictive):  # nobody knows how far off a censored time is
                found["rmse"] = rmse(predictive, targets) ** 2
            self._add(found, rows)

    def _add(self, means: dict[str, float], count: int) -> None:
        """Add means over so many rows, or labels of rows."""
        for name, mean in means.items():
            total, number = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + mean * count, number + count

    def update_ood(self, predictive: Predictive) -> None:
        """Add rows of foreign data, which have no targets."""
        if not self.uncertainties:
            raise DataError("foreign data was not announced; make it Summary(ood=True)")
        self._keep_uncertainties(predictive, ood=True)

    def compute(self) -> dict[str, float]:
        """All scores of the rows gathered so far."""
        if not self.sums:
            raise DataError("there is nothing to score; update it with predictions and targets first")
        scores = {name: total / count for name, (total, count) in self.sums.items()}
        if "rmse" in scores:
            scores["rmse"] **= 0.5
        if self.bins.any():
            confidence, right, count = self.bins
            scores["ece"] = float((confidence - right).abs().sum() / count.sum())
        for name, (familiar, ood) in self.uncertainties.items():
            if ood:
                scores[name] = auroc(torch.cat(familiar), torch.cat(ood))
        return scores

    def _keep_uncertainties(self, predictive: Predictive, ood: bool) -> None:
        for name, measure in (("ood_auroc", "total"), ("ood_auroc_epistemic", "epistemic")):
            if name in self.uncertainties:
                self.uncertainties[name][ood].append(predictive.uncertainty(measure))


def summarise(predictive: Predictive, targets: Any, ood: Predictive | None = None) -> dict[str, float]:
    """All scores that apply. With predictions of foreign data, also how well doubt tells it apart."""
    summary = Summary(ood=ood is not None)
    summary.update(predictive, targets)
    if ood is not None:
        summary.update_ood(ood)
    return summary.compute()
