"""Predictions of classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesemble.errors import DataError
from bayesemble.predictive.base import Predictive, match_targets, sum_outputs


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Probabilities of classes. The class axis is last: `(member, row, class)`, or `(member, row, output, class)`."""

    log_probs: Tensor

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, `(row, class)`."""
        return self._log_average(self.log_probs).exp()

    @property
    def member_probs(self) -> Tensor:
        """Probabilities of each member, `(member, row, class)`."""
        self._need_members("member_probs")
        return self.log_probs.exp()

    @property
    def entropy(self) -> Tensor:
        """Total doubt in nats, `(row,)`: H[sum_m w_m p_m]."""
        return torch.special.entr(self.probs).sum(-1)

    @property
    def expected_entropy(self) -> Tensor:
        """Aleatoric doubt in nats, `(row,)`: sum_m w_m H[p_m]."""
        if "expected_entropy" in self.kept:
            return self.kept["expected_entropy"]
        return self._average(torch.special.entr(self.log_probs.exp()).sum(-1))

    @property
    def mutual_information(self) -> Tensor:
        """Epistemic doubt in nats, `(row,)`: entropy minus expected entropy, never below 0."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def disagreement(self) -> Tensor:
        """The probability that two different members choose different classes, `(row,)`; 0 for one member.

        (1 - sum_c q_c^2) / (1 - sum_m w_m^2), where q_c is the weight of the members that choose class c.
        """
        if "disagreement" in self.kept:
            return self.kept["disagreement"]
        votes = torch.nn.functional.one_hot(self.log_probs.argmax(-1), self.log_probs.shape[-1])
        shares = self._average(votes.to(self.log_probs.dtype))
        pairs = 1 - self.weights.square().sum().to(shares.dtype)
        # With all weight on one member there is no second member to disagree.
        return (1 - shares.square().sum(-1)).clamp_min(0) / pairs if pairs > 1e-12 else torch.zeros_like(shares[..., 0])

    @property
    def aleatoric(self) -> Tensor:
        """The expected entropy."""
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        """The mutual information."""
        return self.mutual_information

    def labels(self, targets: Any, per_member: bool = False) -> Tensor:
        """Targets as labels 0..C-1 in the shape of the rows, or what is wrong with them."""
        values = match_targets(targets, self.log_probs.shape[:-1], per_member)
        labels, last = values.long(), self.log_probs.shape[-1] - 1
        if (labels != values).any() or (labels.numel() and not 0 <= labels.min() <= labels.max() <= last):
            raise DataError(f"labels must be whole and lie in 0..{last}, got {values.min():g}..{values.max():g}")
        return labels

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability of the labels under each member, `(member, row)`."""
        labels = self.labels(targets, per_member=True)
        chosen = self.log_probs.gather(-1, labels.expand(self.log_probs.shape[:-1]).unsqueeze(-1))
        return sum_outputs(chosen.squeeze(-1))

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw labels, `(num, row)`."""
        probs = self.log_probs[self._pick_members(num, generator)].exp()
        draws = torch.multinomial(probs.flatten(0, -2), 1, generator=generator)
        return draws.reshape(probs.shape[:-1])

    def reduce(self) -> ClassPredictive:
        """Keep the averaged probabilities, the expected entropy and the disagreement."""
        kept = {"expected_entropy": self.expected_entropy, "disagreement": self.disagreement}
        return ClassPredictive(torch.ones_like(self.weights[:1]), self.probs.log()[None], kept=kept)
