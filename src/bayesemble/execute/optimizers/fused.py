"""Optimisers over stacked leaves: one fused update for all members, its moments kept as plain tensors.

Each is a pair of functions: `init` makes the slots, `update` moves the leaves in place. They call the operations of
torch's own fused optimisers, so the numbers are those of `torch.optim` run on each member by itself. Lion and the
schedule-free ones, which torch does not have, are written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves, widest
from bayesemble.execute.optimizers.rates import Part, Rate, of_part

SCHEDULE_FREE = ("schedule_free_sgd", "schedule_free_adamw")
FUSED = ("adam", "adamw", "sgd", "lion", *SCHEDULE_FREE)
EPSILON = 1e-8
BETA_2 = {"adam": 0.999, "adamw": 0.999, "lion": 0.99, "schedule_free_adamw": 0.999}
FIRST_MOMENT = "first_moment"  # a slot: the running mean of the gradients
_MOMENTS = (FIRST_MOMENT, "second_moment", "momentum", "fast")
OPTIMIZER_SLOTS = (*_MOMENTS, "steps")
_BLOCK = 1 << 17  # coordinates that are summed in single precision


@dataclass(frozen=True)
class Optimizer:
    """Minimise along given gradients.

    "adam" (Kingma & Ba 2015), "adamw" (decoupled weight decay, Loshchilov & Hutter 2019), "sgd" with momentum, "lion"
    (Chen et al. 2023), which moves by the sign alone:

        w <- w - rate * ( sign(beta1 m + (1 - beta1) g) + decay * w ),    m <- beta2 m + (1 - beta2) g

    The momentum of Adam and Lion is their first decay rate, beta 1.

    "schedule_free_sgd" and "schedule_free_adamw" (Defazio et al. 2024) have two sets of weights: the parameters are the
    average x, and the slot `fast` holds z, which moves. Gradients belong between the two, at y:

        y = (1 - momentum) z + momentum x,     z <- z - rate * ( g(y) / scale + decay * y ),     x <- (1 - c) x + c z
        c = m^2 / (sum of m^2 over all steps), m the largest rate so far

    where scale is 1, or Adam's sqrt(v) + epsilon with its correction for the first steps.
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
        return int(self.momentum > 0) if self.name == "sgd" else 1 if self.name in ("lion", "schedule_free_sgd") else 2

    def looked_at(self, params: Leaves, slots: dict[str, Leaves]) -> Leaves:
        """The weights that the gradient of the next step is taken at: the parameters, unless it is schedule-free."""
        if self.name not in SCHEDULE_FREE:
            return params
        return {name: torch.lerp(slots["fast"][name], leaf, self.momentum) for name, leaf in params.items()}

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
        if self.name in SCHEDULE_FREE:
            slots = {"fast": allocator.zeros_like(params, "fast")}
            for name, leaf in slots["fast"].items():
                leaf.copy_(params[name])
            if self.name == "schedule_free_adamw":
                slots["second_moment"] = allocator.zeros_like(params, "second_moment")
            sums = {name: torch.zeros((), dtype=torch.float64) for name in ("largest_rate", "sum", "share")}
            return {**slots, "steps": steps | sums}
        moments = {slot: allocator.zeros_like(params, slot) for slot in (FIRST_MOMENT, "second_moment")}
        return {**moments, "steps": steps}

    def update(
        self,
        params: Leaves,
        gradients: Leaves,
        slots: dict[str, Leaves],
        learning_rate: Rate | Sequence[Part],
        together: int | None = None,
    ) -> None:
        """Take one step downhill, in place, at one rate or at that of each part.

        The last numbers of a tensor that do not fill a vector of the processor are rounded in another way than the
        others. So where members must not feel what else a leaf holds, so many of them `together` are a tensor of their
        own.
        """
        if "steps" in slots:
            slots["steps"]["step"].add_(1)
        whole = learning_rate if isinstance(learning_rate, Sequence) else [Part(list(params), None, learning_rate)]
        if self.name in SCHEDULE_FREE:
            _count(slots["steps"], whole[0].rate)  # the share is the same for all parts, whose rates go in proportion
        slopes = {name: laid_out_like(gradients[name], leaf) for name, leaf in params.items()}
        groups = {"leaves": params, "slopes": slopes} | {slot: slots[slot] for slot in _MOMENTS if slot in slots}
        unbound: dict[str, dict[str, Sequence[Tensor]]] = {group: {} for group in groups}
        for part in whole:
            own = {group: of_part(leaves, part, unbound[group]) for group, leaves in groups.items()}
            if together is not None and part.member is None:
                own = {group: _parted(leaves, together) for group, leaves in own.items()}
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
        beta2 = BETA_2.get(self.name, 0.0) if self.beta2 is None else self.beta2
        if self.name == "lion":
            for leaf, slope, moment in zip(leaves, slopes, moments["momentum"], strict=True):
                towards = torch.lerp(slope, moment, self.momentum).sign_()
                if self.weight_decay:
                    towards.add_(leaf, alpha=self.weight_decay)
                leaf.sub_(towards.mul_(rate))
                moment.lerp_(slope, 1 - beta2)
            return
        if self.name in SCHEDULE_FREE:
            self._move_both(leaves, slopes, moments, steps, rate, beta2)
            return
        update = torch._fused_adam_ if self.name == "adam" else torch._fused_adamw_
        update(
            leaves,
            slopes,
            moments[FIRST_MOMENT],
            moments["second_moment"],
            [],
            [steps["step"]] * len(leaves),
            beta1=self.momentum,
            beta2=beta2,
            eps=self.epsilon,
            amsgrad=False,
            **common,
        )

    def _move_both(
        self,
        leaves: list[Tensor],
        slopes: list[Tensor],
        moments: dict[str, list[Tensor]],
        steps: Leaves,
        rate: Rate,
        beta2: float,
    ) -> None:
        """A schedule-free step: of z along the gradients at y, and of x, the leaves, towards z."""
        for index, (leaf, slope, fast) in enumerate(zip(leaves, slopes, moments["fast"], strict=True)):
            towards = slope
            if "second_moment" in moments:
                second = moments["second_moment"][index]
                second.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
                correction = (1 - beta2 ** steps["step"].to(steps["share"])).to(leaf.dtype)
                towards = slope / (second / correction).sqrt_().add_(self.epsilon)
            if self.weight_decay:
                towards = towards + self.weight_decay * torch.lerp(fast, leaf, self.momentum)
            fast.sub_(towards * rate)
            leaf.lerp_(fast, steps["share"].to(leaf.dtype))


