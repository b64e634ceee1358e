"""Members that feel one another: what repulsive ensembles and SVGD share, in the space of weights and of functions.

Both move members along

    phi = D (factor * gradient) - R x,      D, R: (member, member)

In weight space (`weight_space.py`) x are the weights of each member and the gradient is that of its log joint; in
function space (`function_space.py`) x are its outputs. A method says what D and R are, given the products B = X X^T of
the centred members.
"""

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bayesemble.core.errors import TrainingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting, validate
from bayesemble.core.types import Batch, Clock, Info, Leaves, exact
from bayesemble.execute.optimizers.fused import leaf_rows
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod
from bayesemble.methods.repulsion import kernels
from bayesemble.methods.repulsion.kernels import KERNELS, Kernel, KernelLike, Linear
from bayesemble.task.likelihoods import Heteroscedastic
from bayesemble.task.task import BoundTask

logger = logging.getLogger("bayesemble")

ANNEALS = ("none", "linear", "tanh", "cyclical")

_FAINT_SHARE_OF_DRIVING_FORCE = 1e-6
_LAST_ESTIMATE = "interaction"  # a slot
PARAMETERS_OF_A_LARGE_NETWORK = 10_000
_STEPS_IN_LARGE_NETWORKS = 8  # from one estimate to the next
_COORDINATES_OF_A_BLOCK = 1 << 17
_NUMBERS_MIXED_AT_A_TIME = 1 << 20
_ROWS_OF_A_SMALL_TABLE = 2_000
_CAUTION = (
    "on small tables of numbers whose noise is learned this may cost log score, or gain some; compare it by held-out "
    "rows with repulsion=0, and with a be.DeepEnsemble under be.NormalPrior(0.3)"
)


class Forces(NamedTuple):
    """How members act on one another, `(member, member)`: phi = driving @ gradients - repelling @ positions."""

    driving: Tensor | None
    """None is the identity: each member is driven by its own gradient alone."""
    repelling: Tensor
    even: bool = False
    """Whether a member is driven by each of the others alike, as any two of them are at one distance."""


