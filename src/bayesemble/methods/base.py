"""What every method offers: a frozen dataclass of settings with three functions."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesemble.core.members import Members, State
from bayesemble.core.types import Batch, Clock, Info, Inputs, Leaves, TrainingData
from bayesemble.execute.executor import Executor
from bayesemble.task.task import Task


@runtime_checkable
class Method(Protocol):
    """A way to place members. Only settings live here; state goes in and comes out."""

    @property
    def num_members(self) -> int:
        """Number of independently started members."""
        ...

    def init(self, task: Task, seed: int) -> State:
        """Make the state that the first step starts from."""
        ...

    def step(self, state: State, batch: Batch, task: Task, executor: Executor, clock: Clock) -> tuple[State, Info]:
        """Use one batch. The tensors of the state may be changed in place; use only what is returned."""
        ...

    def draw(self, state: State, num: int | None, generator: torch.Generator) -> Members:
        """Networks to average over: as many as wished, or (None) as many as suit the method."""
        ...

    def member_rows(self, num_data: int, seed: int) -> Tensor | None:
        """The rows each member trains on, `(member, row)`, or None if all train on all."""
        ...


def full_batch(method: Method) -> bool:
    """Whether every step needs all rows: a method with the property `full_batch` says so, all others take batches."""
    return bool(getattr(method, "full_batch", False))


@runtime_checkable
class Maker(Method, Protocol):
    """A method that makes networks at will, beyond the members that it trains."""

    @property
    def draws(self) -> int:
        """How many networks a prediction averages over, unless told otherwise."""
        ...

    def make(self, state: State, numbers: range, seed: int) -> Members:
        """Make networks by their numbers. Each depends on seed and number alone, and comes from each member in turn."""
        ...


def maker(method: Method, state: State) -> Maker | None:
    """The method, if it can make networks from this state.

    One that has to finish training first names the slot that is there from then on, `made_from`; until then its
    members are all it has.
    """
    slot = getattr(method, "made_from", None)
    return method if isinstance(method, Maker) and (slot is None or slot in state.slots) else None


@runtime_checkable
class Finisher(Method, Protocol):
    """A method that has something to do once training is over: curvature, batch-norm statistics, a subspace."""

    def finish(self, state: State, task: Task, data: TrainingData, executor: Executor, seed: int) -> State:
        """Complete the state; `data()` goes through the training rows once, in batches."""
        ...


@runtime_checkable
class Reader(Method, Protocol):
    """A method that runs the networks it draws in its own way, such as made linear around a member."""

    def member_outputs(self, state: State, task: Task, params: Leaves, buffers: Leaves, inputs: Inputs) -> Tensor:
        """Outputs of one network, `(row, ...)`."""
        ...


def drawn_slots(method: Method) -> tuple[str, ...]:
    """Slots `(member, ...)` that draws are made from, beside the members: a method with `drawn_slots` names them."""
    return getattr(method, "drawn_slots", ())


def keeps_dropout(method: Method) -> bool:
    """Whether dropout layers act in prediction too: a method with `keeps_dropout` says so."""
    return bool(getattr(method, "keeps_dropout", False))
