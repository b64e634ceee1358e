"""What every method offers: a frozen dataclass of settings with three functions."""

from typing import Protocol

import torch
from torch import Tensor

from bayesemble.execute.executor import Executor
from bayesemble.members import Members, State
from bayesemble.task import Task
from bayesemble.types import Batch, Clock, Info


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


def num_draws(method: Method) -> int | None:
    """How many networks a method that makes them at will gives, unless told otherwise; None if members are all it has.

    Such a method has a setting `draws`, and makes its draws one after the other from the generator, from each member in
    turn: two calls give what one call for all would.
    """
    return getattr(method, "draws", None)


def drawn_slots(method: Method) -> tuple[str, ...]:
    """Slots `(member, ...)` that draws are made from, beside the members: a method with `drawn_slots` names them."""
    return getattr(method, "drawn_slots", ())


def keeps_dropout(method: Method) -> bool:
    """Whether dropout layers act in prediction too: a method with `keeps_dropout` says so."""
    return bool(getattr(method, "keeps_dropout", False))
