"""Predictions of classes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from bayesemble.core.arrays import numbers
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive.abstain import Decision, fit_threshold
from bayesemble.predictive.base import Predictive, as_floats, as_weights, match_targets, sum_outputs, unless_kept


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Probabilities of classes. The class axis is last: `(member, row, class)`, or `(member, row, output, class)`."""

    log_probs: Tensor
    ignore_index: int | None = None
    """A target that does not count: see `counted`."""
    kind = "classes"
    _measures: ClassVar = {
        "total": lambda own: own.entropy,
        "epistemic": lambda own: own.mutual_information,
        "aleatoric": lambda own: own.expected_entropy,
        "disagreement": lambda own: own.disagreement,
        "max_probability": lambda own: 1 - own.probs.amax(-1),
        "member_std": lambda own: own.member_std,
    }
    _aliases: ClassVar = {"entropy": "total", "mutual_information": "epistemic", "expected_entropy": "aleatoric"}

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, `(row, class)`."""
        return self.log_average(self.log_probs).exp()

    @property
    def member_probs(self) -> Tensor:
        """Probabilities of each member, `(member, row, class)`."""
        self.need_members("member_probs")
        return self.log_probs.exp()

    @property
    @unless_kept
    def entropy(self) -> Tensor:
        """Total uncertainty in nats, `(row,)`: H[sum_m w_m p_m]."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    @unless_kept
    def expected_entropy(self) -> Tensor:
        """Aleatoric uncertainty in nats, `(row,)`: sum_m w_m H[p_m]."""
        return self._expected_entropy(self.log_probs.exp())

    @property
    def mutual_information(self) -> Tensor:
        """Epistemic uncertainty in nats, `(row,)`: entropy minus expected entropy, never below 0."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    @unless_kept
    def disagreement(self) -> Tensor:
        """The probability that two different members choose different classes, `(row,)`; 0 for one member.

        (1 - sum_c q_c^2) / (1 - sum_m w_m^2), where q_c is the weight of the members that choose class c.
        """
        chosen = self.log_probs.argmax(-1, keepdim=True)
        shares = self._average(torch.zeros_like(self.log_probs).scatter_(-1, chosen, 1))
        return self._per_pair((1 - shares.square().sum(-1)).clamp_min(0))

    @property
    @unless_kept
    def member_std(self) -> Tensor:
        """Standard deviation of a class probability over the members, mean over classes, `(row,)`; 0 for one member.

        mean_c sqrt( sum_m w_m (p_mc - p_c)^2 / (1 - sum_m w_m^2) ): the divisor M - 1 if the members weigh the same.

        Reference: the "model disagreement" of D'Angelo & Fortuin (2021).
        """
        return self._member_std(self.log_probs.exp())

    @property
    def aleatoric(self) -> Tensor:
        """The expected entropy."""
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        """The mutual information."""
        return self.mutual_information

    @property
    def answers(self) -> Tensor:
        """The most probable class under the average."""
        return self.probs.argmax(-1)

    def labels(self, targets: Any, per_member: bool = False) -> Tensor:
        """Targets as labels 0..C-1 in the shape of the rows, or what is wrong with them; one-hot ones are fine too."""
        shape = np.shape(targets)
        if shape == self.log_probs.shape[1:] and not (per_member and shape == self.log_probs.shape[:-1]):
            labels = one_hot_labels(numbers(targets, "targets"))
            if labels is None:
                raise DataError("soft labels can be trained on, but scores need labels 0..C-1 or one-hot ones")
            targets = labels
        values = match_targets(targets, self.log_probs.shape[:-1], per_member)
        return as_labels(values, self.log_probs.shape[-1])

    def counted(self, targets: Any) -> tuple[ClassPredictive, Tensor]:
        """The predictions whose targets count, one row for each of them, and these targets as labels."""
        if self.ignore_index is None:
            return self, self.labels(targets)
        values = match_targets(targets, self.log_probs.shape[:-1])
        counts = values != self.ignore_index
        if not counts.any():
            raise DataError(f"there is nothing to score: all targets are ignore_index={self.ignore_index}")
        kept = {name: value[counts] for name, value in self.kept.items()}
        found = ClassPredictive(self.weights, self.log_probs[:, counts], kept=kept)
        return found, found.labels(values[counts])

    def label_weights(self, targets: Any, weights: Tensor) -> Tensor:
        """What each of the labels that `counted` gives weighs, in their shape: as much as its row."""
        shape = self.log_probs.shape[:-1]
        own = weights.reshape(-1, *[1] * (len(shape) - 2)).expand(shape[1:])
        return own if self.ignore_index is None else own[match_targets(targets, shape) != self.ignore_index]

    def member_values(self) -> Tensor:
        """Probabilities of each member."""
        return self.member_probs

    def losses(self, targets: Any) -> Tensor:
        """1 where the answer is wrong, 0 elsewhere."""
        return (self.answers != self.labels(targets)).double()

    def rows_that_count(self, targets: Any) -> Tensor:
        """Rows with a target that counts, `(row,)`."""
        if self.ignore_index is None:
            return super().rows_that_count(targets)
        values = match_targets(targets, self.log_probs.shape[:-1])
        return (values != self.ignore_index).reshape(len(values), -1).any(1)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability of the labels under each member, `(member, row)`; those that do not count add nothing."""
        if self.ignore_index is None:
            values = labels = self.labels(targets, per_member=True)
        else:
            values = match_targets(targets, self.log_probs.shape[:-1], per_member=True)
            labels = as_labels(values.masked_fill(values == self.ignore_index, 0), self.log_probs.shape[-1])
        chosen = self.log_probs.gather(-1, labels.expand(self.log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return sum_outputs(chosen if self.ignore_index is None else chosen.masked_fill(values == self.ignore_index, 0))

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw labels, `(num, row)`."""
        probs = self.log_probs[self._pick_members(num, generator)].exp()
        draws = torch.multinomial(probs.flatten(0, -2), 1, generator=generator)
        return draws.reshape(probs.shape[:-1])

    def work_out(self) -> None:
        """Average the probabilities."""
        _ = self.probs

    def reduce(self) -> Self:
        """Keep the averaged probabilities, both entropies and both measures of disagreement."""
        if self.kept:
            return self
        members = self.log_probs.exp()
        kept = {"entropy": self.entropy, "expected_entropy": self._expected_entropy(members)}
        kept |= {"disagreement": self.disagreement, "member_std": self._member_std(members)}
        return replace(self, weights=torch.ones_like(self.weights[:1]), log_probs=self.probs.log()[None], kept=kept)

    def decide(
        self, max_risk: float, validation: tuple[ClassPredictive, Any], measure: str = "total", confidence: float = 0.95
    ) -> Decision:
        """Choose a class for each row, or abstain where the uncertainty is too large to keep a promised error rate.

        Args:
            max_risk: The largest error rate among answered rows that is acceptable, 0.01 for one in a hundred.
            validation: Predictions and labels of rows that were not trained on and are like those to be decided.
            measure: The measure of uncertainty, see `Predictive.uncertainty`.
            confidence: With this probability, over validation sets, the promise holds.

        See `bayesemble.predictive.abstain.fit_threshold` for what is promised, and to fit once and decide often.
        """
        predictive, targets = validation
        return fit_threshold(predictive, targets, max_risk, measure, confidence).decide(self)

    def expected_log_probs(self, smoothing: float = 0.0) -> Tensor:
        """Mean over members of log((1 - smoothing) p_m + smoothing / C), `(row, class)`."""
        self.need_members("expected_log_probs")
        members = self.log_probs.double().exp()
        return self._average(((1 - smoothing) * members + smoothing / members.shape[-1]).log())

    def _expected_entropy(self, members: Tensor) -> Tensor:
        return self._average(torch.special.entr(members).sum(-1))

    def _member_std(self, members: Tensor) -> Tensor:
        return self._per_pair(self._average((members - self.probs).square_())).sqrt().mean(-1)

    def _per_pair(self, values: Tensor) -> Tensor:
        """Divide by the probability that two draws are different members; 0 where all weight is on one member."""
        pairs = 1 - self.weights.square().sum().to(values.dtype)
        return values / pairs if self._several_weigh else torch.zeros_like(values)


@dataclass(frozen=True, eq=False, repr=False)
class DirichletPredictive(ClassPredictive):
    """Members that each stand for many networks, whose probabilities are spread as Dir(precision * probs).

    `log_probs` are those of each member's mean; its own spread, besides that between members, is epistemic.
    """

    precisions: Tensor = field(kw_only=True)
    """The sums of the parameters, `(member, row, ...)`: the larger, the closer the networks are."""
    _measures: ClassVar = {name: how for name, how in ClassPredictive._measures.items() if name != "disagreement"}

    @property
    @unless_kept
    def expected_entropy(self) -> Tensor:
        """Aleatoric uncertainty in nats: sum_m w_m sum_c p_c (digamma(a_0 + 1) - digamma(a_c + 1)), a = a_0 p."""
        whole = self.precisions.double().unsqueeze(-1)
        probs = self.log_probs.double().exp()
        entropy = (probs * (digamma_from_one(whole + 1) - digamma_from_one(whole * probs + 1))).sum(-1)
        return self._average(entropy).to(self.log_probs.dtype)

    @property
    @unless_kept
    def member_std(self) -> Tensor:
        """Standard deviation of a class probability over the networks, mean over classes, `(row,)`."""
        members = self.log_probs.exp()
        inside = members * (1 - members) / (self.precisions.unsqueeze(-1) + 1)
        return self._average(inside + (members - self.probs).square()).sqrt().mean(-1)

    @property
    def disagreement(self) -> Tensor:
        """Not known in closed form."""
        raise SettingError("how often two networks choose differently is not known of a Dirichlet; use epistemic")

    def expected_log_probs(self, smoothing: float = 0.0) -> Tensor:
        """Mean of the log probabilities, digamma(a_c) - digamma(a_0); they need no smoothing."""
        self.need_members("expected_log_probs")
        whole = self.precisions.double().unsqueeze(-1)
        return self._average(torch.digamma(whole * self.log_probs.double().exp()) - torch.digamma(whole))

    def reduce(self) -> Self:
        """Keep the averaged probabilities, both entropies and the spread of probabilities."""
        if self.kept:
            return self
        kept = {"entropy": self.entropy, "expected_entropy": self.expected_entropy, "member_std": self.member_std}
        whole, logs = self._average(self.precisions)[None], self.probs.log()[None]
        return replace(self, weights=torch.ones_like(self.weights[:1]), log_probs=logs, precisions=whole, kept=kept)


def digamma_from_one(values: Tensor) -> Tensor:
    """Digamma of z >= 1 in double precision, to 1e-12, in operations that ONNX knows.

    digamma(z) = digamma(z + 6) - sum_{k < 6} 1 / (z + k), and from z = 7 on

        digamma(z) = log z - 1 / (2 z) - 1 / (12 z^2) + 1 / (120 z^4) - 1 / (252 z^6) + 1 / (240 z^8) - 1 / (132 z^10)
    """
    steps = sum((values + number).reciprocal() for number in range(6))
    shifted = values + 6
    square = shifted.square().reciprocal()
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shifted.log() - shifted.reciprocal() / 2 - series - steps


def one_hot_labels(shares: Tensor) -> Tensor | None:
    """The labels of one-hot rows `(..., class)`; None unless all rows are such."""
    largest, labels = shares.max(-1)
    certain = (largest == 1).all() and bool(((shares != 0).sum(-1) == 1).all())
    return labels if certain else None


def as_labels(values: Tensor, num_classes: int) -> Tensor:
    """Numbers as labels 0..C-1, or what is wrong with them."""
    labels, last = values.long(), num_classes - 1
    if (labels != values).any() or (labels.numel() and not 0 <= labels.min() <= labels.max() <= last):
        raise DataError(f"labels must be whole and lie in 0..{last}, got {values.min():g}..{values.max():g}")
    return labels


def from_probs(probs: Any, weights: Any = None) -> ClassPredictive:
    """Accept the class probabilities of any model.

    Shape: probs `(row, class)` of one model or `(member, row, class)`.
    """
    values = as_floats(probs, "probs", dims=(2, 3))
    values = values[None] if values.dim() == 2 else values
    if (values < 0).any() or not torch.allclose(values.sum(-1), values.new_ones(()), atol=1e-4):
        raise DataError("probabilities must be non-negative and sum to one over the last axis, the classes")
    return ClassPredictive(as_weights(weights, values), values.log())
