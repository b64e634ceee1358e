"""Members that feel one another: what repulsive ensembles and SVGD share, in the space of the weights.

Both move members along

    phi = D (factor * score) - R x,      D, R: (member, member)

where the score is the gradient of each member's log joint and x its weights. A method says what D and R are, given
the products B = X X^T of the centred members. Function space (`function_space.py`) has the same form, with the
outputs of the networks in the place of the weights.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError, TrainingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import setting
from bayesemble.core.types import Batch, Clock, Info, Inputs, Leaves, map_tensors, tensors_of
from bayesemble.execute.optimizers import laid_out_like, leaf_rows, member_norms
from bayesemble.methods.base import Context
from bayesemble.methods.gradient import GradientMethod
from bayesemble.methods.repulsion.kernels import KERNELS, Kernel
from bayesemble.task.select import Wish
from bayesemble.task.task import BoundTask

ANNEALS = ("none", "linear", "tanh", "cyclical")
SPACES = ("weight", "function")
POINTS = ("batch", "noise")
FEATURES = ("auto", "outputs", "centred", "log_probs")

_FAINT = 1e-6  # below this share of the driving force, repulsion does nothing
_KEPT = "interaction"  # the slot with what was measured last
_LARGE = 10_000  # parameters of a network in which members are far apart
_BLOCK = 1 << 17  # coordinates that are worked on at a time


@runtime_checkable
class Sampler(Protocol):
    """Gives inputs at which functions are compared, anew at every step."""

    def __call__(self, generator: torch.Generator) -> Inputs:
        """Draw some rows."""
        ...


class RowSampler:
    """Draws rows of a set of inputs, with replacement: `points=be.RowSampler(x_extra, 64)`."""

    def __init__(self, inputs: Inputs, num: int) -> None:
        self.inputs = inputs
        self.num = num

    def __call__(self, generator: torch.Generator) -> Inputs:
        """Draw `num` rows."""
        tensors = tensors_of(self.inputs)
        rows = torch.randint(len(tensors[0]), (self.num,), generator=generator)
        return map_tensors(lambda leaf: leaf[rows], self.inputs)


class Forces(NamedTuple):
    """How members act on one another, `(member, member)`: phi = driving @ scores - repelling @ positions."""

    driving: Tensor | None
    """None is the identity: each member is driven by its own score alone."""
    repelling: Tensor


@dataclass(frozen=True, kw_only=True)
class InteractingMethod(GradientMethod, ABC):
    """Settings that methods with interacting members have."""

    space: str = setting(
        "weight", "where members repel one another: weight, or function (the outputs of the networks)", choices=SPACES
    )
    kernel: str = setting("rbf", "how alike two members are, by the distance between them", choices=KERNELS)
    bandwidth: str | float = setting("median", "length of the kernel, or the median rule", choices=("median",), above=0)
    repulsion: float = setting(1.0, "factor on the repulsion; 0 turns it off", least=0)
    calibrate: bool = setting(True, "rescale the repulsion so that Stein's identity holds; False is the papers' form")
    measure_every: int | None = setting(
        None,
        "steps between measurements of the distances between weights and of forces; None: 4 in large networks",
        least=1,
    )
    select: Wish = setting("all", "weights that repel: all, norm, not norm, patterns of names ... (weight space)")
    driving: float = setting(
        1.0, "factor on the driving force, once it has risen; below 1 is a warm posterior", above=0
    )
    anneal: str = setting("none", "how the driving force rises from 0", choices=ANNEALS)
    anneal_share: float = setting(0.5, "share of training over which it rises", within="(0, 1]")
    features: str = setting("auto", "what functions are compared by; auto centres logits", choices=FEATURES)
    points: str | Sampler = setting(
        "batch", "where functions are compared: batch, noise (added to it), or a sampler", choices=POINTS
    )
    noise: float = setting(0.1, "standard deviation of that noise", least=0)
    function_prior: bool = setting(True, "in function space, a prior over functions, not over weights")
    prior_draws: int = setting(10, "networks drawn from the prior that stand for the prior over functions", least=2)
    prior_points: int = setting(8, "rows at which the prior over functions is compared", least=1)
    prior_every: int = setting(
        8, "that prior acts at every n-th step, n times as strong; each time costs a forward pass", least=1
    )

    @abstractmethod
    def forces(self, gram: Tensor, dim: int) -> Forces:
        """What members do to one another, from the products of their centred positions in `dim` coordinates."""

    def make_kernel(self) -> Kernel:
        """The kernel that the settings describe."""
        return KERNELS[self.kernel](self.bandwidth)

    def driving_factor(self, clock: Clock) -> float:
        """What the score is multiplied by: it rises from 0 to `driving` over the first part of training.

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


