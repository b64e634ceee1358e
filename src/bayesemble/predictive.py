"""What comes out of an ensemble: distributions over targets with a member axis, and what people ask of them.

A predictive distribution is a weighted mixture over members, p(y|x) = sum_m w_m p_m(y|x). Averages of probabilities
are taken in log space. Shapes: member first, row second; a single regression output has no output axis.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bayesemble.errors import DataError, SettingError


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """A weighted mixture over members; see the subclasses for classes, real numbers and counts."""

    weights: Tensor
    """(member,), sums to one."""
    kept: dict[str, Tensor] = field(default_factory=dict, kw_only=True)
    """What was remembered of the members of a reduced predictive, one value per row: see `reduce`."""

    @staticmethod
    def from_probs(probs: Any, weights: Any = None) -> ClassPredictive:
        """Accept the class probabilities of any model.

        Shape: probs `(row, class)` of one model or `(member, row, class)`.
        """
        values = _as_floats(probs, "probs", dims=(2, 3))
        values = values[None] if values.dim() == 2 else values
        if (values < 0).any() or not torch.allclose(values.sum(-1), values.new_ones(()), atol=1e-4):
            raise DataError(
                "probabilities must be non-negative and sum to one over the last axis, the classes"
            )
        return ClassPredictive(_as_weights(weights, values), values.log())

    @staticmethod
    def from_normal(mean: Any, std: Any, weights: Any = None) -> NormalPredictive:
        """Accept the means and standard deviations of any model.

        Shape: `(row,)` of one model, `(member, row)` or `(member, row, output)`; std may be anything that broadcasts.
        """
        means = _as_floats(mean, "mean", dims=(1, 2, 3))
        means = means[None] if means.dim() == 1 else means
        stds = _as_floats(std, "std", dims=(0, 1, 2, 3)).to(means.dtype).expand(means.shape)
        if (stds <= 0).any():
            raise DataError(f"standard deviations must be positive, the smallest is {stds.min():g}")
        return NormalPredictive(_as_weights(weights, means), means, stds)

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """Doubt that more data would not remove: what each member itself is unsure of, averaged."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """Doubt that more data would remove: what the members disagree about."""

    @abstractmethod
    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability (density) of the targets under each member: `(member, row)`, summed over outputs.

        Targets are `(row, ...)`, or `(member, row, ...)` where every member is asked about its own.
        """

    @abstractmethod
    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw targets: `(num, row, ...)`. Each draw picks one member for all rows, so it is one function plus noise."""

    @abstractmethod
    def reduce(self) -> Self:
        """Forget the members and keep what was asked of them, for data sets too large to keep all outputs."""

    @property
    def num_members(self) -> int:
        """How many members are averaged."""
        return len(self.weights)

    @property
    def num_rows(self) -> int:
        """How many rows were predicted."""
        return self._member_values()[0].shape[1]

    def log_prob(self, targets: Any) -> Tensor:
        """Log probability (density) of the targets under the mixture, `(row,)`: log sum_m w_m p_m(y|x)."""
        return self._log_average(self.member_log_prob(targets))

    def member(self, index: int) -> Self:
        """The prediction of one member alone."""
        self._need_members("member(i)")
        one = {name: value[index : index + 1] for name, value in self._member_fields().items()}
        return dataclasses.replace(self, weights=torch.ones_like(self.weights[:1]), **one)

    def reweight(self, weights: Any) -> Self:
        """The same members under other weights; they are normalised to sum to one."""
        self._need_members("reweight(w)")
        return dataclasses.replace(self, weights=_as_weights(weights, self._member_values()[0]))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join predictions of the same members for further rows."""
        first = parts[0]
        joined = {
            name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in first._member_fields()
        }
        kept = {name: torch.cat([part.kept[name] for part in parts]) for name in first.kept}
        return dataclasses.replace(first, kept=kept, **joined)

    def __repr__(self) -> str:
        reduced = ", reduced" if self.kept else ""
        return f"{type(self).__name__}({self.num_members} members, {self.num_rows} rows{reduced})"

    def _member_fields(self) -> dict[str, Tensor]:
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("weights", "kept")]
        return {name: getattr(self, name) for name in names}

    def _member_values(self) -> list[Tensor]:
        return list(self._member_fields().values())

    def _need_members(self, what: str) -> None:
        if self.kept:
            raise SettingError(
                f"{what} needs the members, which this prediction dropped; use keep_members=True"
            )

    def _average(self, values: Tensor) -> Tensor:
        return torch.tensordot(self.weights.to(values.dtype), values, dims=1)

    def _log_average(self, values: Tensor) -> Tensor:
        log_weights = self.weights.to(values.dtype).log().reshape(-1, *[1] * (values.dim() - 1))
        return torch.logsumexp(values + log_weights, dim=0)

    def _pick_members(self, num: int, generator: torch.Generator) -> Tensor:
        self._need_members("sample")
        return torch.multinomial(self.weights.double(), num, replacement=True, generator=generator)


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
        return (
            (1 - shares.square().sum(-1)).clamp_min(0) / pairs
            if pairs > 1e-12
            else torch.zeros_like(shares[..., 0])
        )

    @property
    def aleatoric(self) -> Tensor:
        """The expected entropy."""
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        """The mutual information."""
        return self.mutual_information

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability of the labels under each member, `(member, row)`."""
        labels = match_targets(targets, self.log_probs.shape[:-1]).long()
        num_classes = self.log_probs.shape[-1]
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
            raise DataError(
                f"labels must lie in 0..{num_classes - 1}, got {int(labels.min())}..{int(labels.max())}"
            )
        chosen = self.log_probs.gather(-1, labels.expand(self.log_probs.shape[:-1]).unsqueeze(-1))
        return _sum_outputs(chosen.squeeze(-1))

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw labels, `(num, row)`."""
        probs = self.log_probs[self._pick_members(num, generator)].exp()
        draws = torch.multinomial(probs.flatten(0, -2), 1, generator=generator)
        return draws.reshape(probs.shape[:-1])

    def reduce(self) -> ClassPredictive:
        """Keep the averaged probabilities, the expected entropy and the disagreement."""
        kept = {"expected_entropy": self.expected_entropy, "disagreement": self.disagreement}
        return ClassPredictive(torch.ones_like(self.weights[:1]), self.probs.log()[None], kept=kept)


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """Mixtures over an ordered target; variance = aleatoric + epistemic by the law of total variance."""

    @property
    @abstractmethod
    def member_mean(self) -> Tensor:
        """Means of each member, `(member, row)` or `(member, row, output)`."""

    @property
    @abstractmethod
    def member_variance(self) -> Tensor:
        """Variances of each member, shaped like `member_mean`."""

    @abstractmethod
    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member."""

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """The value below which the target lies with probability `level`, under the mixture."""

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture, `(row,)` or `(row, output)`."""
        return self._average(self.member_mean)

    @property
    def aleatoric(self) -> Tensor:
        """Variance inside the members: sum_m w_m var_m."""
        return self.kept["aleatoric"] if "aleatoric" in self.kept else self._average(self.member_variance)

    @property
    def epistemic(self) -> Tensor:
        """Variance between the members: sum_m w_m (mean_m - mean)^2."""
        if "epistemic" in self.kept:
            return self.kept["epistemic"]
        return self._average((self.member_mean - self.mean).square())

    @property
    def variance(self) -> Tensor:
        """Total variance of the target, observation noise included."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Square root of the total variance."""
        return self.variance.sqrt()

    def cdf(self, values: Any) -> Tensor:
        """P(y <= value) under the mixture."""
        return self._average(
            self.member_cdf(match_targets(values, self.member_mean.shape).to(self.mean.dtype))
        )

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`: its lower and upper end."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _bisect(self, level: float, low: Tensor, high: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            middle = (low + high) / 2
            above = self._average(self.member_cdf(middle)) >= level
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high


@dataclass(frozen=True, eq=False, repr=False)
class NormalPredictive(RealPredictive):
    """A mixture of normal distributions, one per member."""

    means: Tensor
    stds: Tensor

    @property
    def member_mean(self) -> Tensor:
        """Means of each member."""
        return self.means

    @property
    def member_variance(self) -> Tensor:
        """Variances of each member."""
        return self.stds.square()

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member."""
        return torch.special.ndtr((values - self.means) / self.stds)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log density of the targets under each member, `(member, row)`."""
        values = match_targets(targets, self.means.shape).to(self.means.dtype)
        return _sum_outputs(
            torch.distributions.Normal(self.means, self.stds, validate_args=False).log_prob(values)
        )

    def quantile(self, level: float) -> Tensor:
        """Quantile of the mixture, by bisection between the members' own quantiles, which enclose it."""
        _check_level(level)
        score = torch.special.ndtri(torch.tensor(level, dtype=torch.float64)).to(self.means)
        own = self.means + self.stds * score
        return self._bisect(level, own.amin(0), own.amax(0), steps=60)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw targets, `(num, row)` or `(num, row, output)`."""
        chosen = self._pick_members(num, generator)
        noise = torch.randn(self.means[chosen].shape, generator=generator, dtype=self.means.dtype)
        return self.means[chosen] + self.stds[chosen] * noise

    def rescale(self, shift: Any, scale: Any) -> NormalPredictive:
        """Predictions of `shift + scale * y`: back to the original units of a standardised target."""
        shift, scale = torch.as_tensor(shift).to(self.means), torch.as_tensor(scale).to(self.means)
        kept = {name: value * scale.square() for name, value in self.kept.items()}
        return NormalPredictive(self.weights, shift + scale * self.means, scale * self.stds, kept=kept)

    def reduce(self) -> NormalPredictive:
        """Keep mean and variances; densities and quantiles become those of the normal with these moments."""
        kept = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        return NormalPredictive(torch.ones_like(self.weights[:1]), self.mean[None], self.std[None], kept=kept)


@dataclass(frozen=True, eq=False, repr=False)
class PoissonPredictive(RealPredictive):
    """A mixture of Poisson distributions, one per member."""

    rates: Tensor

    @property
    def member_mean(self) -> Tensor:
        """Rates of each member."""
        return self.rates

    @property
    def member_variance(self) -> Tensor:
        """Rates of each member: a Poisson variance equals its mean."""
        return self.rates

    def member_cdf(self, values: Tensor) -> Tensor:
        """P(y <= value) under each member: the regularised upper incomplete gamma function at floor(value) + 1."""
        counts = values.floor()
        inside = torch.special.gammaincc(counts.clamp_min(0) + 1, self.rates)
        return torch.where(counts < 0, torch.zeros_like(inside), inside)

    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability of the counts under each member, `(member, row)`."""
        values = match_targets(targets, self.rates.shape).to(self.rates.dtype)
        return _sum_outputs(torch.distributions.Poisson(self.rates, validate_args=False).log_prob(values))

    def quantile(self, level: float) -> Tensor:
        """The smallest count whose cumulative probability reaches `level`."""
        _check_level(level)
        largest = self.rates.amax(0)
        # No Poisson quantile at this level lies above: Chebyshev's bound on the widest member, and one to spare.
        high = (largest + (largest / (1 - level)).sqrt() + 1).ceil()
        return self._bisect(level, torch.full_like(high, -1), high, steps=60).floor()

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw counts, `(num, row)` or `(num, row, output)`."""
        return torch.poisson(self.rates[self._pick_members(num, generator)], generator=generator)

    def reduce(self) -> PoissonPredictive:
        """Keep mean and variances; probabilities become those of the Poisson distribution with this mean."""
        kept = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        return PoissonPredictive(torch.ones_like(self.weights[:1]), self.mean[None], kept=kept)


def _as_floats(values: Any, name: str, dims: tuple[int, ...]) -> Tensor:
    tensor = torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values)
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    if tensor.dim() not in dims:
        raise DataError(
            f"{name} must have {' or '.join(map(str, dims))} axes, got shape {tuple(tensor.shape)}"
        )
    if not tensor.isfinite().all():
        raise DataError(f"{name} contains NaN or infinity")
    return tensor


def _as_weights(weights: Any, values: Tensor) -> Tensor:
    num = values.shape[0]
    if weights is None:
        return values.new_full((num,), 1 / num)
    tensor = torch.as_tensor(weights).to(values.dtype)
    if tensor.shape != (num,) or (tensor < 0).any() or not tensor.isfinite().all() or tensor.sum() <= 0:
        raise SettingError(f"weights must be {num} non-negative numbers, one per member, got {weights}")
    return tensor / tensor.sum()


def match_targets(targets: Any, shape: torch.Size) -> Tensor:
    """Bring targets to `(row, ...)` or `(member, row, ...)` as the outputs have it, or say what is wrong."""
    tensor = torch.as_tensor(targets)
    rows = shape[1:]
    if tensor.shape == rows or tensor.shape == shape:
        return tensor
    if tensor.shape == (*rows, 1) or (*tensor.shape, 1) == tuple(rows):
        return tensor.reshape(rows)
    raise DataError(
        f"targets must have shape {tuple(rows)} to fit the predictions, got {tuple(tensor.shape)}"
    )


def _sum_outputs(values: Tensor) -> Tensor:
    return values.flatten(2).sum(-1) if values.dim() > 2 else values


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise SettingError(f"a probability strictly between 0 and 1 was needed, got {level}")