@dataclass(frozen=True, kw_only=True)
class InteractingMethod(GradientMethod, ABC):
    """Settings that methods with interacting members have."""

    kernel: KernelLike = setting(
        "rbf",
        "how alike two members are: a name, a kernel such as be.kernels.RBF(), or a function of squared distances",
        choices=KERNELS,
    )
    bandwidth: str | float = setting("median", "length of the kernel, or the median rule", choices=("median",), above=0)
    repulsion: str | float = setting(
        "auto",
        "factor on the repulsion, the temperature of the ensemble; 0 turns it off; auto: 1 under a prior that was "
        "stated, else what the vague one counts for",
        choices=("auto",),
        least=0,
    )
    calibrate: bool = setting(True, "rescale the repulsion so that Stein's identity holds; False is the papers' form")
    driving: float = setting(
        1.0, "factor on the driving force, once it has risen; below 1 is a warm posterior", above=0
    )
    anneal: str = setting("none", "how the driving force rises from 0", choices=ANNEALS)
    anneal_share: float = setting(0.5, "share of training over which it rises", within="(0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.make_kernel()  # refuses a bandwidth that cannot be honoured
        fits = self.centred or not self.calibrate
        require(fits, "the linear kernel is no function of distances, so it cannot be calibrated: set calibrate=False")

    @abstractmethod
    def forces(self, gram: Tensor, dim: int) -> Forces:
        """What members do to one another, from the products of their positions in `dim` coordinates.

        Positions are `centred`; then rows of the repelling matrix sum to zero. The factor on the repulsion comes later.
        """

    def forces_in(self, task: BoundTask, gram: Tensor, dim: int) -> Forces:
        """The forces, with the factor on the repulsion."""
        found = self.forces(gram, dim)
        return found._replace(repelling=self.strength(task) * found.repelling)

    def strength(self, task: BoundTask) -> float:
        """The factor on the repulsion, which is the temperature of the ensemble.

        At 1, members settle like draws of the posterior. That is what somebody wants who has stated a prior: in all
        directions that the data leave open, members then spread as wide as it says. Where nobody has, the log density
        of the vague prior counts for T, and the entropy of the members, which holds against it, counts for as much:

            N * mean log p(y|f) + T (log p(w) + entropy)

        As published (`calibrate=False`), the factor is 1.
        """
        if not isinstance(self.repulsion, str):
            return self.repulsion
        return task.prior_weight if self.calibrate else 1.0

    def resolved(self, task: BoundTask) -> dict[str, str]:
        """The factor on the repulsion, if it is left to the method."""
        if self.repulsion != "auto":
            return {}
        if not self.calibrate:
            why = "as published"
        elif task.prior is None or task.prior.stated:
            why = "as a prior was stated, members spread as wide as it says"
        else:
            why = f"no prior was stated; there are {task.num_data:,} rows for {task.num_parameters:,} weights"
            why += f". {_CAUTION}" if self.may_harm(task) else ""
        return {"repulsion": f"{self.strength(task):.3g}: {why}"}

    def may_harm(self, task: BoundTask) -> bool:
        """Whether the strength was left to the method where that was seen to cost log score: see docs/repulsion.md."""
        left = self.repulsion == "auto" and self.calibrate and self.num_members > 1
        vague = task.prior is not None and not task.prior.stated
        learned_noise = isinstance(task.likelihood, Heteroscedastic)
        return left and vague and learned_noise and task.num_data < _ROWS_OF_A_SMALL_TABLE

    def make_kernel(self) -> Kernel | Linear:
        """The kernel that the settings describe."""
        return kernels.resolve(self.kernel, self.bandwidth)

    @property
    def centred(self) -> bool:
        """Whether only differences between members count, as for all kernels but the linear one."""
        return not (self.kernel == "linear" or isinstance(self.kernel, Linear))

    def driving_factor(self, clock: Clock) -> float:
        """What the gradient is multiplied by: it rises from 0 to `driving` over the first part of training.

        linear    t / (T - 1)
        tanh      tanh((1.3 t / T)^10)
        cyclical  ((t mod c) / c)^10,  c = floor(T / 5)

        Early on, repulsion rules. Reference: D'Angelo & Fortuin (2021); the factor itself: the reproduction of it.
        """
        span = int(self.anneal_share * clock.total_steps)
        if self.anneal == "none" or clock.step >= span:
            return self.driving
        if self.anneal == "linear":
            return self.driving * clock.step / max(span - 1, 1)
        if self.anneal == "tanh":
            return self.driving * math.tanh((1.3 * clock.step / span) ** 10)
        cycle = max(span // 5, 1)
        return self.driving * ((clock.step % cycle) / cycle) ** 10

    def numbers(self, clock: Clock) -> dict[str, float]:
        """The learning rate, and the factor on the driving force."""
        return super().numbers(clock) | {"driving": self.driving_factor(clock)}

    def driven(self, context: Context) -> float | Tensor:
        """The factor on the driving force at this step."""
        if self.anneal == "none":
            return self.driving
        number = context.number(self, "driving")
        return number.to(context.task.dtype) if isinstance(number, Tensor) else number


@dataclass(frozen=True, kw_only=True)
class Space(ABC):
    """What members are compared by, and how they move there: the settings of a space, and its step."""

    measure_every: int | None = setting(
        None, "steps between estimates of distances and forces; None: 8 in large networks, 1 in small ones", least=1
    )

    training_slots: ClassVar[tuple[str, ...]] = (_LAST_ESTIMATE,)
    """Slots that only training needs."""

    def __post_init__(self) -> None:
        validate(self)

    def prepare(self, method: InteractingMethod, state: State, task: BoundTask, seed: int) -> State:
        """Add to the state that the first step starts from what the space needs; refuse a method that does not fit.

        Say so, once in a process, if the strength that was left to the method may harm.
        """
        if method.may_harm(task):
            _caution_once()
        return state

    @abstractmethod
    def step(
        self,
        method: InteractingMethod,
        state: State,
        batch: Batch,
        context: Context,
        all_members: Members | None = None,
    ) -> tuple[State, Info]:
        """Move the members by one batch.

        `all_members` are those that repel, if there are others besides; those that move come last.
        """

    def kind_of_step(self, context: Context) -> Hashable | None:
        """What tells a step from those that are made of other operations, as `Method.kind_of_step` has it.

        The first step finds no estimate in the state, and no other is like it.
        """
        if context.clock.step == 0:
            return None
        return "measured" if self._is_time(context) else "kept"

    def draw_ahead(self, state: State, context: Context) -> None:
        """What the step draws at random, as `Method.draw_ahead` has it."""

    def common_leaves(self, slot: str, leaves: Leaves) -> tuple[str, ...]:
        """As `Method.common_leaves` has it: the matrices between members."""
        return tuple(name for name in leaves if name in Forces._fields) if slot == _LAST_ESTIMATE else ()

    def is_due(self, state: State, context: Context) -> bool:
        """Whether forces are estimated anew at this step, as they always are the first time.

        Members of large networks move little, against their distances, from one step to the next, and an estimate
        costs time. Small ones may be many and close together, where the matrices change fast, and cost nothing.
        """
        return self._is_time(context) or _LAST_ESTIMATE not in state.slots

    def _is_time(self, context: Context) -> bool:
        return context.clock.step % self.steps_between(context.task) == 0

    def steps_between(self, task: BoundTask) -> int:
        """Steps from one estimate of the forces to the next."""
        return self.measure_every or (_STEPS_IN_LARGE_NETWORKS if is_large(task) else 1)


@cache
def _caution_once() -> None:
    logger.warning("members repel one another at a strength that nobody stated: %s", _CAUTION)


def is_large(task: BoundTask) -> bool:
    """Whether passes through all weights are what costs time; members of such networks are far apart."""
    return task.num_parameters > PARAMETERS_OF_A_LARGE_NETWORK


def keep_estimate(state: State, estimate: Leaves) -> State:
    """Keep an estimate of the forces for the steps until the next."""
    return replace(state, slots=state.slots | {_LAST_ESTIMATE: estimate})


def last_estimate(state: State) -> Leaves:
    """What was kept last; empty before the first time."""
    return state.slots.get(_LAST_ESTIMATE, {})


def told(state: State, factor: float | Tensor, task: BoundTask) -> Info:
    """What the history has of each member: the factor on the driving force, as `driving` and `anneal` make it, and the
    lengths of the forces when they were estimated last, that factor in them."""
    norms = {name: state.slots[_LAST_ESTIMATE][name] for name in ("driving_norm", "repulsion_norm")}
    return {"driving": torch.ones_like(norms["driving_norm"], dtype=task.dtype) * factor, **norms}


def check_finite(gram: Tensor, what: str, context: Context) -> None:
    """Stop with a sentence if members have left the real numbers, before their distances are looked at."""
    if not context.recorded and not gram.isfinite().all():
        member = int((~gram.diagonal().isfinite()).nonzero()[0])
        raise TrainingError(
            f"the {what} of member {member} are not finite any more at step {context.clock.step + 1}; lower the "
            "learning rate, set clip=1.0, or check the scale of the inputs"
        )


def products(leaves: list[Tensor], centred: bool = True, team: Team = ALONE) -> tuple[Tensor, int]:
    """B = X X^T `(member, member)` of centred members, summed leaf by leaf, and the number of coordinates.

    Differences from the first member keep the digits that matter where members are large and close together; centring
    on the mean is then done on the products.
    """
    parts, dim = [], 0
    for block in blocks(leaves, team):
        own = joined(block)
        dim += own.shape[1]
        columns = team.columns(own)
        offsets = columns - columns[0] if centred else columns
        parts.append(offsets @ offsets.T)
    total = team.summed(exact(torch.stack(parts)).sum(0))
    if not centred:
        return total, dim
    return total - total.mean(0) - total.mean(1, keepdim=True) + total.mean(), dim


def blocks(leaves: list[Tensor], team: Team = ALONE) -> Iterator[list[Tensor]]:
    """Views `(member, coordinate)` of parts of the leaves, in blocks that are small enough for copies of them.

    A process alone takes each leaf by itself, which needs no copy. Ranks tell one another small leaves together: a
    message takes its time, however little is in it.
    """
    block: list[Tensor] = []
    for leaf in leaves:
        for part in leaf_rows(leaf).split(_COORDINATES_OF_A_BLOCK, dim=1):
            full = sum(one.shape[1] for one in block) + part.shape[1] > _COORDINATES_OF_A_BLOCK
            if block and (full or team is ALONE):
                yield block
                block = []
            block.append(part)
    if block:
        yield block


def joined(block: list[Tensor]) -> Tensor:
    """The coordinates of a block side by side."""
    return block[0] if len(block) == 1 else torch.cat(block, dim=1)


def with_parts(block: list[Tensor], found: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each part of a block, with what was found for its coordinates."""
    return zip(block, found.split([part.shape[1] for part in block], dim=1), strict=True)


def mixed(matrix: Tensor, columns: Tensor) -> Tensor:
    """matrix @ columns, by as many columns at a time as stay in the processor's cache.

    So thin a product, taken at once, waits for memory.
    """
    at_a_time = max(_NUMBERS_MIXED_AT_A_TIME // len(columns), 1)
    parts = [matrix @ part for part in columns.split(at_a_time, dim=1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def norms(driving: Tensor, repelling: Tensor, gram: Tensor, team: Team = ALONE) -> Info:
    """Lengths of the forces on each member, `(member,)`: |R x_i|^2 = (R B R^T)_ii.

    `driving` has the lengths of the driving forces, with the factor on them.
    """
    squares = team.own(((repelling @ gram) * repelling).sum(1)[-team.total(len(driving)) :])
    return {"driving_norm": exact(driving), "repulsion_norm": squares.clamp(min=0).sqrt()}


def watch(found: Info, context: Context) -> None:
    """Warn if the repulsion is too faint to do anything."""
    if context.recorded:
        return
    shares = found["repulsion_norm"] / found["driving_norm"].clamp(min=1e-300)
    if 0 < float(shares.max()) < _FAINT_SHARE_OF_DRIVING_FORCE:
        warnings.warn(
            "members hardly repel one another: the repulsion is less than a millionth of the driving force, so this is "
            "a deep ensemble. Use calibrate=True, a larger repulsion, or a driving factor below 1",
            stacklevel=3,
        )
