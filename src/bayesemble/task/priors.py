"""Priors over the parameters of a network: independent, with one scale per leaf, around 0 or given weights."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require, setting, validate
from bayesemble.core.types import Leaves, is_named

Scale = float | dict[str, float]
"""One number for all leaves, or name patterns such as `{"head.*": 0.1, "*": 1.0}`; the first match counts."""

Range = tuple[float, float]
"""The lowest and the highest of numbers that are drawn, one for each member."""

Shapes = dict[str, tuple[int, ...]]

_SCALING_HELP = '"fan_in" divides the scale of every weight matrix or kernel by sqrt(fan-in)'
_SCALINGS = ("none", "fan_in")
_CENTERS = ("zero", "start")
_LARGEST_WEIGHT_OF_VAGUE_PRIOR = 0.1


def check_prior(prior: Any) -> None:
    """Refuse what is no prior; an ensemble has one, but is none."""
    if not (prior is None or isinstance(prior, Prior)):
        came = "an Ensemble; its posterior is ensemble.as_prior()" if hasattr(prior, "as_prior") else repr(prior)
        raise SettingError(f"prior must be one such as be.NormalPrior(), or None, got {came}")


class Prior(ABC):
    """Independent parameters: log p(w) = sum over leaves and elements of log p(element; scale of the leaf)."""

    scaling: str
    stated: ClassVar[bool] = True
    """Whether somebody believes in it. Members that repel one another spread as wide as a stated prior says."""

    def weight(self, num_data: float, num_parameters: int) -> float:
        """What the log density counts for in the log joint."""
        return 1.0

    @property
    def centers(self) -> Leaves:
        """The weights that it stands around, by leaf; of a prior around zero there are none."""
        return {}

    @property
    def lacks_center(self) -> bool:
        """Whether it stands around weights that it was not told yet."""
        return False

    def centred_on(self, leaves: Leaves) -> Self:
        """The same around these weights."""
        raise SettingError(f"{self} stands around zero; a prior around given weights is NormalPrior(center='start')")

    def at_zero(self) -> Self:
        """The same around zero."""
        return self

    @property
    def couples_leaves(self) -> bool:
        """Whether leaves depend on one another, so that the gradient of one takes all of them."""
        return False

    @property
    def differs_by_member(self) -> bool:
        """Whether each member has scales of its own."""
        return False

    def member_factors(self, num_members: int, generator: torch.Generator) -> Tensor:
        """What the prior's gradient at each member is multiplied by, `(member,)`, where it differs by member."""
        raise NotImplementedError(f"{type(self).__name__} is the same for all members")

    def shared_scales(self, shapes: Shapes) -> dict[str, float]:
        """Find the scale of each leaf, or refuse a prior that differs by member."""
        if self.differs_by_member:
            raise SettingError(
                f"{self} gives each member a prior of its own, which this method or measure cannot honour: it is for "
                "ensembles whose members stay as many as they are, such as deep_ensemble, and repulsive and svgd with "
                "a prior over weights; use one std for all"
            )
        return self.scales(shapes)

    @abstractmethod
    def _scale(self) -> Scale: ...

    @abstractmethod
    def log_prob(self, params: Leaves, scales: dict[str, float]) -> Tensor:
        """Log density of stacked leaves `(member, ...)`, normalising constant included: `(member,)`."""

    @abstractmethod
    def gradient(self, params: Leaves, scales: dict[str, float]) -> Leaves:
        """Gradient of `log_prob` with respect to the leaves."""

    @abstractmethod
    def sample(self, shapes: Shapes, generator: torch.Generator, dtype: torch.dtype) -> Leaves:
        """Draw the leaves of one member."""

    def scales(self, shapes: Shapes) -> dict[str, float]:
        """Find the scale of each leaf from its name and its shape (without the member axis)."""
        return {name: self._scale_of(name, shape) for name, shape in shapes.items()}

    def __post_init__(self) -> None:
        validate(self)

    def _patterns(self) -> dict[str, float]:
        scale = self._scale()
        return scale if isinstance(scale, dict) else {"*": scale}

    def _scale_of(self, name: str, shape: tuple[int, ...]) -> float:
        for pattern, scale in self._patterns().items():
            if is_named(name, [pattern]):
                fan_in = math.prod(shape[1:]) if self.scaling == "fan_in" else 1
                return scale / math.sqrt(fan_in)
        raise SettingError(f'the prior has no scale for the parameter {name!r}; add a pattern such as "*"')


