"""Optimisers of `torch.optim`, or made like them, over stacked leaves.

An optimiser whose step of each number depends on that number's own gradients alone does not notice that members are
stacked: it takes the steps that it would take on each member by itself. What it keeps is moved into slots, so that a
checkpoint holds it; it is made anew for every step, from them. Before it is used it takes a few steps of made-up
leaves both ways, on members together and by themselves, and is refused if they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Leaves
from bayesemble.execute.optimizers.fused import laid_out_like
from bayesemble.execute.optimizers.rates import Part, Rate

Factory = Callable[..., torch.optim.Optimizer]
"""Makes an optimiser: `factory(param_groups, lr=rate)`."""

BY_NAME = {
    "nadam": "NAdam",
    "radam": "RAdam",
    "adamax": "Adamax",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "rprop": "Rprop",
    "asgd": "ASGD",
}
_REASONS = {
    "LBFGS": "searches along a direction that is made of all numbers at once",
    "Muon": "makes the step of a matrix orthogonal, so that each number's depends on the others",
    "Adafactor": "keeps second moments by row and column, so that a number's step depends on the others",
    "SparseAdam": "takes sparse gradients, and those here are dense",
}
_SLOT = "optimizer_"  # in front of what the optimiser calls it
_COUNT = "steps"
_RATES = (0.1, 0.1, 0.05, 0.02)  # of the steps that are taken both ways


@dataclass(frozen=True)
class OfTorch:
    """An optimiser of `torch.optim` by name, and its settings, as they are saved."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(getattr(torch.optim, self.name, None), type):
            raise SettingError(f"torch.optim has no optimiser {self.name!r}")

    def __call__(self, groups: Any, lr: float) -> torch.optim.Optimizer:
        """Make it."""
        made: torch.optim.Optimizer = getattr(torch.optim, self.name)(groups, lr=lr, **self.settings)
        return made


def as_setting(given: Any) -> Any:
    """A class of `torch.optim`, or a `functools.partial` of one, as something that can be saved; others as they are."""
    cls: Any = given
    settings: dict[str, Any] = {}
    if isinstance(given, partial) and not given.args:
        cls, settings = given.func, given.keywords
    if "lr" in settings:
        raise SettingError(f"lr={settings['lr']} is what learning_rate says: leave it out of the optimiser")
    name = getattr(cls, "__name__", "")
    if isinstance(cls, type) and getattr(torch.optim, name, None) is cls:
        return OfTorch(name, dict(settings))
    return given


def name_of(factory: Factory) -> str:
    """What an optimiser is called in a sentence."""
    if isinstance(factory, OfTorch):
        return factory.name
    return str(getattr(getattr(factory, "func", factory), "__name__", repr(factory)))


