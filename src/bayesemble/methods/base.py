"""What every method is: a frozen dataclass of settings with a few functions, most of which have a default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import validate
from bayesemble.core.types import (
    Batch,
    Clock,
    Info,
    Inputs,
    Leaves,
    MemberFunction,
    TrainingData,
    WeightedTargets,
    total_weight,
)
from bayesemble.execute.executor import Executor
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.task.task import BoundTask, Task


@dataclass(frozen=True)
class Context:
    """What a step happens in: what is inferred, how members are run, and where the run stands."""

    task: BoundTask
    executor: Executor
    clock: Clock
    given_numbers: Mapping[str, Tensor] | None = None
    """`Method.numbers` as tensors, where a step is recorded."""
    team: Team = ALONE
    """The processes that hold the members together: whoever looks across members asks it."""

    @property
    def recorded(self) -> bool:
        """Whether the step is being recorded: it must not look at numbers, and leaves checks to steps that are not."""
        return self.given_numbers is not None

    def number(self, method: Method, name: str) -> float | Tensor:
        """One of `method.numbers` at this step; a tensor without axes where the step is recorded."""
        return self.numbers(method)[name]

    def numbers(self, method: Method) -> Mapping[str, float | Tensor]:
        """All of `method.numbers` at this step."""
        return method.numbers(self.clock) if self.given_numbers is None else self.given_numbers

    def gradients(
        self, members: Members, batch: Batch, function: MemberFunction | None = None
    ) -> tuple[Tensor, Leaves]:
        """Mean log likelihood of each member on a batch, `(member,)`, and its gradient in the parameters.

        Another function of a member, a mean over rows too, can stand in for it. What is random inside the network has
        seeds of its own. A batch of more than `max_batch` rows goes through in parts, whose gradients are added up.
        """
        function = function or self.task.mean_log_likelihood
        random = self.random_seeds(members)
        return self.gradients_in_parts(function, members, batch, random)

    def gradients_in_parts(
        self, function: MemberFunction, members: Members, batch: Batch, random: list[int] | None
    ) -> tuple[Tensor, Leaves]:
        """The same for a function that draws from these seeds; each part of a batch draws numbers of its own."""
        if random is not None and self.team.exchanges:
            raise SettingError(
                "Ranks(data=...) shares out the rows of a batch, for which other random numbers would be drawn than in "
                "one process; use data=1"
            )
        batch, share = self.team.share(batch)
        return self.team.over_rows(*self._gradients_here(function, members, batch, random), share)

    def _gradients_here(
        self, function: MemberFunction, members: Members, batch: Batch, random: list[int] | None
    ) -> tuple[Tensor, Leaves]:
        """The same for the rows that this process sees."""
        parts, allocator = batch.within(self.task.max_batch), self.task.allocator
        if len(parts) == 1:
            return self.executor.gradients(function, members, batch, random, allocator)
        sums: list[Tensor] = []  # values, then gradients
        for number, (part, share) in enumerate(zip(parts, _shares(parts, batch), strict=True)):
            if not share:  # rows without weight have no mean
                continue
            own = None if random is None else [seeds.child(seed, "part", number) for seed in random]
            values, gradients = self.executor.gradients(function, members, part, own, allocator)
            found = [values, *(gradients[name] for name in members.params)]
            if sums:
                torch._foreach_add_(sums, found, alpha=share)
            else:  # not in place: a leaf may be one number that is shown many times
                sums = list(torch._foreach_mul(found, share))
        return sums[0], dict(zip(members.params, sums[1:], strict=True))

    def random_seeds(self, members: Members) -> list[int] | None:
        """Seeds for what is random inside each member at this step, such as dropout masks; None if nothing is."""
        return self.clock.member_seeds(members.num_members) if self.task.stochastic else None


def _shares(parts: list[Batch], whole: Batch) -> list[float]:
    """What the mean over each part counts for in the mean over the whole batch."""
    if not isinstance(whole.targets, WeightedTargets):
        return [part.num_rows / whole.num_rows for part in parts]
    if whole.targets_per_member:
        raise SettingError("max_batch splits batches, in which each member has weights of its own here; leave it out")
    return [total_weight(part.targets) / total_weight(whole.targets) for part in parts]


class Extent(NamedTuple):
    """What a member amounts to, beside a plain network."""

    extra: int
    """Parameters that it has beside those of the network."""
    powers: tuple[tuple[int, int], ...]
    """Bases and exponents whose product is the number of networks it stands for."""
    drawn: int
    """Numbers that a draw replaces."""


class Chains(NamedTuple):
    """What a sampler kept, chain by chain."""

    num_draws: int
    """Networks kept of each chain; `networks` gives them chain after chain."""
    facts: dict[str, float]
    """What else is known of the sampling, such as how many trajectories diverged."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to place members. Only settings live here; state goes in and comes out.

    A method must say how members start (`init`) and move (`step`). All else has a default, which a method overrides
    where it differs; nothing elsewhere asks which method it is.
    """

    num_members: int

    full_batch: ClassVar[bool] = False
    """Whether every step needs all rows."""
    keeps_dropout: ClassVar[bool] = False
    """Whether the network's own dropout layers act in prediction too."""
    moves_members_apart: ClassVar[bool] = False
    """Whether members that begin equal get apart in time, as by noise of their own. Others must be apart at once."""
    independent: ClassVar[bool] = False
    """Whether each member moves without regard to the others, and what a slot has of it lies at its number, so that
    one can be left behind."""
    moves_by_gradient_alone: ClassVar[bool] = False
    """Whether each member moves, in place, along `uphill` alone, and nothing else looks at the members on the way."""
    changeable: ClassVar[tuple[str, ...]] = ()
    """Settings that may change when a run is resumed: those that nothing in the state depends on."""
    common_slots: ClassVar[tuple[str, ...]] = ()
    """Slots that say the same of all members, without a member axis."""
    drawn_slots: ClassVar[tuple[str, ...]] = ()
    """Slots `(member, ...)` that networks are drawn from, beside the members."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A class with a step of its own has to say anew which of them are alike, and whether members move alone."""
        super().__init_subclass__(**options)
        if "step" in cls.__dict__ and "kind_of_step" not in cls.__dict__:
            cls.kind_of_step = Method.kind_of_step  # type: ignore[method-assign]
        moves = {"step", "uphill", "likelihood_gradients", "ascend"} & cls.__dict__.keys()
        if moves and "moves_by_gradient_alone" not in cls.__dict__:
            cls.moves_by_gradient_alone = False

    def __post_init__(self) -> None:
        validate(self)

    def part(self, numbers: range) -> Self:
        """The method for the members of these numbers alone."""
        return replace(self, num_members=len(numbers))

    @abstractmethod
    def init(self, task: BoundTask, seed: int) -> State:
        """Make the state that the first step starts from."""

    @abstractmethod
    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Info]:
        """Use one batch. The tensors of the state may be changed in place; use only what is returned.

        The info has a number for each member, `loss` at least. A step that takes another number of gradients than
        `gradients_per_step` says how many, under `gradients`.
        """

    def kind_of_step(self, context: Context) -> Hashable | None:
        """What tells this step from steps that are made of other operations, so that it can be recorded and repeated.

        Steps of one kind do the same to state, batch and `numbers`, whatever their values; they draw nothing at random,
        but for what `draw_ahead` puts into the state, and do not look at the clock. None is a step that is on its own,
        as all are unless a method says otherwise.
        """
        return None

    def draw_ahead(self, state: State, context: Context) -> None:
        """Put into the slots, in place, what this step draws at random by the clock.

        The same step draws the same again: it does so by itself unless it is being recorded (`Context.recorded`), and
        this is called before a record is made or carried out.
        """

    @property
    def apart(self) -> str | None:
        """Why members cannot be held by several processes; None if they can.

        They can if each moves without regard to the others, or if the method asks `Context.team` wherever they meet.
        """
        return None if self.independent else f"members of {type(self).__name__} may need one another"

    @property
    def exchanges(self) -> bool:
        """Whether members that are held by several processes meet in steps."""
        return not self.independent

    def common_leaves(self, slot: str, leaves: Leaves) -> tuple[str, ...]:
        """Leaves of a slot that are the same for all members, whoever holds them; those without axes always are."""
        return ()

    @property
    def steps_alike(self) -> bool:
        """Whether each step does the same to state and batch, draws nothing itself, and takes no more from the clock
        than a learning rate, so that fits with other seeds can take it together."""
        return False

    @property
    def unrecorded(self) -> str | None:
        """Why no step can be recorded whatever its kind, such as an optimiser that looks at numbers; None if it can."""
        return None

    def numbers(self, clock: Clock) -> dict[str, float]:
        """What a step takes from the clock, such as a learning rate; see `Context.number`."""
        return {}

    def resolved(self, task: BoundTask) -> dict[str, str]:
        """What settings that are left to the method come to in a task, and why, by their names."""
        return {}

    def passed_through(self, state: State, networks: Sequence[Leaves]) -> State | None:
        """The state as if training had passed through networks with these parameters, the last of them its end.

        None if the method makes nothing of the way that training took.
        """
        return None

    def finish(self, state: State, data: TrainingData, context: Context) -> State:
        """Complete the state once training is over; `data()` goes through the training rows once, in batches."""
        return state

    def networks(self, state: State) -> Members:
        """The networks that a state holds, to average over."""
        return state.members

    @property
    def draws(self) -> int | None:
        """How many networks a prediction draws unless told otherwise; None for a method that only has `networks`."""
        return None

    def usual_draws(self, state: State) -> int | None:
        """How many networks a prediction from this state draws unless told otherwise: `draws`, if it has so many."""
        return self.draws

    def can_draw(self, state: State) -> bool:
        """Whether networks can be drawn from this state, which may have to be finished first."""
        return self.draws is not None

    def draw(self, state: State, numbers: range, seed: int) -> Members:
        """Draw networks by number, of a state from which this can be done.

        Each depends on seed and number alone, and comes from each member in turn.
        """
        raise NotImplementedError(f"{type(self).__name__} has a number of draws, but no way to draw")

    def member_outputs(self, state: State, task: BoundTask, params: Leaves, buffers: Leaves, inputs: Inputs) -> Tensor:
        """Outputs of one network in prediction, `(row, ...)`."""
        return task.forward(params, buffers, inputs, dropout=self.keeps_dropout)

    def runs_plainly(self, state: State, task: BoundTask) -> bool:
        """Whether `member_outputs` are those of a forward pass with the leaves of the network that was drawn."""
        return type(self).member_outputs is Method.member_outputs

    def outputs_at_once(
        self, state: State, task: BoundTask, drawn: Members, numbers: range, inputs: Inputs
    ) -> Tensor | None:
        """Outputs of all drawn networks, `(draw, row, ...)`, if there is a quicker way than to run each of them."""
        return None

    def normal_outputs(self, state: State, task: BoundTask, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
        """Means and variances `(member, row, ...)`, if outputs are normal around each member and this is their law.

        Then no networks need to be drawn for a likelihood that reads normal outputs.
        """
        return None

    def normal_weights(self, state: State) -> tuple[Leaves, Leaves] | None:
        """Means and variances `(member, ...)` of all weights, if networks come from a Gaussian around each member."""
        return None

    def weight_covariances(self, state: State) -> tuple[tuple[str, ...], Tensor] | None:
        """Leaves, and the covariance of their weights `(member, weight, weight)` in this order, if it is known."""
        return None

    def member_rows(self, num_data: int, seed: int) -> Tensor | None:
        """The rows each member trains on, `(member, row)`, or None if all train on all."""
        return None

    def chains(self, state: State) -> Chains | None:
        """What was kept of each chain, if members are chains of a sampler."""
        return None

    def extent(self, task: Task) -> Extent:
        """What a member has beside a plain network."""
        return Extent(0, (), task.num_parameters)

    @property
    def num_moments(self) -> int:
        """How many numbers training keeps beside each parameter."""
        return 0

    @property
    def needs_every_epoch(self) -> bool:
        """Whether training must go on to its end: networks are gathered along it, or members come in turn."""
        return self.full_batch

    @property
    def needs_training(self) -> bool:
        """Whether it learns what it predicts with beside the weights of members, so that these alone tell nothing."""
        return self.needs_every_epoch

    @property
    def gradients_per_step(self) -> int:
        """Gradients of one network on one batch that a step takes; of steps that vary, the least."""
        return self.num_members

    @property
    def changes_inputs(self) -> bool:
        """Whether steps change the inputs, so that nothing can be worked out of them before."""
        return False

    @property
    def training_slots(self) -> tuple[str, ...]:
        """Slots that only training needs, such as the moments of an optimiser."""
        return ()