@dataclass(frozen=True)
class NormalPrior(Prior):
    """w ~ Normal(c, std^2): log p(w) = -(w - c)^2 / (2 std^2) - log std - log(2 pi) / 2, with c = 0 by default.

    With `center="start"`, c are the weights of the network that the task was given (`Task(..., start="given")`), and 0
    for leaves that each member draws anew (`fresh`). All members have the same prior, wherever they begin.

    Members may have priors of their own, as in hyper-deep ensembles: a pair `(low, high)` as std draws that of each
    member log-uniformly between the two, and a list has one for each member. The list may also go beside patterns of
    names, as `per_member`, whose numbers then multiply them; `std=[...]` is short for `std=1.0, per_member=[...]`.

    Reference: Wenzel, Snoek, Tran & Jenatton (2020), "Hyperparameter ensembles for robustness and uncertainty
    quantification"; D'Angelo & Fortuin (2021), whose members have 0.1 to 0.5; Li, Grandvalet & Davoine (2018),
    "Explicit inductive bias for transfer learning with convolutional networks", for the centre.
    """

    std: Scale | Range | list[float] = setting(
        1.0,
        "standard deviation, for all leaves or by name pattern; (low, high): drawn for each member; a list: for each",
        above=0,
    )
    scaling: str = setting("none", _SCALING_HELP, choices=_SCALINGS)
    per_member: tuple[float, ...] | None = setting(None, "factors on the std, one for each member", above=0)
    center: str = setting(
        "zero", "where it is centred: zero, or start, the weights of the given network", choices=_CENTERS
    )
    _around: ClassVar[Leaves | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.std, list):
            require(self.per_member is None, "a list as std says what per_member says: give one of the two")
            object.__setattr__(self, "per_member", tuple(self.std))
            object.__setattr__(self, "std", 1.0)
        if isinstance(self.std, tuple):
            pair = len(self.std) == 2 and self.std[0] < self.std[1]
            require(pair, f"a tuple as std is a pair (low, high) to draw from, got {self.std}; a list has one a member")
            require(self.per_member is None, "(low, high) as std is drawn for each member: leave per_member out")
        require(self.per_member is None or len(self.per_member) > 0, "a std for each member is needed, got none")

    @property
    def differs_by_member(self) -> bool:
        """Whether each member has scales of its own."""
        return self.per_member is not None or isinstance(self.std, tuple)

    def member_factors(self, num_members: int, generator: torch.Generator) -> Tensor:
        """1 / c^2 for members whose std is c times that of `scales`, for -w / (std c)^2 is -w / std^2 times it.

        The factors c are as given, or drawn log-uniformly.
        """
        if isinstance(self.std, tuple):
            low, high = (math.log(end) for end in self.std)
            drawn = low + (high - low) * torch.rand(num_members, generator=generator, dtype=torch.float64)
            return torch.exp(-2 * drawn)
        assert self.per_member is not None
        require(
            len(self.per_member) == num_members,
            f"the prior has a std for each of {len(self.per_member)} members, the method has {num_members}",
        )
        return torch.tensor(self.per_member, dtype=torch.float64) ** -2

    @property
    def centers(self) -> Leaves:
        """The weights that it stands around, by leaf."""
        if self.lacks_center:
            raise SettingError(
                f"{self} was not told the weights that it stands around; a task that met its data has them"
            )
        return self._around or {}

    @property
    def lacks_center(self) -> bool:
        """Whether it stands around weights that it was not told yet."""
        return self.center == "start" and self._around is None

    def centred_on(self, leaves: Leaves) -> Self:
        """The same around these weights."""
        other = replace(self, center="start")
        object.__setattr__(other, "_around", leaves)
        return other

    def at_zero(self) -> Self:
        """The same around zero."""
        return replace(self, center="zero")

    @classmethod
    def from_weight_decay(cls, weight_decay: float, num_data: int) -> "NormalPrior":
        """The prior whose MAP is that of `weight_decay` on the mean loss: std^2 = 1 / (weight_decay * num_data)."""
        if weight_decay <= 0 or num_data < 1:
            raise SettingError(
                f"a prior needs positive weight decay and data, got {weight_decay} and {num_data}; "
                "no weight decay is prior=None"
            )
        return cls(std=1 / math.sqrt(weight_decay * num_data))

    def log_prob(self, params: Leaves, scales: dict[str, float]) -> Tensor:
        """Sum of normal log densities."""
        terms, centers = [], self.centers
        for name, leaf in params.items():
            constant = leaf[0].numel() * (math.log(scales[name]) + math.log(2 * math.pi) / 2)
            away = leaf - centers[name] if centers else leaf
            terms.append(-away.reshape(len(leaf), -1).square().sum(1) / (2 * scales[name] ** 2) - constant)
        return torch.stack(terms).sum(0)

    def gradient(self, params: Leaves, scales: dict[str, float]) -> Leaves:
        """-(w - c) / std^2."""
        centers = self.centers
        away = {name: leaf - centers[name] for name, leaf in params.items()} if centers else params
        return {name: leaf / -(scales[name] ** 2) for name, leaf in away.items()}

    def sample(self, shapes: Shapes, generator: torch.Generator, dtype: torch.dtype) -> Leaves:
        """Draw from the normal."""
        scales, centers, leaves = self.shared_scales(shapes), self.centers, {}
        for name, shape in shapes.items():
            leaves[name] = scales[name] * torch.randn(shape, generator=generator, dtype=dtype)
            if centers:
                leaves[name] += centers[name].to(leaves[name])
        return leaves

    def _scale(self) -> Scale:
        return 1.0 if isinstance(self.std, tuple | list) else self.std


