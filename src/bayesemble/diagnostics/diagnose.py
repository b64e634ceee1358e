"""An ensemble in words: are its members different, which does the data prefer, how far can it be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bayesemble.diagnostics import weighting
from bayesemble.diagnostics.duplicates import Distinct, distinct
from bayesemble.diagnostics.weighting import Evidence
from bayesemble.metrics import Summary
from bayesemble.training.ensemble import Ensemble

_PENALISED = "penalised likelihood"
_SAME_HEIGHT = 1.0  # nats: posterior weights then differ by a factor of e at most


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found, as numbers; `str(diagnosis)` says it in words."""

    num_members: int
    num_rows: int
    distinct: Distinct
    evidence: Evidence
    stacking_gain: float
    """Nats per row that the best weights gain over the present ones on the same rows; an upper bound."""
    scores: dict[str, float]
    maximised: str | None
    """What training maximised for all networks: "likelihood", "penalised likelihood", or None if no such thing."""
    penalised_range: float | None
    """By how many nats the penalised log likelihoods of members differ, if it is these that training maximised."""

    def __str__(self) -> str:
        return "\n".join([*self.about_members(), *self._about_trust()])

    def about_theorem(self) -> str:
        """Whether averaging the members is empirical Bayes: exact inference under a prior of point masses at them.

        That holds if all have reached the maximum of the likelihood, or, trained under a prior, of the likelihood times
        its density; then all are equally likely.
        """
        if self.num_members == 1:
            return "A single network is a point mass: there is nothing to average, and no claim of empirical Bayes."
        if self.maximised is None:
            return (
                "These networks are not trained to the maximum of one function that all have in common (they are "
                "drawn, sampled, pushed apart, or have data of their own): the theorem that equal weights are exact "
                "empirical Bayes does not speak of them."
            )
        own = self.evidence.likelihood_range if self.penalised_range is None else self.penalised_range
        met = "is met on these rows" if own <= _SAME_HEIGHT else "is not met on these rows"
        kind = (
            "of maximum likelihood" if self.penalised_range is None else "MAP points, of maximum penalised likelihood"
        )
        return (
            f"Averaging members with equal weights is exact empirical Bayes if all of them are {kind} on the training "
            f"rows; this {met}, where they differ by {own:.3g} nats."
        )

    def about_members(self) -> list[str]:
        """Sentences about members and their weights: what does not depend on the units of the target."""
        functions, weights = len(self.distinct.by_function), len(self.distinct.by_weights)
        same = [group for group in self.distinct.by_function if len(group) > 1]
        evidence = self.evidence
        return [
            f"{functions} of {self.num_members} members are distinct functions ({weights} distinct in their weights).",
            *(f"Members {', '.join(map(str, group))} compute the same: keep one of them." for group in same),
            f"Equal weights cost {evidence.gap:.3g} nats against Bayes' rule on these {self.num_rows} rows, whose "
            f"posterior has {evidence.effective_members:.1f} effective members (log likelihoods differ by up to "
            f"{evidence.likelihood_range:.3g} nats).",
            f"The best fixed weights would gain {self.stacking_gain:.2g} nats per row here, at most.",
            self.about_theorem(),
        ]

    def _about_trust(self) -> list[str]:
        scores = self.scores
        if "accuracy" in scores:
            lean = "too sure of itself" if scores["overconfidence"] > 0 else "not sure enough"
            verdict = "well calibrated" if scores["ece"] < 0.02 else lean
            return [f"Accuracy {scores['accuracy']:.3f}, NLL {scores['nll']:.3f}, ECE {scores['ece']:.3f}: {verdict}."]
        inside = scores["coverage_90"]
        verdict = (
            "intervals fit" if abs(inside - 0.9) < 0.03 else f"intervals are too {'narrow' if inside < 0.9 else 'wide'}"
        )
        error = f"RMSE {scores['rmse']:.4g}, " if "rmse" in scores else ""
        return [f"{error}NLL {scores['nll']:.3f}; {inside:.1%} lie in the 90 % interval: {verdict}."]


def diagnose(ensemble: Ensemble, data: Any) -> Diagnosis:
    """Examine an ensemble on data `(x, y)`, a `Dataset` or a `DataLoader`; best on rows it was not trained on.

    On the training rows the weights are those of empirical Bayes, but the scores flatter.
    """
    ensemble = ensemble.weighed()
    summary, parts, first = Summary(), [], None
    for predictive, targets in ensemble.predictions(data):
        summary.update(predictive, targets)
        parts.append(predictive.member_log_prob(targets).double())
        first = predictive if first is None else first
    assert first is not None
    log_probs = torch.cat(parts, dim=1)
    weights = ensemble.draw().weights.double()
    found = Evidence(log_probs.sum(1), weights)
    best = weighting.stacking_weights(log_probs)

    def log_score(given: torch.Tensor) -> float:
        return float(torch.logsumexp(log_probs + given.log()[:, None], 0).mean())

    maximised = _maximised(ensemble)
    height = found.log_likelihoods + weighting.log_prior_of_members(ensemble) if maximised == _PENALISED else None
    return Diagnosis(
        num_members=len(log_probs),
        num_rows=log_probs.shape[1],
        distinct=distinct(ensemble.draw(), first),
        evidence=found,
        stacking_gain=log_score(best) - log_score(weights),
        scores=summary.compute(),
        maximised=maximised,
        penalised_range=None if height is None else float(height.max() - height.min()),
    )


def _maximised(ensemble: Ensemble) -> str | None:
    """What all networks that predictions average over are maxima of, if they are the ends of one plain training."""
    own = any(
        getattr(ensemble.method, name, False) for name in ("anchored", "bootstrap", "adversarial", "weight_decay")
    )
    if own or not ensemble.method.steps_alike or ensemble.task.mixed:
        return None
    return "likelihood" if ensemble.task.prior is None else _PENALISED
