"""Priors over the parameters of a network: independent, centred on 0, with one scale per leaf."""

import fnmatch
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves

Scale = float | dict[str, float]
"""One number for all leaves, or name patterns such as `{"head.*": 0.1, "*": 1.0}`; the first match counts."""

Shapes = dict[str, tuple[int, ...]]

_SCALING_HELP = '"fan_in" divides the scale of every weight matrix or kernel by sqrt(fan-in)'
_SCALINGS = ("none", "fan_in")


class Prior(ABC):
    """Independent parameters: log p(w) = sum over leaves and elements of log p(element; scale of the leaf)."""

    scaling: str
    stated: ClassVar[bool] = True
    """Whether somebody believes in it. Members that repel one another spread as wide as a stated prior says."""

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
            if fnmatch.fnmatchcase(name, pattern):
                fan_in = math.prod(shape[1:]) if self.scaling == "fan_in" else 1
                return scale / math.sqrt(fan_in)
        raise SettingError(f'the prior has no scale for the parameter {name!r}; add a pattern such as "*"')


@dataclass(frozen=True)
class NormalPrior(Prior):
    """w ~ Normal(0, std^2): log p(w) = -w^2 / (2 std^2) - log std - log(2 pi) / 2."""

    std: Scale = setting(1.0, "standard deviation, for all leaves or by name pattern", above=0)
    scaling: str = setting("none", _SCALING_HELP, choices=_SCALINGS)

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
        terms = []
        for name, leaf in params.items():
            constant = leaf[0].numel() * (math.log(scales[name]) + math.log(2 * math.pi) / 2)
            terms.append(-leaf.reshape(len(leaf), -1).square().sum(1) / (2 * scales[name] ** 2) - constant)
        return torch.stack(terms).sum(0)

    def gradient(self, params: Leaves, scales: dict[str, float]) -> Leaves:
        """-w / std^2."""
        return {name: leaf / -(scales[name] ** 2) for name, leaf in params.items()}

    def sample(self, shapes: Shapes, generator: torch.Generator, dtype: torch.dtype) -> Leaves:
        """Draw from the normal."""
        scales, leaves = self.scales(shapes), {}
        for name, shape in shapes.items():
            leaves[name] = scales[name] * torch.randn(shape, generator=generator, dtype=dtype)
        return leaves

    def _scale(self) -> Scale:
        return self.std


@dataclass(frozen=True)
class VaguePrior(NormalPrior):
    """What a task assumes if nobody states a prior: w ~ Normal(0, std^2 / fan-in), a few times wider than networks start.

    It holds weights at a size at which a network of any width still works, and otherwise leaves them to the data. It is
    nobody's belief: methods that would spread members as wide as a prior says are told so (`stated`).
    """

    std: Scale = setting(6.0, "standard deviation times sqrt(fan-in), for all leaves or by name pattern", above=0)
    scaling: str = setting("fan_in", _SCALING_HELP, choices=_SCALINGS)
    stated = False


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
