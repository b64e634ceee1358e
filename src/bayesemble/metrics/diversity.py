"""Diversity: how differently do the members answer, and what is it worth?

Averages over members and pairs go by the weights of the prediction; with equal weights they are plain means.
Diversity alone is no merit: random guesses are as diverse as can be. Read it beside the accuracy of the members, or
ask `diversity_gain` what it buys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.arrays import numbers
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.core.types import is_named
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive, match_targets


@dataclass(frozen=True)
class Ambiguity:
    """The squared error of an average, taken apart: `ensemble == members - variance`."""

    members: float
    """Mean squared error of the members on their own."""
    ensemble: float
    """Mean squared error of the averaged mean."""
    variance: float
    """Mean variance of the members' means around the averaged one: what averaging saves."""


# --- functions: what the members answer ---


def disagreement_matrix(predictive: ClassPredictive) -> Tensor:
    """Share of rows for which two members choose different classes, `(member, member)`; 0 on the diagonal.

    0 is the same function as far as choices go, 1 - 1/C what random choices among C classes give. Members that err
    often disagree often: compare only ensembles of like accuracy, or divide by the error rate.

    D_mn = mean_x [argmax p_m(x) != argmax p_n(x)]

    Reference: Fort, Hu & Lakshminarayanan (2019), "Deep ensembles: a loss landscape perspective".
    """
    choices = predictive.member_probs.argmax(-1).flatten(1)
    return torch.stack([(choices != one).double().mean(-1) for one in choices])


def disagreement(predictive: ClassPredictive) -> float:
    """Mean of `disagreement_matrix` over pairs of different members, each pair by the product of its weights.

    Neither end is good in itself: 0 means that averaging cannot change a choice. One member alone gives 0.

    sum_{m != n} w_m w_n D_mn / sum_{m != n} w_m w_n
    """
    return float(predictive.disagreement.double().mean())


def kl_matrix(predictive: ClassPredictive) -> Tensor:
    """Mean divergence of member n from member m in nats, `(member, member)`; not symmetric, 0 on the diagonal.

    Larger is more diverse. It is infinite where member n excludes (probability 0) what member m holds possible, and
    one such row is enough; `jensen_shannon_matrix` stays finite.

    K_mn = mean_x sum_c p_m(c|x) log( p_m(c|x) / p_n(c|x) )

    Reference: Kullback & Leibler (1951).
    """
    probs, logs = predictive.member_probs.double(), predictive.log_probs.double()
    return torch.stack([_divergences(*one, logs) for one in zip(probs, logs, strict=True)])


def _divergences(probs: Tensor, logs: Tensor, others: Tensor) -> Tensor:
    """KL from one member to each of the others, `(member,)`; a class of probability 0 adds nothing."""
    terms = torch.where(probs > 0, probs * (logs - others), 0.0)
    return _mean_over_rows(terms.sum(-1)).clamp_min(0)


def jensen_shannon_matrix(predictive: ClassPredictive) -> Tensor:
    """Mean Jensen-Shannon divergence of two members in nats, `(member, member)`; 0 on the diagonal, at most log 2.

    Larger is more diverse. It counts shifts of probability that change no choice, which `disagreement_matrix` does
    not see; confident members that contradict one another reach log 2, doubtful ones hardly differ.

    J_mn = mean_x H[(p_m + p_n) / 2] - (H[p_m] + H[p_n]) / 2

    Reference: Lin (1991), "Divergence measures based on the Shannon entropy".
    """
    probs = predictive.member_probs.double()
    entropies = _entropy(probs)
    rows = [_entropy((probs + one) / 2) - (entropies + own) / 2 for one, own in zip(probs, entropies, strict=True)]
    return torch.stack([_mean_over_rows(row) for row in rows]).clamp_min(0)


def jensen_shannon(predictive: ClassPredictive) -> float:
    """Jensen-Shannon divergence of all members at once, in nats: the mean mutual information over rows.

    Larger is more diverse; at most the entropy of the weights, log M for M equal members. One member alone gives 0.

    mean_x H[sum_m w_m p_m] - sum_m w_m H[p_m]

    Reference: Lin (1991), section IV.
    """
    return float(predictive.mutual_information.double().mean())


# --- weights: where the members are ---


def weight_cosine(members: Members, exclude: Iterable[str] = ()) -> Tensor:
    """Cosine between the parameters of two members, all stacked leaves taken as one vector: `(member, member)`.

    1 is the same direction; independent starts come near 0 in many dimensions. It misleads both ways: networks whose
    hidden units are only permuted or rescaled are the same function with a low cosine, and leaves that start alike
    (the ones of a norm layer) raise it, so leave them out. Shared leaves do not count. A member that is all zeros
    has no direction: NaN.

    C_mn = <w_m, w_n> / (|w_m| |w_n|)

    Args:
        members: Parameters with a member axis.
        exclude: Patterns of names to leave out, such as `"*norm*"`; `*` stands for anything.

    Reference: Fort, Hu & Lakshminarayanan (2019).
    """
    names = _kept_names(members, list(exclude))
    flat = (members.params[name].detach().flatten(1).double() for name in names)
    products = sum((leaf @ leaf.T for leaf in flat), start=torch.zeros((), dtype=torch.float64))
    lengths = products.diagonal().sqrt()
    return (products / lengths / lengths[:, None]).clamp(-1, 1)


