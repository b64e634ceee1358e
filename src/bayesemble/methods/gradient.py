"""What all gradient methods share: where the log posterior pulls each member, and how it moves.

A method's step reads: `uphill` (the gradient of the log joint of each member), whatever the method adds to it, and
`ascend` (one fused optimiser step along the result).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Batch, Clock, Info, Inputs, Leaves, MemberFunction, Outputs, map_tensors, tensors_of
from bayesemble.execute.optimizers import EPSILON, OPTIMIZER_SLOTS, OPTIMIZERS, Optimizer, clip_per_member
from bayesemble.execute.schedules import SCHEDULES, ScheduleLike, resolve
from bayesemble.methods.base import Context, Method
from bayesemble.task.priors import NormalPrior
from bayesemble.task.task import OF_LIKELIHOOD, BoundTask

PRIOR_SLOT = "priors_of_members"


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Settings that every gradient method has."""

    num_members: int = setting(5, "number of independently started members", least=1)
    learning_rate: float = setting(1e-3, "step size, before the schedule", above=0)
    optimizer: str = setting("adam", "rule that makes steps of gradients", choices=OPTIMIZERS)
    schedule: ScheduleLike = setting("constant", "how the learning rate goes along training", choices=SCHEDULES)
    momentum: float = setting(0.9, "momentum of sgd, or the first decay rate (beta 1) of adam", within="[0, 1)")
    epsilon: float = setting(
        EPSILON, "epsilon of adam, beside roots of second moments of the gradient of the mean loss", above=0
    )
    weight_decay: float = setting(
        0.0, "decay of the optimiser, only for a task without prior, which says the same", least=0
    )
    clip: float | None = setting(
        None, "largest norm of each member's gradient of the mean loss; None cuts nothing", above=0
    )
    bootstrap: bool = setting(False, "train each member on its own resample of the rows")
    anchored: bool = setting(False, "centre each member's prior on its own prior draw, and add noise to its targets")
    adversarial: float = setting(0.0, "size of the FGSM step in units of the inputs; 0 turns it off", least=0)

    changeable = ("learning_rate", "schedule", "clip")

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = self.optimizer == "sgd" and self.epsilon != EPSILON
        require(not unused, f"epsilon={self.epsilon} is a setting of adam, which optimizer='sgd' has no use for")

    def make_optimizer(self) -> Optimizer:
        """The optimiser that the settings describe.

        Adam moves along m / (sqrt(v) + epsilon). Here m and v are moments of the gradient of the mean loss, 1 / N of
        that of the log joint, for N rows. A loop that hands the gradient of the log joint itself to Adam, as the
        released codes of repulsive ensembles do, takes the same steps with N times this epsilon: their 1e-8 is
        `epsilon=1e-8 / N` here.
        """
        return Optimizer(self.optimizer, self.momentum, self.weight_decay, self.epsilon)

    def member_rows(self, num_data: int, seed: int) -> Tensor | None:
        """The rows each member trains on, `(member, row)`, or None if all train on all.

        A bootstrap draws as many rows as there are, with replacement, from the member's own seed.
        """
        if not self.bootstrap:
            return None
        return torch.stack(
            [
                torch.randint(num_data, (num_data,), generator=seeds.generator(seed, "member", i, "bootstrap"))
                for i in range(self.num_members)
            ]
        )

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
        return (*OPTIMIZER_SLOTS, PRIOR_SLOT)

    def init(self, task: BoundTask, seed: int) -> State:
        """Start the members independently, with an optimiser at rest."""
        members = self.new_members(task, seed)
        slots = dict(self.make_optimizer().init(members.params, task.allocator))
        if task.prior is not None and task.prior.differs_by_member:
            own = task.prior.member_factors(self.num_members, seeds.generator(seed, "priors of members"))
            slots[PRIOR_SLOT] = {"factor": own}
        if self.anchored:
            slots |= _anchors(self, task, seed)
        return State(members, slots)

    def new_members(self, task: BoundTask, seed: int) -> Members:
        """Members that start independently, after a look at what would shrink their weights."""
        if self.weight_decay and task.prior is not None:
            raise SettingError(
                f"weight_decay={self.weight_decay} and the prior {task.prior} would both shrink the weights; "
                "use Task(..., prior=None), or weight_decay=0 with NormalPrior.from_weight_decay(...)"
            )
        return task.new_members(self.num_members, seed)

    def uphill(self, state: State, batch: Batch, context: Context) -> tuple[Leaves, Info]:
        """Gradient of each member's log joint, estimated from a batch; and its loss, the mean of -log p(y|f)."""
        if self.anchored:
            batch = _with_target_noise(batch, state.slots.get("target_noise"))
        values, gradients = self.likelihood_gradients(state.members, batch, context)
        center, factor = state.slots.get("anchor"), prior_factor(state)
        return context.task.log_joint_gradient(gradients, state.members.params, center, factor), {"loss": -values}

    def likelihood_gradients(self, members: Members, batch: Batch, context: Context) -> tuple[Tensor, Leaves]:
        """Mean log likelihood of each member on a batch, `(member,)`, and its gradient in the parameters."""
        return context.gradients(members, batch, self.data_term(context.task))

    def data_term(self, task: BoundTask) -> MemberFunction:
        """What training climbs for one member: its mean log likelihood on a batch, and on an adversarial one."""
        return _adversarial(task, self.adversarial) if self.adversarial else task.mean_log_likelihood

    def numbers(self, clock: Clock) -> dict[str, float]:
        """The learning rate, by the schedule."""
        return {"learning_rate": self.learning_rate * resolve(self.schedule)(clock.progress)}

    def ascend(self, state: State, direction: Leaves, context: Context) -> State:
        """Move all members one optimiser step along a direction on the scale of the log joint, which it overwrites.

        The direction is divided by the number of rows first, so that learning rates mean what they do for a mean loss.
        """
        torch._foreach_div_(list(direction.values()), -context.task.num_data)
        if self.clip is not None:
            clip_per_member(direction, self.clip, state.members.shared)
        rate, fits = context.number(self, "learning_rate"), context.executor.fits
        self.make_optimizer().update(state.members.params, direction, state.slots, rate, fits)
        return state


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

    weights = torch.full((num,), 1 / num, dtype=torch.float64, device=members.weights.device)
    return Members(spread(members.params), spread(members.buffers), weights, shared)


