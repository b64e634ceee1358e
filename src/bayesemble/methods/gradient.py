"""What all gradient methods share: where the log posterior pulls each member, and how it moves.

A method's step reads: `uphill` (the gradient of the log joint of each member), whatever the method adds to it, and
`ascend` (one fused optimiser step along the result).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import (
    Batch,
    Clock,
    Info,
    Inputs,
    Leaves,
    MemberFunction,
    Outputs,
    map_tensors,
    tensors_of,
)
from bayesemble.execute import schedules
from bayesemble.execute.optimizers import rates
from bayesemble.execute.optimizers.fused import EPSILON, FUSED, SCHEDULE_FREE, Optimizer, clip_per_member
from bayesemble.execute.optimizers.of_torch import BY_NAME, Factory, OfTorch, TorchOptimizer, as_setting, name_of
from bayesemble.execute.schedules import SCHEDULES, ScheduleLike, resolve
from bayesemble.methods.anchors import anchors, with_target_noise
from bayesemble.methods.base import Context, Method
from bayesemble.methods.geometry.batch_norm import norm_buffers
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.task import BoundTask

PRIOR_SLOT = "priors_of_members"
_MOMENTUM = 0.9
# Settings of optimisers with their defaults, and which optimiser has which.
_OF_OPTIMIZER = {"momentum": _MOMENTUM, "beta2": None, "epsilon": EPSILON, "weight_decay": 0.0}
_USED = {
    "adam": ("momentum", "beta2", "epsilon", "weight_decay"),
    "adamw": ("momentum", "beta2", "epsilon", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
    "lion": ("momentum", "beta2", "weight_decay"),
    "schedule_free_sgd": ("momentum", "weight_decay"),
    "schedule_free_adamw": ("momentum", "beta2", "epsilon", "weight_decay"),
}

RateLike = float | tuple[float, float] | list[float] | rates.Patterns
"""One rate, the ends of those that are drawn for each member, one for each member, or rates by patterns of names."""


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Settings that every gradient method has."""

    num_members: int = setting(5, "number of independently started members", least=1)
    learning_rate: RateLike = setting(
        1e-3,
        "step size, before the schedule, for all leaves or by name pattern; (low, high): drawn for each member; a "
        "list: for each",
        above=0,
    )
    optimizer: str | OfTorch | Factory = setting(
        "adam",
        "rule that makes steps of gradients, by name, or a class of torch.optim that goes number by number",
        choices=(*FUSED, *BY_NAME),
    )
    schedule: ScheduleLike = setting("constant", "how the learning rate goes along training", choices=SCHEDULES)
    momentum: float = setting(
        _MOMENTUM, "momentum of sgd, or the first decay rate (beta 1) of adam and lion", within="[0, 1)"
    )
    beta2: float | None = setting(
        None, "second decay rate of adam (None: 0.999) and lion (None: 0.99)", within="[0, 1)"
    )
    epsilon: float = setting(
        EPSILON, "epsilon of adam, beside roots of second moments of the gradient of the mean loss", above=0
    )
    rate_per_member: tuple[float, ...] | None = setting(
        None, "factors on the learning rate, one for each member", above=0
    )
    weight_decay: float = setting(
        0.0, "decay of the optimiser, only for a task without prior, which says the same", least=0
    )
    clip: float | None = setting(
        None, "largest norm of each member's gradient of the mean loss; None cuts nothing", above=0
    )
    bootstrap: bool = setting(False, "train each member on its own resample of the rows")
    own_order: bool = setting(False, "let each member see the rows in an order of its own, hence in other batches")
    anchored: bool = setting(False, "centre each member's prior on its own prior draw, and add noise to its targets")
    adversarial: float = setting(0.0, "size of the FGSM step in units of the inputs; 0 turns it off", least=0)

    changeable = ("learning_rate", "rate_per_member", "schedule", "clip")

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", as_setting(self.optimizer))
        super().__post_init__()
        both = self.bootstrap and self.own_order
        require(not both, "bootstrap=True gives members rows in an order of their own already; leave own_order out")
        schedules.check(self.schedule)
        self._check_rates()
        self._check_optimizer()

    def _check_rates(self) -> None:
        if isinstance(self.learning_rate, list):
            require(self.rate_per_member is None, "a list as learning_rate says what rate_per_member says: give one")
            object.__setattr__(self, "rate_per_member", tuple(self.learning_rate))
            object.__setattr__(self, "learning_rate", 1.0)
        own, drawn = self.rate_per_member, self.learning_rate if isinstance(self.learning_rate, tuple) else None
        if drawn is not None:
            words = f"a tuple as learning_rate is a pair (low, high) to draw from, got {drawn}"
            require(len(drawn) == 2 and drawn[0] < drawn[1], f"{words}; a list has one for each member")
            require(own is None, "(low, high) as learning_rate is drawn for each member: leave rate_per_member out")
        if own is not None and len(own) != self.num_members:
            raise SettingError(f"{len(own)} learning rates were given for {self.num_members} members; each needs one")

    def _check_optimizer(self) -> None:
        """Refuse settings that the optimiser has no use for, and one that would notice that members are stacked."""
        named = isinstance(self.optimizer, str)
        called, used = (repr(self.optimizer), _USED.get(str(self.optimizer), ())) if named else (self._called, ())
        for name, default in _OF_OPTIMIZER.items():
            value = getattr(self, name)
            if name not in used and value != default:
                hint = "" if used else "; give it to the optimiser itself: functools.partial(torch.optim.NAdam, ...)"
                raise SettingError(f"{name}={value} is a setting that optimizer={called} has no use for{hint}")
        require(
            self.moves_by_gradient_alone or self.optimizer not in SCHEDULE_FREE,
            f"optimizer={called} takes gradients elsewhere than where members stand, and {type(self).__name__} "
            "gathers, draws or compares members on the way; DeepEnsemble, MCDropout and Laplace take it",
        )
        if not used and not isinstance(self.optimizer, dict):
            self.make_optimizer().check()

    @property
    def _called(self) -> str:
        return self.optimizer if isinstance(self.optimizer, str) else name_of(self.optimizer)

    @property
    def rates_differ(self) -> bool:
        """Whether members have learning rates of their own."""
        return self.rate_per_member is not None or isinstance(self.learning_rate, tuple)

    def part(self, numbers: range) -> Self:
        """The method for some of its members, with their rates."""
        own = self.rate_per_member and self.rate_per_member[numbers.start : numbers.stop]
        return replace(self, num_members=len(numbers), rate_per_member=own)

    def member_rates(self, seed: int) -> tuple[float, ...]:
        """The learning rate of each member of a run, before the schedule and patterns of names."""
        if isinstance(self.learning_rate, tuple):
            return rates.log_uniform(*self.learning_rate, self.num_members, seed)
        base = self.learning_rate if isinstance(self.learning_rate, int | float) else 1.0
        return tuple(base * own for own in self.rate_per_member or [1.0] * self.num_members)

    @property
    def unrecorded(self) -> str | None:
        """Optimisers of torch look at numbers that they keep."""
        return None if self.optimizer in FUSED else f"the optimiser {self._called} is torch's"

    def make_optimizer(self) -> Optimizer | TorchOptimizer:
        """The optimiser that the settings describe.

        Adam moves along m / (sqrt(v) + epsilon), with moments of the gradient of the mean loss, 1 / N of that of the
        log joint. Loops that hand the latter itself to Adam, as the released codes of repulsive ensembles do, take the
        same steps with N times this epsilon: their 1e-8 is `epsilon=1e-8 / N` here.
        """
        return self._optimizer

    @cached_property
    def _optimizer(self) -> Optimizer | TorchOptimizer:
        if isinstance(self.optimizer, str) and self.optimizer in FUSED:
            return Optimizer(self.optimizer, self.momentum, self.weight_decay, self.epsilon, self.beta2)
        factory = OfTorch(BY_NAME[self.optimizer]) if isinstance(self.optimizer, str) else self.optimizer
        if not callable(factory):
            raise SettingError(f"of the optimiser only its name was saved, {factory}; give the method with it again")
        return TorchOptimizer(factory, by_member=self.rates_differ)

    def member_rows(self, num_data: int, seed: int) -> Tensor | None:
        """The rows each member trains on, `(member, row)`, or None if all train on all.

        A bootstrap draws as many rows as there are, with replacement, from the member's own seed; an order of its own
        is all rows, shuffled. Epochs shuffle them once more, the same way for all members.
        """
        if not (self.bootstrap or self.own_order):
            return None
        kind = "bootstrap" if self.bootstrap else "order"
        generators = [seeds.generator(seed, "member", i, kind) for i in range(self.num_members)]
        if self.bootstrap:
            return torch.stack([torch.randint(num_data, (num_data,), generator=own) for own in generators])
        return torch.stack([torch.randperm(num_data, generator=own) for own in generators])

    @property
    def gradients_per_step(self) -> int:
        """One gradient of each member; adversarial training takes one more, in the inputs."""
        return self.num_members * (2 if self.adversarial else 1)

    @property
    def changes_inputs(self) -> bool:
        """Adversarial training moves them, for each member in its own way."""
        return self.adversarial > 0

    @property
    def num_moments(self) -> int:
        """Those of the optimiser."""
        return self.make_optimizer().num_moments

    @property
    def training_slots(self) -> tuple[str, ...]:
        """The moments of the optimiser, and what the prior of each member differs by."""
        return (*self.make_optimizer().slot_names, PRIOR_SLOT)

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members independently, with an optimiser at rest."""
        members = self.new_members(task, seed)
        slots = dict(self.make_optimizer().init(members.params, task.allocator))
        if task.prior is not None and task.prior.differs_by_member:
            numbers, whole = seeds.members_of(seed, self.num_members)
            own = task.prior.member_factors(whole, seeds.generator(seed, "priors of members"))
            slots[PRIOR_SLOT] = {"factor": own[numbers.start : numbers.stop]}
        if self.anchored:
            slots |= anchors(self.num_members, task, seed)
        return State(members, slots)

    def new_members(self, task: BoundTask, seed: int) -> Members:
        """Members that start independently, after a look at what would shrink their weights."""
        decay = self.make_optimizer().weight_decay
        if decay and task.prior is not None:
            raise SettingError(
                f"weight_decay={decay} and the prior {task.prior} would both shrink the weights; "
                "use Task(..., prior=None), or weight_decay=0 with NormalPrior.from_weight_decay(...)"
            )
        members = task.new_members(self.num_members, seed)
        if self.optimizer in SCHEDULE_FREE and norm_buffers(task.module):
            words = "averages weights, and batch norm keeps statistics of others; use group or layer norm, or another"
            raise SettingError(f"optimizer={self.optimizer!r} {words}")
        if isinstance(self.learning_rate, dict):
            rates.check_patterns(self.learning_rate, members.params)
        for name in members.shared & members.params.keys() if self.rates_differ else ():
            raise SettingError(f"{name} is shared by all members, which cannot have rates of their own then")
        return members

    def uphill(self, state: State, batch: Batch, context: Context) -> tuple[Leaves, Info]:
        """Gradient of each member's log joint, estimated from a batch; and its loss, the mean of -log p(y|f)."""
        if self.anchored:
            batch = with_target_noise(batch, state.slots.get("target_noise"))
        at = replace(state.members, params=self.make_optimizer().looked_at(state.members.params, state.slots))
        values, gradients = self.likelihood_gradients(at, batch, context)
        center, factor = state.slots.get("anchor"), prior_factor(state)
        return context.task.log_joint_gradient(gradients, at.params, center, factor), {"loss": -values}

    def likelihood_gradients(self, members: Members, batch: Batch, context: Context) -> tuple[Tensor, Leaves]:
        """Mean log likelihood of each member on a batch, `(member,)`, and its gradient in the parameters."""
        return context.gradients(members, batch, self.data_term(context.task))

    def data_term(self, task: BoundTask) -> MemberFunction:
        """What training climbs for one member: its mean log likelihood on a batch, and on an adversarial one."""
        return _adversarial(task, self.adversarial) if self.adversarial else task.mean_log_likelihood

    def numbers(self, clock: Clock) -> dict[str, float]:
        """The learning rate, by the schedule, or that of each member; without what patterns of names say."""
        factor = self.rate_factor(clock)
        if self.rates_differ:
            return {_rate_of(i): rate * factor for i, rate in enumerate(self.member_rates(clock.seed))}
        base = self.learning_rate if isinstance(self.learning_rate, int | float) else 1.0
        return {"learning_rate": base * factor}

    def rate_factor(self, clock: Clock) -> float:
        """What the learning rate is multiplied by at a step."""
        return resolve(self.schedule)(clock.progress)

    def ascend(self, state: State, direction: Leaves, context: Context) -> State:
        """Move all members one optimiser step along a direction on the scale of the log joint, which it overwrites.

        The direction is divided by the number of rows first, so that learning rates mean what they do for a mean loss.
        """
        torch._foreach_div_(list(direction.values()), -context.task.num_data)
        if self.clip is not None:
            clip_per_member(direction, self.clip, state.members.shared)
        params, together = state.members.params, context.executor.members_of_a_tensor(state.members)
        self.make_optimizer().update(params, direction, state.slots, self._rates(params, context), together)
        return state

    def _rates(self, params: Leaves, context: Context) -> rates.Rate | list[rates.Part]:
        """The rate of all leaves of all members, or what moves at which rate."""
        if not self.rates_differ and not isinstance(self.learning_rate, dict):
            return context.number(self, "learning_rate")
        numbers, factors = context.numbers(self), None
        if isinstance(self.learning_rate, dict):
            factors = rates.factors_of(params, self.learning_rate, context.task.shapes)
        each = [numbers[_rate_of(i)] for i in range(self.num_members)] if self.rates_differ else None
        return rates.parts(params, numbers["learning_rate"] if each is None else each, factors)


