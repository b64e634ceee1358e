"""Doubt: one number per row that grows with how unsure a prediction is."""

from collections.abc import Callable

from torch import Tensor

from bayesemble.core.settings import require
from bayesemble.predictive.base import Predictive
from bayesemble.predictive.classes import ClassPredictive
from bayesemble.predictive.reals import RealPredictive

_OF_CLASSES: dict[str, Callable[[ClassPredictive], Tensor]] = {
    "total": lambda predictive: predictive.entropy,
    "epistemic": lambda predictive: predictive.mutual_information,
    "aleatoric": lambda predictive: predictive.expected_entropy,
    "disagreement": lambda predictive: predictive.disagreement,
    "max_probability": lambda predictive: 1 - predictive.probs.amax(-1),
    "member_std": lambda predictive: predictive.member_std,
}
_OF_REALS: dict[str, Callable[[RealPredictive], Tensor]] = {
    "total": lambda predictive: predictive.variance,
    "epistemic": lambda predictive: predictive.epistemic,
    "aleatoric": lambda predictive: predictive.aleatoric,
}
_ALIASES = {"entropy": "total", "mutual_information": "epistemic", "expected_entropy": "aleatoric"}


def measures(predictive: Predictive) -> tuple[str, ...]:
    """The measures of doubt that a prediction has, other names for the same thing left out."""
    return tuple(_OF_CLASSES if isinstance(predictive, ClassPredictive) else _OF_REALS)


def doubt(predictive: Predictive, measure: str = "total") -> Tensor:
    """One number per row, `(row,)`, that grows with doubt; what several outputs of a row have is added up.

    Entropies are in nats. The name in brackets means the same, and is for classes alone.

    | measure | classes | real numbers and counts |
    | --- | --- | --- |
    | "total" ("entropy") | entropy of the averaged probabilities | variance |
    | "epistemic" ("mutual_information") | what the members disagree about | variance between the members |
    | "aleatoric" ("expected_entropy") | what each member is unsure of | variance inside the members |
    | "disagreement" | probability that two members choose differently | |
    | "max_probability" | 1 - the largest averaged probability | |
    | "member_std" | standard deviation of a probability over the members | |

    With one member "epistemic", "disagreement" and "member_std" are 0 everywhere and tell nothing.
    """
    known = _OF_CLASSES.keys() | _ALIASES.keys()
    require(measure in known, f"unknown measure of doubt {measure!r}; there are {', '.join(sorted(known))}")
    if isinstance(predictive, ClassPredictive):
        values = _OF_CLASSES[_ALIASES.get(measure, measure)](predictive)
    else:
        assert isinstance(predictive, RealPredictive)
        possible = ", ".join(_OF_REALS)
        require(measure in _OF_REALS, f"doubt by {measure!r} is for classes; real numbers and counts have {possible}")
        values = _OF_REALS[measure](predictive)
    return values.flatten(1).sum(1) if values.dim() > 1 else values