@dataclass(frozen=True, eq=False)
class TorchOptimizer:
    """An optimiser made by a factory, with what it keeps in slots; with `by_member`, members have rates of their own.

    Everything that it keeps of a leaf has the shape of that leaf, or is one number.
    """

    factory: Factory
    by_member: bool = False

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What it keeps of each leaf, by name: a tensor like it has None, a single number the type that it has."""
        refuse_known(self.factory)
        try:
            return _kept_by(self.factory)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(f"{name_of(self.factory)} cannot be used on stacked members: {error}") from error

    @cached_property
    def weight_decay(self) -> float:
        """What it decays weights by."""
        return float(self._first_group.get("weight_decay", 0.0))

    @cached_property
    def _first_group(self) -> dict[str, Any]:
        return self.factory([torch.zeros(1)], lr=0.1).param_groups[0]

    @property
    def num_moments(self) -> int:
        """How many numbers are kept beside each parameter."""
        return sum(kind is None for kind in self.kept.values())

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Slots that it has."""
        return (_COUNT, *(_SLOT + key for key in self.kept))

    def check(self) -> None:
        """Refuse an optimiser that would notice that members are stacked, or whose state a checkpoint cannot hold."""
        (leaves, steps), together = _example(), TorchOptimizer(self.factory)
        stacked, slots = {name: leaf.clone() for name, leaf in leaves.items()}, together.init(leaves)
        if self._first_group.get("maximize"):
            raise SettingError(f"{name_of(self.factory)} goes uphill (maximize=True); what it is given goes downhill")
        for gradients, rate in zip(steps, _RATES, strict=True):
            together.update(stacked, gradients, slots, rate)
        for member in range(2):
            alone = [leaf[member].clone() for leaf in leaves.values()]
            optimizer = self.factory(alone, lr=_RATES[0])
            for gradients, rate in zip(steps, _RATES, strict=True):
                optimizer.param_groups[0]["lr"] = rate
                for leaf, gradient in zip(alone, gradients.values(), strict=True):
                    leaf.grad = gradient[member].clone()
                optimizer.step()
            for name, leaf in zip(leaves, alone, strict=True):
                if not torch.allclose(stacked[name][member], leaf, rtol=1e-9, atol=1e-12):
                    raise SettingError(
                        f"{name_of(self.factory)} does not move stacked members as it moves each by itself: its step "
                        "of a number depends on other numbers, on chance, or on something that it keeps elsewhere than "
                        "in its state. Use one that goes number by number, such as torch.optim.RMSprop"
                    )

    def looked_at(self, params: Leaves, slots: dict[str, Leaves]) -> Leaves:
        """The weights that gradients are taken at: the parameters."""
        return params

    def init(self, params: Leaves, allocator: Allocator = MEMORY) -> dict[str, Leaves]:
        """Make the slots, all zero; the first step fills them."""
        slots: dict[str, Leaves] = {_COUNT: {"step": torch.zeros((), dtype=torch.float32)}}
        for key, kind in self.kept.items():
            slot = _SLOT + key
            if kind is None:
                slots[slot] = allocator.zeros_like(params, slot)
            else:
                dtype = {int: torch.int64, float: torch.float64}.get(kind, kind)
                shape = {name: leaf.shape[: int(self.by_member)] for name, leaf in params.items()}
                slots[slot] = {name: torch.zeros(shape[name], dtype=dtype) for name in params}
        return slots

    def update(
        self,
        params: Leaves,
        gradients: Leaves,
        slots: dict[str, Leaves],
        learning_rate: Rate | Sequence[Part],
        together: int | None = None,
    ) -> None:
        """Take one step downhill, in place, at one rate or at that of each part.

        Operations of torch round a number in the same way wherever it lies: how many members are taken `together` makes
        no difference.
        """
        whole = [Part(list(params), None, learning_rate)] if not isinstance(learning_rate, Sequence) else learning_rate
        groups: list[dict[str, Any]] = []
        places: list[tuple[Tensor, dict[str, Tensor]]] = []
        for part in whole:
            groups.append({"params": [], "lr": float(part.rate)})
            for leaf, slope, kept in self._of_part(part, params, gradients, slots):
                leaf.grad = slope
                groups[-1]["params"].append(leaf)
                places.append((leaf, kept))
        optimizer = self.factory(groups, lr=groups[0]["lr"])
        started = bool(slots[_COUNT]["step"])
        if started:
            for leaf, kept in places:
                optimizer.state[leaf] = {key: self._given(key, tensor) for key, tensor in kept.items()}
        with torch.no_grad():
            optimizer.step()
            for leaf, kept in places:
                for key, value in optimizer.state[leaf].items():
                    if value is not kept[key]:
                        self._keep(key, value, kept[key])
            slots[_COUNT]["step"].add_(1)

    def _of_part(
        self, part: Part, params: Leaves, gradients: Leaves, slots: dict[str, Leaves]
    ) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Leaves, gradients and what is kept of them, as tensors that share memory with the whole."""
        for name in part.names:
            leaf, slope = params[name].detach(), laid_out_like(gradients[name], params[name])
            kept = {key: slots[_SLOT + key][name] for key in self.kept}
            if part.member is None:
                yield leaf, slope, kept
            else:
                yield leaf[part.member], slope[part.member], {k: t[part.member] for k, t in kept.items()}

    def _keep(self, key: str, value: Any, place: Tensor) -> None:
        if isinstance(value, Tensor) and value.dtype != place.dtype:
            raise SettingError(
                f"{name_of(self.factory)} keeps {key!r} as {value.dtype} beside leaves of another number type, which "
                f"{place.dtype} cannot hold; give the network that type"
            )
        place.copy_(torch.as_tensor(value))

    def _given(self, key: str, tensor: Tensor) -> Any:
        kind = self.kept[key]
        return kind(tensor.item()) if kind in (int, float) else tensor


def refuse_known(factory: Factory) -> None:
    """Refuse an optimiser that is known not to go number by number."""
    reason = _REASONS.get(name_of(factory))
    if reason is not None:
        raise SettingError(
            f"{name_of(factory)} {reason}: it cannot move stacked members as it moves each by itself. Use one that "
            "goes number by number, such as torch.optim.NAdam"
        )


def _example() -> tuple[Leaves, list[Leaves]]:
    """Leaves of two members of very different size, and the gradients of a few steps."""
    generator = seeds.generator(0, "optimizer")

    def made() -> Leaves:
        scale = torch.tensor([1.0, 100.0], dtype=torch.float64)
        shapes = {"matrix": (2, 3, 2), "vector": (2, 3)}
        drawn = {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
        return {name: leaf * scale.reshape(-1, *[1] * (leaf.dim() - 1)) for name, leaf in drawn.items()}

    return made(), [made() for _ in _RATES]


def _kept_by(factory: Factory) -> dict[str, Any]:
    leaves, steps = _example()
    tensors = list(leaves.values())
    optimizer, kept = factory(tensors, lr=_RATES[0]), {}
    for gradients in steps[:2]:
        for leaf, gradient in zip(tensors, gradients.values(), strict=True):
            leaf.grad = gradient
        optimizer.step()
    for leaf in tensors:
        for key, value in optimizer.state[leaf].items():
            kept[key] = _kind_of(factory, key, value, leaf)
    return kept


def _kind_of(factory: Factory, key: str, value: Any, leaf: Tensor) -> Any:
    if isinstance(value, Tensor) and value.shape == leaf.shape:
        return None
    if isinstance(value, Tensor) and not value.dim():
        return value.dtype
    if type(value) in (int, float):
        return type(value)
    came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise SettingError(
        f"{name_of(factory)} keeps {key!r}, {came}, for a leaf of shape {tuple(leaf.shape)}: its step of a number is "
        "not its own. Use one that goes number by number, such as torch.optim.NAdam"
    )