def _rate_of(member: int) -> str:
    """What `numbers` calls the rate of one member."""
    return f"learning_rate of {member}"


def prior_factor(state: State) -> Tensor | None:
    """What the prior's gradient is multiplied by, `(member,)`, where the prior differs by member."""
    slot = state.slots.get(PRIOR_SLOT)
    return None if slot is None else slot["factor"]


def in_turn(members: Members, numbers: Sequence[int], own: Collection[str] = ()) -> Members:
    """Networks by number, from each member in turn; a single one is shared by all of them, but for the leaves `own`."""
    num, owners = len(numbers), torch.tensor(numbers) % members.num_members
    if members.num_members > 1:
        return members.take(owners).reweight(members.weights[owners])
    stacked = {*own, *(name for name in members.params if name.startswith(OF_LIKELIHOOD))}
    shared = frozenset(name for name in (*members.params, *members.buffers) if name not in stacked)

    def spread(leaves: Leaves) -> Leaves:
        one = {name: leaf if name in members.shared else leaf[0] for name, leaf in leaves.items()}
        return {name: leaf if name in shared else leaf.expand(num, *leaf.shape) for name, leaf in one.items()}

    weights = torch.full((num,), 1 / num, dtype=members.weights.dtype, device=members.weights.device)
    return Members(spread(members.params), spread(members.buffers), weights, shared)