def _kept_names(members: Members, exclude: list[str]) -> list[str]:
    stacked = [name for name in members.params if name not in members.shared]
    for pattern in exclude:
        if not any(is_named(name, [pattern]) for name in stacked):
            raise SettingError(f"no parameter is called {pattern!r}; the stacked ones are {', '.join(stacked)}")
    kept = [name for name in stacked if not is_named(name, exclude)]
    require(bool(kept), "no stacked parameter is left to compare; exclude fewer, or compare predictions instead")
    return kept


def effective_members(weights: Any, kind: str = "squares") -> float:
    """How many equally weighted members the weights are worth, from 1 (one has all) to their number (all equal).

    More is not better in itself: it says how far the average leans on few members, not how different they are.

    Args:
        weights: Non-negative numbers, one per member; they are normalised to sum to one.
        kind: "squares" for 1 / sum_m w_m^2, "entropy" for exp(-sum_m w_m log w_m), which is never smaller and
            forgives many small weights.

    Reference: Kish (1965), "Survey sampling"; Hill (1973), numbers of order 2 and 1.
    """
    require(kind in ("squares", "entropy"), f'kind is "squares" or "entropy", not {kind!r}')
    values = numbers(weights, "weights").double()
    if values.dim() != 1 or not (values >= 0).all() or not 0 < float(values.sum()) < float("inf"):
        raise DataError(f"weights must be non-negative numbers, one per member, not all zero, got {weights}")
    shares = values / values.sum()
    return float(1 / shares.square().sum() if kind == "squares" else torch.special.entr(shares).sum().exp())


# --- what diversity is worth ---


def error_correlation(predictive: ClassPredictive, targets: Any) -> float:
    """Mean correlation over pairs of members of being wrong (0/1) on the same rows. Lower is better.

    1 means that all fail together and averaging cannot help; 0 that errors are independent. A member that is right
    (or wrong) everywhere has no correlation with anyone: its pairs are left out. NaN if no pair is left, as for one
    member. With few errors it is mostly noise.

    Each pair counts by the product of its weights.

    Reference: Kuncheva & Whitaker (2003), "Measures of diversity in classifier ensembles", the coefficient rho.
    """
    predictive = predictive.weighed()
    wrong = (predictive.member_probs.argmax(-1) != predictive.labels(targets)).flatten(1).double()
    centred = wrong - wrong.mean(1, keepdim=True)
    varied = (wrong != wrong[:, :1]).any(1)
    centred, weights = centred[varied], predictive.weights.double()[varied]
    unit = centred / centred.norm(dim=1, keepdim=True)
    pairs = (weights * weights[:, None]).fill_diagonal_(0)
    return float(((unit @ unit.T).clamp(-1, 1) * pairs).sum() / pairs.sum())


def diversity_gain(predictive: Predictive, targets: Any) -> float:
    """How much better the average predicts than its members do on average, in nats of NLL. Higher is better, never < 0.

    It says what diversity buys, not whether the ensemble is good: poor members gain most. Infinite if a member gives
    probability 0 to what happened and another does not; rows that every member excludes add nothing.

    sum_m w_m NLL_m - NLL = mean over rows of log sum_m w_m p_m(y|x) - sum_m w_m log p_m(y|x)

    Reference: Abe et al. (2022), "Deep ensembles work, but are they necessary?", the Jensen gap.
    """
    predictive.need_members("diversity_gain")
    weighted = predictive.weights > 0
    own, weights = predictive.member_log_prob(targets)[weighted].double(), predictive.weights[weighted].double()
    together = torch.logsumexp(own + weights.log()[:, None], dim=0)
    apart = weights @ own
    return float(torch.where(together.isneginf(), 0.0, together - apart).mean().clamp_min(0))


def ambiguity(predictive: RealPredictive, targets: Any) -> Ambiguity:
    """Take the squared error of the averaged mean apart into the members' own error and their variance.

    A large variance is good only as far as it costs the members no accuracy: the two come from the same members, and
    only their difference is the error that is left.

    mean (y - f)^2 = sum_m w_m mean (y - f_m)^2 - sum_m w_m mean (f_m - f)^2,  f = sum_m w_m f_m; exact for any targets.

    Reference: Krogh & Vedelsby (1995), "Neural network ensembles, cross validation, and active learning".
    """
    predictive.need_members("ambiguity")
    predictive = predictive.weighed()
    means, weights = predictive.member_mean.double(), predictive.weights.double()
    values = match_targets(targets, means.shape).double()
    average = torch.tensordot(weights, means, dims=1)
    return Ambiguity(
        members=float(weights @ _mean_over_rows((values - means).square())),
        ensemble=float((values - average).square().mean()),
        variance=float(weights @ _mean_over_rows((means - average).square())),
    )


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)


def _mean_over_rows(values: Tensor) -> Tensor:
    """`(member, row, ...)` -> `(member,)`."""
    return values.flatten(1).mean(1)