def weight_step(
    method: InteractingMethod,
    state: State,
    batch: Batch,
    context: Context,
    everyone: Members | None = None,
) -> tuple[State, Info]:
    """Move the members, driven by their scores and repelled by one another's weights.

    `everyone` are all that repel, if there are others besides; those that move come last.
    """
    task, clock = context.task, context.clock
    if task.mixed:
        raise SettingError(
            "networks of different architectures have no weights to compare: use space='function', or one architecture"
        )
    gradients, info = method.uphill(state, batch, context)
    everyone = everyone or state.members
    names = _repelled(method, task, everyone)
    gradients |= {name: laid_out_like(gradients[name], state.members.params[name]) for name in names}
    kept = state.slots.get(_KEPT, {})
    if is_due(method, state, task, clock) or len(kept["repelling"]) != everyone.num_members:
        gram, dim = products([everyone.params[name] for name in names])
        check_finite(gram, "weights", clock)
        forces = method.forces(gram, dim)
        kept = {name: leaf for name, leaf in forces._asdict().items() if leaf is not None}
        kept |= norms(member_norms([gradients[name] for name in names]), forces.repelling, gram)
    _combine(
        Forces(kept.get("driving"), kept["repelling"]), gradients, everyone.params, names, method.driving_factor(clock)
    )
    state = method.ascend(keep(state, kept), gradients, context)
    return state, info | last_norms(state)


def is_due(method: InteractingMethod, state: State, task: BoundTask, clock: Clock) -> bool:
    """Whether forces are measured at this step; the first time always.

    Members of large networks move little, against their distances, from one step to the next, and measuring costs
    time. Small ones may be many and close together, where the matrices change fast, and cost nothing.
    """
    every = method.measure_every or (4 if task.num_parameters > _LARGE else 1)
    return clock.step % every == 0 or _KEPT not in state.slots


def keep(state: State, measured: Leaves) -> State:
    """Keep what was measured for the steps until the next time."""
    return replace(state, slots=state.slots | {_KEPT: measured})


def last_norms(state: State) -> Info:
    """The lengths of the forces when they were measured last."""
    return {name: state.slots[_KEPT][name] for name in ("driving_norm", "repulsion_norm")}


def check_finite(gram: Tensor, what: str, clock: Clock) -> None:
    """Stop with a sentence if members have left the real numbers, before their distances are looked at."""
    if not gram.isfinite().all():
        member = int((~gram.diagonal().isfinite()).nonzero()[0])
        raise TrainingError(
            f"the {what} of member {member} are not finite any more at step {clock.step + 1}; lower the learning rate, "
            "set clip=1.0, or check the scale of the inputs. The last checkpoint is intact"
        )


def _repelled(method: InteractingMethod, task: BoundTask, members: Members) -> list[str]:
    """Names of the leaves that members are compared by."""
    names = [name for name in task.select(method.select) if name not in members.shared]
    if not names:
        raise SettingError(f"select={method.select!r} means only leaves that all members share; choose others")
    return names


def products(leaves: list[Tensor]) -> tuple[Tensor, int]:
    """B = X X^T `(member, member)` of centred members, summed leaf by leaf, and the number of coordinates.

    Differences from the first member keep the digits that matter where members are large and close together; centring
    on the mean is then done on the products.
    """
    parts, dim = [], 0
    for leaf in leaves:
        rows = leaf_rows(leaf)
        dim += rows.shape[1]
        for block in _blocks(rows):
            offsets = block - block[0]
            parts.append(offsets @ offsets.T)
    total = torch.stack(parts).double().sum(0)
    return total - total.mean(0) - total.mean(1, keepdim=True) + total.mean(), dim


def _combine(forces: Forces, scores: Leaves, positions: Leaves, names: list[str], factor: float) -> None:
    """phi = driving @ (factor * scores) - repelling @ positions, in place of the scores; the last rows, if fewer."""
    kind = scores[names[0]].dtype
    repelling = forces.repelling[-len(scores[names[0]]) :].to(kind)
    driving = None if forces.driving is None else forces.driving.to(kind)
    for name in scores:
        if name not in names:
            scores[name].mul_(factor)
            continue
        rows, x = leaf_rows(scores[name]), leaf_rows(positions[name])
        for part, block in zip(_blocks(rows), _blocks(x), strict=True):
            driven = part if driving is None else driving @ part
            # Rows of R sum to zero, so that the first member can be subtracted, which keeps digits.
            torch.addmm(driven, repelling, block - block[0], beta=factor, alpha=-1, out=part)


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Views of so many coordinates at a time that copies of them stay small."""
    return rows.split(_BLOCK, dim=1) if rows.shape[1] > _BLOCK else (rows,)


def norms(driving: Tensor, repelling: Tensor, gram: Tensor) -> Info:
    """Lengths of the forces on each member, `(member,)`: |R x_i|^2 = (R B R^T)_ii; warns of a faint repulsion."""
    squares = ((repelling @ gram) * repelling).sum(1)[-len(driving) :]
    found = {"driving_norm": driving.double(), "repulsion_norm": squares.clamp(min=0).sqrt()}
    _watch(found)
    return found


def _watch(found: Info) -> None:
    """Warn if the repulsion is too faint to do anything."""
    shares = found["repulsion_norm"] / found["driving_norm"].clamp(min=1e-300)
    if 0 < float(shares.max()) < _FAINT:
        warnings.warn(
            "members hardly repel one another: the repulsion is less than a millionth of the driving force, so this is "
            "a deep ensemble. Use calibrate=True, a larger repulsion, or a driving factor below 1",
            stacklevel=3,
        )