def _anchors(method: GradientMethod, task: BoundTask, seed: int) -> dict[str, Leaves]:
    """Randomise-then-optimise: what each member's prior mean and targets are shifted by.

    A member that minimises |y + e - f|^2 / (2 s^2) + |w - a|^2 / (2 std^2), with a ~ prior and e ~ Normal(0, s^2),
    is an exact posterior draw for a linear model with known noise s; otherwise it is an approximate one. Where the
    likelihood has no fixed Gaussian noise, only the prior is randomised.

    Reference: Pearce et al. (2020), with the target noise of Bardsley et al. (2014).
    """
    if not isinstance(task.prior, NormalPrior):
        raise SettingError(f"anchored=True needs a NormalPrior to draw anchors from, the task has {task.prior}")
    if task.mixed:
        raise SettingError("anchored=True needs one architecture for all members, the task has several")
    spread = (task.temperature / task.prior_weight) ** 0.5

    def generators(name: str) -> list[torch.Generator]:
        return [seeds.generator(seed, "member", i, name) for i in range(method.num_members)]

    drawn = [task.prior.sample(task.shapes, generator, task.dtype) for generator in generators("anchor")]
    slots = {"anchor": {name: torch.stack([one[name] for one in drawn]) * spread for name in task.shapes}}
    known = task.likelihood.target_noise()
    if known is not None:
        shape = (task.num_rows, *task.output_shape)
        noise = [torch.randn(shape, generator=g, dtype=task.dtype) for g in generators("target noise")]
        slots["target_noise"] = {"noise": torch.stack(noise) * known * spread}
    return slots


def _with_target_noise(batch: Batch, slot: Leaves | None) -> Batch:
    if slot is None:
        return batch
    if batch.rows is None:
        raise SettingError("anchored=True perturbs each row's target: pass arrays, tensors or a TensorDataset")
    noise = slot["noise"]
    members = torch.arange(len(noise)).unsqueeze(1)
    rows = batch.rows if batch.rows.dim() == 2 else batch.rows.unsqueeze(0)
    return replace(batch, targets=batch.targets + noise[members, rows], targets_per_member=True)


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
