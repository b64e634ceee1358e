"""Optimisers over stacked leaves: one fused update for all members, its moments kept as plain tensors.

Each is a pair of functions: `init` makes the slots, `update` moves the leaves in place. They call the operations of
torch's own fused optimisers, so the numbers are those of `torch.optim` run on each member by itself. Lion, which torch
does not have, is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves
from bayesemble.execute.optimizers.rates import Part, Rate, of_part

FUSED = ("adam", "adamw", "sgd", "lion")
EPSILON = 1e-8
BETA_2 = {"adam": 0.999, "adamw": 0.999, "lion": 0.99}
_MOMENTS = ("first_moment", "second_moment", "momentum")
OPTIMIZER_SLOTS = (*_MOMENTS, "steps")
_BLOCK = 1 << 17  # coordinates that are summed in single precision


@dataclass(frozen=True)
class Optimizer:
    """Minimise along given gradients.

    "adam" (Kingma & Ba 2015), "adamw" (decoupled weight decay, Loshchilov & Hutter 2019), "sgd" with momentum, "lion"
    (Chen et al. 2023), which moves by the sign alone:

        w <- w - rate * ( sign(beta1 m + (1 - beta1) g) + decay * w ),    m <- beta2 m + (1 - beta2) g

    The momentum of Adam and Lion is their first decay rate, beta 1.
    """

    name: str = setting(MISSING, "rule that makes steps of gradients", choices=FUSED)
    momentum: float = setting(MISSING, "momentum of sgd, or the first decay rate (beta 1) of others", within="[0, 1)")
    weight_decay: float = setting(MISSING, "decay of the weights", least=0)
    epsilon: float = setting(EPSILON, "what adam adds to the root of its second moment", above=0)
    beta2: float | None = setting(None, "second decay rate; None is that of the paper", within="[0, 1)")

    def __post_init__(self) -> None:
        validate(self)

    @property
    def num_moments(self) -> int:
        """How many numbers are kept beside each parameter."""
        return int(self.momentum > 0) if self.name == "sgd" else 1 if self.name == "lion" else 2

    def check(self) -> None:
        """All of these move stacked members as each by itself."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Slots that it may have."""
        return OPTIMIZER_SLOTS

    def init(self, params: Leaves, allocator: Allocator = MEMORY) -> dict[str, Leaves]:
        """Make the slots: zero moments, and the number of steps done."""
        if self.name == "sgd":
            return {"momentum": allocator.zeros_like(params, "momentum")} if self.momentum else {}
        if self.name == "lion":
            return {"momentum": allocator.zeros_like(params, "momentum")}
        steps = {"step": torch.zeros((), dtype=torch.float32)}
        moments = {slot: allocator.zeros_like(params, slot) for slot in ("first_moment", "second_moment")}
        return {**moments, "steps": steps}

    def update(
        self,
        params: Leaves,
        gradients: Leaves,
        slots: dict[str, Leaves],
        learning_rate: Rate | Sequence[Part],
        fits: int = 1,
    ) -> None:
        """Take one step downhill, in place, at one rate or at that of each part.

        The last numbers of a tensor that do not fill a vector of the processor are rounded in another way than the
        others. So where leaves hold members of several `fits`, those of each are a tensor of their own.
        """
        if "steps" in slots:
            slots["steps"]["step"].add_(1)
        slopes = {name: laid_out_like(gradients[name], leaf) for name, leaf in params.items()}
        groups = {"leaves": params, "slopes": slopes} | {slot: slots[slot] for slot in _MOMENTS if slot in slots}
        unbound: dict[str, dict[str, Sequence[Tensor]]] = {group: {} for group in groups}
        for part in learning_rate if isinstance(learning_rate, Sequence) else [Part(list(params), None, learning_rate)]:
            own = {group: of_part(leaves, part, unbound[group]) for group, leaves in groups.items()}
            if fits > 1:
                own = {group: _each(leaves, fits) for group, leaves in own.items()}
            with torch.no_grad():
                self._move(own.pop("leaves"), own.pop("slopes"), own, slots.get("steps", {}), part.rate)

    def _move(
        self, leaves: list[Tensor], slopes: list[Tensor], moments: dict[str, list[Tensor]], steps: Leaves, rate: Rate
    ) -> None:
        common: dict[str, Any] = {"lr": rate, "weight_decay": self.weight_decay, "maximize": False}
        if self.name == "sgd":
            # torch starts the momentum with the first gradient; from zero, momentum * 0 + gradient is the same.
            common |= {"momentum": self.momentum, "dampening": 0.0, "nesterov": False, "is_first_step": False}
            torch._fused_sgd_(leaves, slopes, moments.get("momentum", []), **common)
            return
        beta2 = BETA_2[self.name] if self.beta2 is None else self.beta2
        if self.name == "lion":
            for leaf, slope, moment in zip(leaves, slopes, moments["momentum"], strict=True):
                towards = torch.lerp(slope, moment, self.momentum).sign_()
                if self.weight_decay:
                    towards.add_(leaf, alpha=self.weight_decay)
                leaf.sub_(towards.mul_(rate))
                moment.lerp_(slope, 1 - beta2)
            return
        update = torch._fused_adam_ if self.name == "adam" else torch._fused_adamw_
        update(
            leaves,
            slopes,
            moments["first_moment"],
            moments["second_moment"],
            [],
            [steps["step"]] * len(leaves),
            beta1=self.momentum,
            beta2=beta2,
            eps=self.epsilon,
            amsgrad=False,
            **common,
        )


def clip_per_member(gradients: Leaves, max_norm: float, shared: frozenset[str]) -> None:
    """Scale each member's gradient down to a norm of at most `max_norm`, in place; shared leaves stay."""
    stacked = [leaf for name, leaf in gradients.items() if name not in shared]
    if not stacked:
        return
    norms = member_norms(stacked)
    factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for leaf in stacked:
        leaf.mul_(factors.reshape(-1, *[1] * (leaf.dim() - 1)))


def member_norms(stacked: list[Tensor]) -> Tensor:
    """Euclidean norm over all leaves of each member, `(member,)`."""
    blocks = [block for leaf in stacked for block in leaf_rows(leaf).split(_BLOCK, dim=1)]
    norms = torch.stack([torch.linalg.vector_norm(block, dim=1) for block in blocks])
    return norms.double().square().sum(0).sqrt().to(norms.dtype)


def leaf_rows(leaf: Tensor) -> Tensor:
    """A view `(member, coordinate)` of a leaf, in the order in which it lies in memory; a copy if there is none."""
    order = sorted(range(1, leaf.dim()), key=leaf.stride, reverse=True)
    return leaf.permute(0, *order).reshape(len(leaf), -1)


def _each(leaves: list[Tensor], fits: int) -> list[Tensor]:
    """Views of what belongs to each fit."""
    return [part for leaf in leaves for part in leaf.chunk(fits)]


def laid_out_like(gradient: Tensor, leaf: Tensor) -> Tensor:
    """Fused updates walk through memory without looking at strides: the gradient must be laid out as its leaf."""
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)