def observe(
    task: BoundTask, adversarial: float, params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor
) -> Outputs:
    """Outputs of one member in training: on the batch and, if asked for, on adversarial versions of it.

    One fast-gradient-sign step, each member its own:  x' = x - size * sign(grad_x log p(y|f(x)))

    Reference: Goodfellow et al. (2015); Lakshminarayanan et al. (2017).
    """
    if not adversarial:
        return {"outputs": task.forward(params, buffers, inputs, training=True)}
    if not all(leaf.is_floating_point() for leaf in tensors_of(inputs)):
        raise SettingError("adversarial training moves the inputs, which must be real numbers, not indices")

    def likelihood(moved: Inputs, statistics: Leaves) -> tuple[Tensor, Tensor]:
        outputs = task.forward(params, statistics, moved, training=True)
        return task.log_likelihood(outputs, targets, params), outputs

    slope, outputs = torch.func.grad(likelihood, has_aux=True)(inputs, buffers)
    slopes = iter(tensors_of(slope))
    moved = map_tensors(lambda leaf: leaf - adversarial * next(slopes).detach().sign(), inputs)
    return {"outputs": outputs, "adversarial": task.forward(params, buffers, moved, training=True)}


def _adversarial(task: BoundTask, size: float) -> MemberFunction:
    """The mean of the clean and the adversarial log likelihood."""

    def function(params: Leaves, buffers: Leaves, inputs: Inputs, targets: Tensor) -> Tensor:
        seen = observe(task, size, params, buffers, inputs, targets)
        return torch.stack([task.log_likelihood(outputs, targets, params) for outputs in seen.values()]).mean()

    return function
