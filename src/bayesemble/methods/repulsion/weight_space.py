"""Repulsion between weights: members are compared by their parameters, leaf by leaf.

With g_i the gradient of the log joint of member i, x_i its weights, and D, R as in `interacting.py`,

    phi = D (factor * g) - R x

D and the push R x change little from one step to the next in large networks, so they are kept for some steps there:
to measure distances and to mix the weights of all members takes passes through all of them.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Info, Leaves, brought_to, exact
from bayesemble.execute.optimizers.fused import laid_out_like, member_norms
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion import interacting
from bayesemble.methods.repulsion.interacting import InteractingMethod, Space
from bayesemble.task.select import Wish
from bayesemble.task.task import BoundTask

_TOO_WIDE = 10  # times the weights at the start
PUSH = "push"  # slot `(member, ...)`: the repulsion on each weight, where it is kept from one estimate to the next


@dataclass(frozen=True, kw_only=True)
class WeightSpace(Space):
    """Members are compared by their weights."""

    select: Wish = setting(
        "sized", "weights that repel: sized (not those before a batch norm), all, norm, not norm, patterns of names ..."
    )

    training_slots = (*Space.training_slots, PUSH)

    def prepare(self, method: InteractingMethod, state: State, task: BoundTask, seed: int) -> State:
        """Make room for the push between two estimates.

        Warn of a prior that is much wider than the weights that the members of a large network start with: members that
        follow it grow until they are as wide in all directions that the data leave open.
        """
        state = super().prepare(method, state, task, seed)
        if method.repulsion == "auto" and method.strength(task) == 1 and task.scales and method.calibrate:
            ratio = _times_wider(task, state.members)
            if ratio > _TOO_WIDE and interacting.is_large(task):
                warnings.warn(
                    f"the prior {task.prior} is {ratio:.0f} times as wide as the weights that members start with; they "
                    "repel one another until they are as wide, which may harm predictions. Leave the prior out of the "
                    "task for the vague one, use NormalPrior(scaling='fan_in'), or say repulsion=0.1 (and repulsion=1 "
                    "if the prior is what you believe)",
                    stacklevel=6,
                )
        if task.mixed or self.steps_between(task) == 1:
            return state
        repelled = {name: state.members.params[name] for name in self._repelled(task, state.members)}
        return replace(state, slots=state.slots | {PUSH: task.allocator.zeros_like(repelled, PUSH)})

    def step(
        self,
        method: InteractingMethod,
        state: State,
        batch: Batch,
        context: Context,
        all_members: Members | None = None,
    ) -> tuple[State, Info]:
        """Move the members, driven by the gradients of their log joints and repelled by one another's weights."""
        if context.task.mixed:
            raise SettingError(
                "networks of different architectures have no weights to compare: use space='function', "
                "or one architecture"
            )
        gradients, info = method.uphill(state, batch, context)
        all_members, moving = all_members or state.members, state.members.params
        names = self._repelled(context.task, all_members)
        gradients |= {name: laid_out_like(gradients[name], moving[name]) for name in names}
        estimate, factor = interacting.last_estimate(state), method.driven(context)
        push, team = state.slots.get(PUSH), context.team
        if push is None or self.is_due(state, context):
            gram, dim = interacting.products([all_members.params[name] for name in names], method.centred, team)
            interacting.check_finite(gram, "weights", context)
            forces = method.forces_in(context.task, gram, dim)
            driving = factor * member_norms([gradients[name] for name in names])
            estimate = interacting.norms(driving, forces.repelling, gram, team)
            interacting.watch(estimate, context)
            if forces.driving is not None:
                estimate |= {"even": forces.driving[0, :2]} if forces.even else {"driving": forces.driving}
            device = state.members.weights.device
            estimate = {name: brought_to(found, device) for name, found in estimate.items()}
            push = push or {name: torch.empty_like(moving[name]) for name in names}
            # In large networks members are far apart, and a pass through all weights costs time.
            centred = method.centred and not interacting.is_large(context.task)
            put_push(push, forces.repelling, all_members.params, centred, team)
        combine(estimate.get("even", estimate.get("driving")), push, gradients, factor, team)
        state = method.ascend(interacting.keep_estimate(state, estimate), gradients, context)
        return state, info | interacting.told(state, factor, context.task)

    def _repelled(self, task: BoundTask, members: Members) -> list[str]:
        """Names of the leaves that members are compared by."""
        names = [name for name in task.select(self.select) if name not in members.shared]
        if not names:
            raise SettingError(f"select={self.select!r} leaves none but weights that all members share; choose others")
        return names


def _times_wider(task: BoundTask, members: Members) -> float:
    """How many times wider the prior is than the weights of the members: both as root mean squares of all weights."""
    own = {name: leaf for name, leaf in members.params.items() if name in task.scales}
    wanted = sum(task.scales[name] ** 2 * leaf.numel() for name, leaf in own.items())
    return (wanted / max(float(sum(exact(leaf).square().sum() for leaf in own.values())), 1e-300)) ** 0.5


def put_push(push: Leaves, repelling: Tensor, positions: Leaves, centred: bool = True, team: Team = ALONE) -> None:
    """Put repelling @ positions in the place of the push on the members that move, which are the last of the positions.

    `centred` says that rows of R sum to zero and that the first member is subtracted, which keeps digits where members
    are close together: rounding is then a share of their distances, and not of their lengths.
    """
    own, others = list(push.values()), [positions[name] for name in push]
    repelling = repelling[-team.total(len(own[0])) :].to(own[0])
    for block, all_block in zip(interacting.blocks(own, team), interacting.blocks(others, team), strict=True):
        x = team.columns(interacting.joined(all_block))
        found, width = interacting.mixed(repelling, x - x[0] if centred else x), sum(part.shape[1] for part in block)
        for part, new in interacting.with_parts(block, team.from_columns(found, width)):
            part.copy_(new)


def combine(
    driving: Tensor | None, push: Leaves, gradients: Leaves, factor: float | Tensor, team: Team = ALONE
) -> None:
    """phi = driving @ (factor * gradients) - push, in place of the gradients; those without a push are but scaled."""
    if isinstance(factor, Tensor) or factor != 1:
        torch._foreach_mul_(list(gradients.values()), factor)
    moving = [gradients[name] for name in push]
    if driving is not None:
        share(driving.to(moving[0]), moving, team)
    for part, own in zip(moving, push.values(), strict=True):
        part.sub_(own)


def share(driving: Tensor, gradients: list[Tensor], team: Team = ALONE) -> None:
    """driving @ gradients, in their place.

    Of a matrix that is one number on its diagonal and one elsewhere, the first two numbers are enough: then the
    gradients need but be added up, which costs a fraction of a product.
    """
    for block in interacting.blocks(gradients, team):
        if driving.dim() == 1:
            own, other = driving
            total = team.summed(torch.cat([part.sum(0) for part in block]))
            for part, common in zip(block, total.split([part.shape[1] for part in block]), strict=True):
                part.mul_(own - other).add_(other * common)
        else:
            columns = interacting.joined(block)
            found = team.from_columns(interacting.mixed(driving, team.columns(columns)), columns.shape[1])
            for part, shared in interacting.with_parts(block, found):
                part.copy_(shared)
