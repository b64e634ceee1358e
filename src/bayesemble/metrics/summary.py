"""The scores of a predictive distribution, by the kind of its target: at once, or gathered part by part.

Sums are kept, not rows, so that any number of rows can be scored in bounded memory. Only telling foreign data apart
needs the doubt of every row: two numbers each. Rows may have weights, see `metrics.scores`; telling foreign data apart
counts all rows alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import row_weights
from bayesemble.core.errors import DataError
from bayesemble.metrics.calibration import reliability
from bayesemble.metrics.ood import auroc
from bayesemble.metrics.scores import accuracy, brier, counted, coverage, nll, rmse, row_mean
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive, SurvivalPredictive

_BINS = 15


class Summary:
    """Gathers scores over parts of a data set: `update` with each, then `compute`.

    The result equals that of `summarise` on all rows at once.
    """

    def __init__(self, ood: bool = False) -> None:
        """With `ood=True`, the uncertainty of each row is kept, so that `update_ood` can be used."""
        self.num_rows = 0
        self.sums: dict[str, tuple[float, float]] = {}
        self.bins = torch.zeros(3, _BINS, dtype=torch.float64)  # totals of confidence, accuracy and rows
        self.uncertainties: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        if ood:
            self.uncertainties = {"ood_auroc": ([], []), "ood_auroc_epistemic": ([], [])}

    def update(self, predictive: Predictive, targets: Any, weights: Any = None) -> None:
        """Add rows with known targets, and weights if they do not count alike."""
        self._keep_uncertainties(predictive, ood=False)
        counts = predictive.rows_that_count(targets)
        own = None if weights is None else row_weights(weights, len(counts), torch.float64)
        rows = int(counts.sum()) if own is None else float(own[counts].sum())
        self.num_rows += int(counts.sum())
        if not rows:
            return
        of_rows = nll(predictive, targets, own)
        self._add({"nll": of_rows}, rows)
        if isinstance(predictive, ClassPredictive):
            found, labels, each = counted(predictive, targets, own)
            means = {"accuracy": accuracy(predictive, targets, own), "brier": brier(predictive, targets, own)}
            means["overconfidence"] = row_mean(found.probs.amax(-1).double(), each) - means["accuracy"]
            num_labels = labels.numel() if each is None else float(each.sum())
            if predictive.probs.dim() > 2:  # pixels or tokens, all of which the NLL of a row is about
                means["nll_per_label"] = of_rows * rows / num_labels
            self._add(means, num_labels)
            table = reliability(predictive, targets, bins=_BINS, weights=own)
            shares = torch.stack([table.confidence, table.accuracy, torch.ones_like(table.confidence)])
            self.bins.index_add_(1, table.index, shares * table.count)
        elif isinstance(predictive, RealPredictive):
            means = {"coverage_90": coverage(predictive, targets, 0.9, own)}
            if not isinstance(predictive, SurvivalPredictive):  # nobody knows how far off a censored time is
                means["rmse"] = rmse(predictive, targets, own) ** 2
            self._add(means, rows)

    def _add(self, means: dict[str, float], count: float) -> None:
        """Add means over so many rows, or labels of rows, or over the sum of their weights."""
        for name, mean in means.items():
            total, number = self.sums.get(name, (0.0, 0.0))
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


def summarise(
    predictive: Predictive, targets: Any, ood: Predictive | None = None, weights: Any = None
) -> dict[str, float]:
    """All scores that apply. With predictions of foreign data, also how well doubt tells it apart.

    Rows count by their `weights`, if any are given, but for that last question, in which all count alike.
    """
    summary = Summary(ood=ood is not None)
    summary.update(predictive, targets, weights)
    if ood is not None:
        summary.update_ood(ood)
    return summary.compute()
