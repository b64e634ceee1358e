"""Repulsion between weights: members are compared by their parameters, leaf by leaf.

With g_i the gradient of the log joint of member i, x_i its weights, and D, R as in `interacting.py`,

    phi = D (factor * g) - R x

D and R change little from one step to the next in large networks, so they may be kept for some steps.
"""

import warnings
from dataclasses import dataclass

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
from bayesemble.methods.repulsion.interacting import Forces, InteractingMethod, Space
from bayesemble.task.select import Wish
from bayesemble.task.task import BoundTask

_TOO_WIDE = 10  # times the weights at the start


@dataclass(frozen=True, kw_only=True)
class WeightSpace(Space):
    """Members are compared by their weights."""

    select: Wish = setting(
        "sized", "weights that repel: sized (not those before a batch norm), all, norm, not norm, patterns of names ..."
    )

    def prepare(self, method: InteractingMethod, state: State, task: BoundTask, seed: int) -> State:
        """Warn of a prior that is much wider than the weights that the members of a large network start with.

        Members that follow it grow until they are as wide in all directions that the data leave open.
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
        return state

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
        all_members = all_members or state.members
        names = self._repelled(context.task, all_members)
        gradients |= {name: laid_out_like(gradients[name], state.members.params[name]) for name in names}
        estimate, factor = interacting.last_estimate(state), method.driven(context)
        team = context.team
        if self.is_due(state, context) or len(estimate["repelling"]) != team.total(all_members.num_members):
            gram, dim = interacting.products([all_members.params[name] for name in names], method.centred, team)
            interacting.check_finite(gram, "weights", context)
            forces = method.forces_in(context.task, gram, dim)
            estimate = {name: matrix for name, matrix in forces._asdict().items() if matrix is not None}
            driving = factor * member_norms([gradients[name] for name in names])
            estimate |= interacting.norms(driving, forces.repelling, gram, team)
            interacting.watch(estimate, context)
            device = state.members.weights.device
            estimate = {name: brought_to(found, device) for name, found in estimate.items()}
        forces = Forces(estimate.get("driving"), estimate["repelling"])
        # In large networks members are far apart, and a pass through all weights costs time.
        centred = method.centred and not interacting.is_large(context.task)
        combine(forces, gradients, all_members.params, names, factor, centred, team)
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


def combine(
    forces: Forces,
    gradients: Leaves,
    positions: Leaves,
    names: list[str],
    factor: float | Tensor,
    centred: bool = True,
    team: Team = ALONE,
) -> None:
    """phi = driving @ (factor * gradients) - repelling @ positions, in place of the gradients.

    Where there are more positions than gradients, the last ones move. `centred` says that rows of R sum to zero and
    that the first member is subtracted, which keeps digits where members are close together: rounding is then a share
    of their distances, and not of their lengths. The product is taken apart from the gradients, so that compiled steps
    subtract it where they read these anyway.
    """
    if isinstance(factor, Tensor) or factor != 1:
        torch._foreach_mul_(list(gradients.values()), factor)
    kind = gradients[names[0]].dtype
    repelling = forces.repelling[-team.total(len(gradients[names[0]])) :].to(kind)
    driving = None if forces.driving is None else forces.driving.to(kind)
    moving, others = ([leaves[name] for name in names] for leaves in (gradients, positions))
    for block, all_block in zip(interacting.blocks(moving, team), interacting.blocks(others, team), strict=True):
        x = team.columns(interacting.joined(all_block))
        push, width = repelling @ (x - x[0] if centred else x), sum(part.shape[1] for part in block)
        if driving is None:
            for part, own in interacting.with_parts(block, team.from_columns(push, width)):
                part.sub_(own)
        else:
            driven = driving @ team.columns(interacting.joined(block)) - push
            for part, own in interacting.with_parts(block, team.from_columns(driven, width)):
                part.copy_(own)