@dataclass(frozen=True)
class VaguePrior(NormalPrior):
    """What a task assumes if nobody states a prior: a size at which networks of any width work, held loosely.

    Weights of layers are Normal(0, std^2 / fan-in), about as they start by He's rule, and biases and norm layers are
    Normal(0, 1). It is nobody's belief, and there is a term of it for every weight. In a network of more weights than
    there are rows these terms would outweigh the data, so the log density counts for

        T = min(0.1, rows / weights),   log joint = N * mean log p(y|f) + T log p(w)

    which is that of a normal whose standard deviations are 1 / sqrt(T) times as large. Members that repel one another
    have the same temperature: their posterior is p(y|w)^(1/T) p(w).
    """

    std: float = setting(2.0, "standard deviation of the weights of layers times sqrt(fan-in)", above=0)
    scaling: str = setting("fan_in", _SCALING_HELP, choices=_SCALINGS)
    stated = False

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.scaling == "fan_in" and self.per_member is None and self.center == "zero"
        require(
            plain,
            "a vague prior is scaled by fan-in, stands around zero and is the same for all members; state a "
            "NormalPrior for others",
        )

    def weight(self, num_data: float, num_parameters: int) -> float:
        """T, from the numbers of rows and of weights."""
        return min(_LARGEST_WEIGHT_OF_VAGUE_PRIOR, num_data / max(num_parameters, 1))

    def _scale_of(self, name: str, shape: tuple[int, ...]) -> float:
        return super()._scale_of(name, shape) if len(shape) > 1 else 1.0


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """w ~ Laplace(0, scale), which favours sparse weights: log p(w) = -|w| / scale - log(2 scale)."""

    scale: Scale = setting(1.0, "scale, for all leaves or by name pattern", above=0)
    scaling: str = setting("none", _SCALING_HELP, choices=_SCALINGS)

    def log_prob(self, params: Leaves, scales: dict[str, float]) -> Tensor:
        """Sum of Laplace log densities."""
        terms = []
        for name, leaf in params.items():
            constant = leaf[0].numel() * math.log(2 * scales[name])
            terms.append(-leaf.reshape(len(leaf), -1).abs().sum(1) / scales[name] - constant)
        return torch.stack(terms).sum(0)

    def gradient(self, params: Leaves, scales: dict[str, float]) -> Leaves:
        """-sign(w) / scale."""
        return {name: leaf.sign() / -scales[name] for name, leaf in params.items()}

    def sample(self, shapes: Shapes, generator: torch.Generator, dtype: torch.dtype) -> Leaves:
        """Draw from the Laplace distribution: an exponential with a random sign."""
        scales, leaves = self.scales(shapes), {}
        for name, shape in shapes.items():
            size = torch.empty(shape, dtype=dtype).exponential_(generator=generator)
            sign = torch.randint(0, 2, shape, generator=generator).to(dtype) * 2 - 1
            leaves[name] = scales[name] * size * sign
        return leaves

    def _scale(self) -> Scale:
        return self.scale