def _count(steps: Leaves, rate: Rate) -> None:
    """Count a step into the average: the share of the newest weights in it goes by the square of the largest rate."""
    largest = steps["largest_rate"]
    largest.copy_(torch.maximum(largest, torch.as_tensor(rate, dtype=largest.dtype, device=largest.device)))
    squared = largest.square()
    steps["sum"].add_(squared)
    steps["share"].copy_(torch.where(squared > 0, squared / steps["sum"], 0.0))


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
    return norms.to(widest(norms.device)).square().sum(0).sqrt().to(norms.dtype)


def leaf_rows(leaf: Tensor) -> Tensor:
    """A view `(member, coordinate)` of a leaf, in the order in which it lies in memory; a copy if there is none."""
    order = sorted(range(1, leaf.dim()), key=leaf.stride, reverse=True)
    return leaf.permute(0, *order).reshape(len(leaf), -1)


def _parted(leaves: list[Tensor], together: int) -> list[Tensor]:
    """Views of so many members each."""
    return [part for leaf in leaves for part in leaf.split(together)]


def laid_out_like(gradient: Tensor, leaf: Tensor) -> Tensor:
    """Fused updates walk through memory without looking at strides: the gradient must be laid out as its leaf."""
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def turned_like(gradient: Tensor, leaf: Tensor, others: Sequence[Tensor] = ()) -> Tensor:
    """`laid_out_like` for a gradient that is let go of: one that comes transposed, as those of dense layers do, is
    turned in its own memory, a member at a time, unless somebody else holds that memory too, such as `others`, or looks
    on at operations to record them."""
    turned = gradient.dim() == 3 and leaf.is_contiguous() and gradient.mT.is_contiguous()
    if not turned or gradient.stride() == leaf.stride() or _is_held(gradient, others):
        return laid_out_like(gradient, leaf)
    found = gradient.as_strided(leaf.shape, leaf.stride(), gradient.storage_offset())
    for here, there in zip(gradient, found, strict=True):
        there.copy_(here.clone())
    return found


def _is_held(gradient: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether others than the caller of the caller have the memory of a gradient: it may be a saved tensor, or that of
    two leaves at once."""
    storage, base = gradient.untyped_storage(), gradient._base
    tensors = 1 if base is None else 2
    own = torch._C._storage_Use_Count(storage._cdata) == tensors + 1  # and `storage` itself
    alone = gradient._use_count() == 1 and (base is None or base._use_count() == 2)  # type: ignore[attr-defined]
    watched = _get_current_dispatch_mode() is not None
    return watched or not (own and alone) or any(one.untyped_storage()._cdata == storage._cdata for one in others)
