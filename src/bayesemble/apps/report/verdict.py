"""The verdict of a comparison in words: which method to use here, and how sure that is.

Methods are judged by the negative log likelihood of held-out rows, a proper score: only true probabilities make it
best. Seeds are pairs, since every method met the same split and start with the same seed. With d_s the difference of
two methods with seed s, and t the 97.5 % quantile of Student's distribution with S - 1 degrees of freedom,

    mean d +- t std(d) / sqrt(S)

is the 95 % interval of the difference. Where it does not hold 0 one method is clearly better, else both are tied. Of
the tied methods that are also close, the cheapest is recommended: a tie alone may only mean that seeds are few. What
is cheap goes by the seconds of training; by gradients, where seeds of one of them were trained together.

Reference: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from bayesemble.apps.compare.results import Comparison
from bayesemble.metrics.catalogue import SCORES

WORST_ECE = 0.05  # beyond it, probabilities should not be taken at their word
WORST_COVERAGE_GAP = 0.05
FEW_SEEDS = 5
HARMLESS_NATS = 0.01  # per row: a mean difference that hardly matters to anyone


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another with the same seeds: positive is better."""

    mean: float
    half: float | None
    """Half the width of the 95 % interval; None with a single seed."""
    num_seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval does not hold 0."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def interval(self) -> str:
        """The interval in words."""
        assert self.half is not None
        return f"{number(self.mean - self.half)} to {number(self.mean + self.half)}"


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, and in which words."""

    use: str | None
    """The method to use: the best one, or the cheapest of those that are as good; None if all failed."""
    best: str | None
    """The method with the lowest NLL."""
    tied: tuple[str, ...]
    """Those that cannot be told from the best, which is not among them; empty with a single seed."""
    sentences: tuple[str, ...]


def verdict(comparison: Comparison) -> Verdict:
    """Which method to use and why, with the margin over the next one and its uncertainty."""
    ranked = standing(comparison, "nll")
    failures = _failures(comparison)
    if not ranked:
        return Verdict(None, None, (), ("No method finished, so there is nothing to recommend.", *failures))
    best = ranked[0]
    if len(ranked) == 1:
        mean = number(mean_of(comparison, best, "nll"))
        words = [f"Only {best} finished, with an NLL of {mean} nats per row: there is nothing to compare it with."]
        return Verdict(best, best, (), (*words, *_warnings(comparison, best, ranked), *failures))
    if max(len(comparison.values(label, "nll")) for label in ranked) == 1:
        return Verdict(best, best, (), (*_one_seed(comparison, ranked), *failures))
    tied = tied_with_best(comparison, "nll")
    close = [label for label in tied if difference(comparison, best, label, "nll").mean < HARMLESS_NATS]
    price = _price(comparison, [best, *close])
    use = _cheapest(comparison, [best, *close], price)
    words = _tie(comparison, use, best, tied, price) if tied else _winner(comparison, ranked)
    return Verdict(use, best, tied, (*words, *_warnings(comparison, use, ranked), *failures))


def mean_of(comparison: Comparison, label: str, name: str) -> float:
    """Mean over seeds; NaN where there are none."""
    values = comparison.values(label, name)
    return fmean(values.values()) if values else math.nan


def difference(comparison: Comparison, one: str, other: str, name: str) -> Difference:
    """How much better one method is than another in a score, over the seeds that both have."""
    mine, theirs = (comparison.values(label, name) for label in (one, other))
    seeds = sorted(mine.keys() & theirs.keys())
    loss = SCORES[name].loss
    gaps = [loss(theirs[seed]) - loss(mine[seed]) for seed in seeds]
    if not gaps or not all(map(math.isfinite, gaps)):
        return Difference(fmean(gaps) if gaps else math.nan, 0.0 if gaps else None, len(gaps))
    half = _student(len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    return Difference(fmean(gaps), half, len(gaps))


def standing(comparison: Comparison, name: str) -> list[str]:
    """The methods from the best to the worst mean; those that failed with a seed come after those that did not."""
    seeds = {label: len(comparison.values(label, name)) for label in comparison.labels}
    there = [label for label in comparison.labels if seeds[label]]

    def place(label: str) -> tuple[int, float]:
        return -seeds[label], fmean(map(SCORES[name].loss, comparison.values(label, name).values()))

    return sorted(there, key=place)


def tied_with_best(comparison: Comparison, name: str) -> tuple[str, ...]:
    """The methods that finished as many seeds as the best one and cannot be told from it; none with a single seed."""
    ranked = standing(comparison, name)
    if not ranked:
        return ()
    best, *others = ranked
    enough = len(comparison.values(best, name))
    some = [label for label in others if len(comparison.values(label, name)) == enough > 1]
    return tuple(label for label in some if not difference(comparison, best, label, name).clear)


def number(value: float) -> str:
    """Three figures that count, without a sign of zero."""
    return f"{value:.3g}" if abs(value) >= 0.0005 else f"{value + 0.0:.4f}".replace("-0.0000", "0.0000")


def duration(seconds: float) -> str:
    """Seconds in a unit that reads well."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def listed(labels: list[str]) -> str:
    """Names in a sentence."""
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _student(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def _winner(comparison: Comparison, ranked: list[str]) -> list[str]:
    best, second = ranked[:2]
    gap = difference(comparison, best, second, "nll")
    return [
        f"Use {best}: it gives held-out rows the highest probability, with an NLL of "
        f"{number(mean_of(comparison, best, 'nll'))} nats per row.",
        f"It is clearly better than the next one, {second}, by {number(gap.mean)} nats per row "
        f"(95 % interval {gap.interval}, paired over {gap.num_seeds} seeds)."
        if gap.clear
        else f"The next one, {second}, finished fewer seeds, too few to say how far behind it is.",
    ]


def _tie(comparison: Comparison, use: str, best: str, tied: tuple[str, ...], price: str) -> list[str]:
    lowest = f"{number(mean_of(comparison, best, 'nll'))} nats per row"
    runner = tied[0] if use == best else use
    gap = difference(comparison, best, runner, "nll")
    margin = f"{number(gap.mean)} below that of {runner}, with a 95 % interval of {gap.interval}"
    if use == best:
        words = [
            f"Use {best}: it has the lowest NLL, {lowest}, though {listed(list(tied))} cannot be told from it with "
            f"{gap.num_seeds} seeds.",
            f"Its NLL is {margin}.",
        ]
    else:
        paid = mean_of(comparison, use, price)
        cost = duration(paid) if price == "train_seconds" else f"{paid:,.0f} gradients"
        words = [
            f"Use {use}: it is as good as {best}, within {HARMLESS_NATS} nats per row, and the cheapest such method to "
            f"train ({cost} per run).",
            f"The lowest NLL, {lowest}, is that of {best}, {margin} over {gap.num_seeds} seeds.",
        ]
    if gap.num_seeds < FEW_SEEDS:
        words.append("So few seeds tell only large differences apart; --seeds 5 or more would tell smaller ones.")
    return words


def _one_seed(comparison: Comparison, ranked: list[str]) -> list[str]:
    best, second = ranked[:2]
    gap = difference(comparison, best, second, "nll").mean
    lead = f", {number(gap)} below the next one, {second}" if math.isfinite(gap) else ""
    return [
        f"{best} has the lowest NLL, {number(mean_of(comparison, best, 'nll'))} nats per row{lead}.",
        "That is one seed only, which cannot tell luck from merit: repeat with --seeds 3 or more to rely on it.",
        *_warnings(comparison, best, ranked),
    ]


def _price(comparison: Comparison, labels: list[str]) -> str:
    """The cost that tells what is cheap: seconds, or gradients where some seconds are shares of a joint run."""
    shared = any(comparison.together(label) > 1 for label in labels)
    return "gradient_evaluations" if shared else "train_seconds"


def _cheapest(comparison: Comparison, labels: list[str], price: str) -> str:
    """The method of which that cost is lowest; the first where nothing is known of it."""
    costs = {label: mean_of(comparison, label, price) for label in labels}
    return min(labels, key=lambda label: math.inf if math.isnan(costs[label]) else costs[label])


def _warnings(comparison: Comparison, use: str, ranked: list[str]) -> list[str]:
    """What speaks against the method that is to be used."""
    words = []
    ece, inside = mean_of(comparison, use, "ece"), mean_of(comparison, use, "coverage_90")
    if ece > WORST_ECE:
        sure = mean_of(comparison, use, "overconfidence")
        manner = "" if math.isnan(sure) else " It is too sure of itself." if sure > 0 else " It is too cautious."
        words.append(
            f"But take care: confidence and accuracy of {use} are {number(ece)} apart on average (ECE).{manner} "
            "Recalibrate it on held-out rows before its probabilities are acted on."
        )
    if abs(inside - 0.9) > WORST_COVERAGE_GAP:
        manner = "narrow" if inside < 0.9 else "wide"
        words.append(
            f"But take care: the 90 % intervals of {use} hold {100 * inside:.0f} % of the targets: "
            f"they are too {manner}."
        )
    rivals = [(difference(comparison, label, use, "ood_auroc"), label) for label in ranked if label != use]
    clear = [(gap.mean, label, gap) for gap, label in rivals if gap.clear and gap.mean > 0]
    if clear:
        _, label, gap = max(clear, key=lambda found: found[0])
        own, other = (f"{mean_of(comparison, one, 'ood_auroc'):.3f}" for one in (use, label))
        words.append(
            f"If foreign data has to be noticed, {label} is clearly better: its doubt tells it apart with an AUROC of "
            f"{other} against {own} (95 % interval of the difference {gap.interval})."
        )
    return words


def _failures(comparison: Comparison) -> list[str]:
    words = []
    for label in comparison.labels:
        mine = [result for result in comparison.results if result.label == label]
        failed = [result for result in mine if result.failure is not None]
        if failed:
            share = "" if len(failed) == len(mine) else f" with {len(failed)} of {len(mine)} seeds"
            words.append(f"{label} failed{share}: {str(failed[0].failure).rstrip('.')}.")
    return words
