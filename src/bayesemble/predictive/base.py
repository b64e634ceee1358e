"""What comes out of an ensemble: distributions over targets with a member axis, and what people ask of them.

A predictive distribution is a weighted mixture over members, p(y|x) = sum_m w_m p_m(y|x). Averages of probabilities
are taken in log space. Shapes: member first, row second; a single regression output has no output axis.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import chain
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from bayesemble.core.arrays import check_finite, numbers
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.html import facts_table
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import require
from bayesemble.predictive import frames

_Own = TypeVar("_Own", bound="Predictive")


def unless_kept(compute: Callable[[_Own], Tensor]) -> Callable[[_Own], Tensor]:
    """A number for each row, unless the prediction is reduced and kept it: what is computed anew breaks exact ties."""

    @wraps(compute)
    def value(own: _Own) -> Tensor:
        kept = own.kept.get(compute.__name__)
        return compute(own) if kept is None else kept

    return value


_NUMBERS_AT_A_TIME = 1 << 17


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """A weighted mixture over members; see the subclasses for classes, real numbers and counts."""

    weights: Tensor
    """(member,), sums to one."""
    kept: dict[str, Tensor] = field(default_factory=dict, kw_only=True)
    """What was remembered of the members of a reduced predictive, one value per row: see `reduce`."""

    from_probs: ClassVar[Callable[..., Any]]
    """Accept the class probabilities of any model, see `bayesemble.predictive.classes.from_probs`."""
    from_normal: ClassVar[Callable[..., Any]]
    """Accept the means and standard deviations of any model, see `bayesemble.predictive.reals.from_normal`."""
    kind: ClassVar[Literal["classes", "numbers"]]
    """What is predicted: classes, or real numbers and counts."""
    _measures: ClassVar[dict[str, Callable[[Any], Tensor]]]
    """How each measure of uncertainty is worked out, by name."""
    _aliases: ClassVar[dict[str, str]] = {}
    """Other names of some measures."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """Uncertainty that more data would not remove: what each member itself is unsure of, averaged."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """Uncertainty that more data would remove: what the members disagree about."""

    @property
    @abstractmethod
    def answers(self) -> Tensor:
        """What is answered for each row, `(row,)` or `(row, output)`: the most probable class, or the mean."""

    @abstractmethod
    def member_values(self) -> Tensor:
        """What each member says: probabilities `(member, row, ..., class)`, or means `(member, row, ...)`."""

    @abstractmethod
    def losses(self, targets: Any) -> Tensor:
        """What the answers cost, shaped like them: 1 for a wrong class, or the squared error of a mean."""

    @abstractmethod
    def member_log_prob(self, targets: Any) -> Tensor:
        """Log probability (density) of the targets under each member: `(member, row)`, summed over outputs.

        Targets are `(row, ...)`, or `(member, row, ...)` where every member is asked about its own.
        """

    @abstractmethod
    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw targets `(num, row, ...)`: each draw picks one member for all rows, so it is one function plus noise.

        Of members that stand for many networks in closed form, a draw is of each row by itself.
        """

    @abstractmethod
    def reduce(self) -> Self:
        """Forget the members and keep what was asked of them, for data sets too large to keep all outputs."""

    def look_at_weights(self) -> None:
        """Find out what depends on the weights alone; what follows is operations on tensors, the same for all rows."""
        _ = self._all_weigh, self._several_weigh

    def work_out(self) -> None:
        """Work out, and keep, what nearly everybody asks for."""
        return

    @property
    def num_members(self) -> int:
        """How many members are averaged."""
        return len(self.weights)

    @property
    def num_rows(self) -> int:
        """How many rows were predicted."""
        return self._any_field().shape[1]

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures of uncertainty that this prediction has, other names for the same thing left out."""
        return tuple(self._measures)

    def uncertainty(self, measure: str = "total") -> Tensor:
        """One number per row, `(row,)`, that grows with uncertainty; what several outputs of a row have is added up.

        Entropies are in nats. The name in brackets means the same, and is for classes alone.

        | measure | classes | real numbers and counts |
        | --- | --- | --- |
        | "total" ("entropy") | entropy of the averaged probabilities | variance |
        | "epistemic" ("mutual_information") | what the members disagree about | variance between the members |
        | "aleatoric" ("expected_entropy") | what each member is unsure of | variance inside the members |
        | "disagreement" | probability that two members choose differently | |
        | "max_probability" | 1 - the largest averaged probability | |
        | "member_std" | standard deviation of a probability over the members | |

        With one network "epistemic", "disagreement" and "member_std" are 0 everywhere and tell nothing.
        """
        name, known = self._aliases.get(measure, measure), ", ".join((*self.measures, *self._aliases))
        require(name in self._measures, f"{type(self).__name__} has uncertainty by {known}, not by {measure!r}")
        values = self._measures[name](self)
        return values.flatten(1).sum(1) if values.dim() > 1 else values

    def log_prob(self, targets: Any) -> Tensor:
        """Log probability (density) of the targets under the mixture, `(row,)`: log sum_m w_m p_m(y|x)."""
        return self.log_average(self.member_log_prob(targets))

    def rows_that_count(self, targets: Any) -> Tensor:
        """Rows with a target that counts, `(row,)`: all, unless the likelihood leaves some out."""
        return torch.ones(self.num_rows, dtype=torch.bool)

    def member(self, index: int) -> Self:
        """The prediction of one member alone."""
        return self.take([index])

    def take(self, indices: Sequence[int] | Tensor) -> Self:
        """The prediction of some members alone, whose weights keep their proportions; if all are 0, equal weights."""
        self.need_members("a choice of members")
        chosen = torch.as_tensor(indices)
        inside = (chosen >= -self.num_members) & (chosen < self.num_members)
        if not len(chosen) or not inside.all():
            wrong = chosen[~inside].tolist() or ["none"]
            raise SettingError(f"there are {self.num_members} members, 0 to {self.num_members - 1}, not {wrong[0]}")
        own: dict[str, Any] = {name: value[chosen] for name, value in self._member_fields().items()}
        weights = self.weights[chosen]
        weights = weights if weights.sum() > 0 else torch.ones_like(weights)
        return dataclasses.replace(self, weights=weights / weights.sum(), **own)

    def take_rows(self, indices: Sequence[int] | Tensor) -> Self:
        """The prediction of some rows alone."""
        chosen = torch.as_tensor(indices)
        own: dict[str, Any] = {name: value[:, chosen] for name, value in self._member_fields().items()}
        kept = {name: value[chosen] for name, value in self.kept.items()}
        return dataclasses.replace(self, kept=kept, **own)

    def weighed(self) -> Self:
        """The prediction of the members that weigh anything, alone."""
        chosen = self.weights > 0
        return self if chosen.all() else self.take(chosen.nonzero().flatten())

    def reweight(self, weights: Any) -> Self:
        """The same members under other weights; they are normalised to sum to one."""
        self.need_members("reweight(w)")
        return dataclasses.replace(self, weights=as_weights(weights, self._any_field()))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join predictions of the same members for further rows."""
        first = parts[0]
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in first._member_fields()
        }
        kept = {name: torch.cat([part.kept[name] for part in parts]) for name in first.kept}
        return dataclasses.replace(first, kept=kept, **joined)

    @classmethod
    def gather(cls, parts: Iterator[Self], num_rows: int) -> Self:
        """Join predictions of the same members as they come, without holding all of them beside what they become."""
        first = next(parts)
        names = [name for name, value in vars(first).items() if isinstance(value, Tensor) and name != "weights"]
        fields = first._member_fields()
        axes = {name: 1 if name in fields else 0 for name in names}

        def space(value: Tensor, axis: int) -> Tensor:
            return value.new_empty((*value.shape[:axis], num_rows, *value.shape[axis + 1 :]))

        whole = {name: space(getattr(first, name), axis) for name, axis in axes.items()}
        kept = {name: space(value, 0) for name, value in first.kept.items()}
        start = 0
        for part in chain([first], parts):
            for name, axis in axes.items():
                whole[name].narrow(axis, start, part.num_rows).copy_(getattr(part, name))
            for name, value in part.kept.items():
                kept[name][start : start + len(value)] = value
            start += part.num_rows
        worked_out = {name: whole.pop(name) for name in names if name not in fields}
        joined = dataclasses.replace(first, kept=kept, **whole)
        vars(joined).update(worked_out)
        return joined

    def to_frame(self, level: float = 0.9, names: Sequence[Any] | None = None) -> Any:
        """A table of pandas, a line for each row: the answer, how sure it is, and both kinds of uncertainty.

        Columns are `answer`, `p_0`, `p_1`, ... and `total` for classes, `mean`, `std`, `low`, `high` and `total` for
        numbers, then `aleatoric` and `epistemic`; of several outputs each has its own, such as `mean_0`.

        Args:
            level: That of the interval from `low` to `high`.
            names: Of the classes, in place of their numbers.
        """
        return frames.to_frame(self, level, names)

    def to_xarray(self, level: float = 0.9, names: Sequence[Any] | None = None) -> Any:
        """A data set of xarray: what `to_frame` has, and what each member says, along named axes."""
        return frames.to_xarray(self, level, names)

    def __repr__(self) -> str:
        reduced = ", reduced" if self.kept else ""
        return f"{type(self).__name__}({self.num_members} members, {self.num_rows} rows{reduced})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        facts = {"members": f"{self.num_members:,}", "rows": f"{self.num_rows:,}"}
        for name in ("aleatoric", "epistemic"):
            facts[f"mean {name} uncertainty"] = f"{float(getattr(self, name).double().mean()):.4g}"
        if self.kept:
            facts["members' own outputs"] = "dropped"
        return facts_table(type(self).__name__, facts)

    def _member_fields(self) -> dict[str, Tensor]:
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "weights"}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def _any_field(self) -> Tensor:
        return next(iter(self._member_fields().values()))

    def need_members(self, what: str) -> None:
        """Refuse something that a reduced prediction can no longer give."""
        if self.kept:
            raise SettingError(f"{what} needs the members, which this prediction dropped; use keep_members=True")

    def _average(self, values: Tensor) -> Tensor:
        weights, values = self._weighed(values)
        return torch.tensordot(weights, values, dims=1)

    def log_average(self, values: Tensor) -> Tensor:
        """The logarithm of the average over members of what has these logarithms, `(member, row, ...)`."""
        weights, values = self._weighed(values)
        if len(weights) == 1:
            return values[0] + weights.log()
        logs = weights.log().reshape(-1, *[1] * (values.dim() - 1))
        if torch.compiler.is_exporting():  # for any number of rows
            return torch.logsumexp(values + logs, dim=0)
        few = how_many_fit(_NUMBERS_AT_A_TIME, values[:, :1].numel())  # rows that stay in the processor's cache
        if values.shape[1] <= few:
            return torch.logsumexp(values + logs, dim=0)
        return torch.cat([torch.logsumexp(part + logs, dim=0) for part in values.split(few, dim=1)])

    def _weighed(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and values of members that weigh anything: those of others may be no numbers, and 0 * NaN is NaN."""
        weights = self.weights.to(values.dtype)
        if self._all_weigh:
            return weights, values
        chosen = self.weights > 0
        return weights[chosen], values[chosen]

    @cached_property
    def _all_weigh(self) -> bool:
        return bool((self.weights > 0).all())

    @cached_property
    def _several_weigh(self) -> bool:
        """Whether two draws of a member may be different ones."""
        return bool(1 - self.weights.square().sum().to(self._any_field().dtype) > 1e-12)

    def _pick_members(self, num: int, generator: torch.Generator) -> Tensor:
        self.need_members("sample")
        return torch.multinomial(self.weights.double(), num, replacement=True, generator=generator)


def as_floats(values: Any, name: str, dims: tuple[int, ...]) -> Tensor:
    """Outputs of another model as real numbers with some number of axes, or what is wrong with them."""
    tensor = numbers(values, name)
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    if tensor.dim() not in dims:
        raise DataError(f"{name} must have {' or '.join(map(str, dims))} axes, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise DataError(f"{name} is empty, its shape is {tuple(tensor.shape)}; at least one member and row is needed")
    if not tensor.isfinite().all():
        raise DataError(f"{name} contains NaN or infinity")
    return tensor


def as_weights(weights: Any, values: Tensor) -> Tensor:
    """Weights of the members that `values` has on its first axis, summing to one; None weighs them the same."""
    num = values.shape[0]
    if weights is None:
        return values.new_full((num,), 1 / num)
    try:
        tensor = torch.as_tensor(np.asarray(weights, dtype=np.float64)).to(values)
    except (TypeError, ValueError):
        tensor = values.new_zeros(0)
    if tensor.shape != (num,) or (tensor < 0).any() or not tensor.isfinite().all() or tensor.sum() <= 0:
        raise SettingError(f"weights must be {num} non-negative numbers, one per member, got {weights}")
    return tensor / tensor.sum()


def match_targets(targets: Any, shape: torch.Size, per_member: bool = False) -> Tensor:
    """Bring targets to `(row, ...)` as the outputs `(member, row, ...)` have it, or say what is wrong.

    Where every member may have its own, `(member, row, ...)` is fine too.
    """
    tensor = numbers(targets, "targets")
    check_finite(tensor, "targets")
    rows = shape[1:]
    if tensor.shape == rows or (per_member and tensor.shape == shape):
        return tensor
    if per_member and tensor.shape == (*shape, 1):
        return tensor.reshape(shape)
    if tensor.shape == (*rows, 1) or (*tensor.shape, 1) == tuple(rows):
        return tensor.reshape(rows)
    raise DataError(f"targets must have shape {tuple(rows)} to fit the predictions, got {tuple(tensor.shape)}")


def sum_outputs(values: Tensor) -> Tensor:
    """Add up what `(member, row, output)` has for each row: `(member, row)`."""
    return values.flatten(2).sum(-1) if values.dim() > 2 else values


def check_level(level: float) -> None:
    """Refuse a level that is no probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise SettingError(f"level is a probability strictly between 0 and 1, got {level}")
