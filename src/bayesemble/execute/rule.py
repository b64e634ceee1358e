"""Which executor suits a network, its members and a batch: a rule, so that the same run is the same bits everywhere.

Its numbers come from times that `benchmarks/executors.py` measures, and `docs/speed.md` shows the table. A member that
handles few numbers in a step costs mostly Python, which vmap spends once for all; one that handles many leaves the
processor's cache together with the others, and is quicker alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bayesemble.core.members import Members, State
from bayesemble.core.seeds import EagerMode
from bayesemble.core.types import Batch, Inputs, Leaves, MemberFunction, tensors_of
from bayesemble.execute.executor import Executor
from bayesemble.execute.loop import Loop
from bayesemble.execute.vmap import Vmap
from bayesemble.task.task import BoundTask

FEW_MEMBERS = 2
MANY_NUMBERS = 450_000  # of one member in a step
NUMBERS_TOGETHER = 6_000_000  # that vmap handles at a time
NUMBERS_IN_TURN = 2_500_000  # at a time, where each chunk of members takes its whole step
NUMBERS_OF_ONE_THREAD = 500_000  # handled at a time
NUMBERS_PREDICTED_TOGETHER = 1 << 21
FEWEST_ROWS, MOST_ROWS = 16, 1 << 14  # predicted in one go
MILLISECONDS_TO_COMPILE = 25_000
REPAID = 4  # times that what compiling gains has to be, as training may stop early
DEEP = 6  # convolutions of images; in a shallower network, those of one or three channels are slow in channels-last


@dataclass(frozen=True)
class Load:
    """What the rule goes by."""

    members: int
    numbers: int
    """Parameters of one member, and what its layers give for a batch."""
    convolutions: int
    """Layers with convolutions of images."""
    convolutional: bool
    """Whether there are convolutions of any kind."""
    in_turn: bool = False
    """Whether some members can take whole steps after the others."""


@dataclass(frozen=True)
class Row:
    """A row of the rule: the first that holds gives the executor."""

    words: str
    holds: Callable[[Load], bool]
    executor: Callable[[Load], Executor]


def one_by_one(load: Load) -> Loop:
    """The loop that suits the network."""
    layout, draws = load.convolutions >= DEEP, not load.convolutional
    steps = "eager" if load.numbers > MANY_NUMBERS else "traced"
    return Loop(channels_last=layout, draws_by_vmap=draws, threads=_threads(load.numbers), steps=steps)


def _all_at_once(load: Load) -> Executor:
    chunks = math.ceil(load.members * load.numbers / (NUMBERS_IN_TURN if load.in_turn else NUMBERS_TOGETHER))
    size = math.ceil(load.members / chunks)
    size += size % 2 if load.in_turn else 0  # products of an even number are shared out evenly over threads
    return Vmap(None if chunks == 1 else size, threads=_threads(size * load.numbers))


def _threads(numbers: int) -> int | None:
    return 1 if numbers < NUMBERS_OF_ONE_THREAD else None


RULE = (
    Row("one member", lambda load: load.members == 1, one_by_one),
    Row("few members", lambda load: load.members <= FEW_MEMBERS, one_by_one),
    Row("large network or batch", lambda load: load.numbers > MANY_NUMBERS, one_by_one),
    Row("small network and batch", lambda _: True, _all_at_once),
)


def repays_compiling(load: Load, steps: int) -> bool:
    """Whether so many steps are worth compiling: what is gained in each is Python, and passes through memory.

    Members whose gradients are taken in chunks are left alone: their program would be as many times as long.
    """
    numbers = load.members * load.numbers
    gained = 0.2 + (0.1e-6 if load.in_turn else 0.6e-6) * numbers  # milliseconds; the former are traced at any size
    return (load.in_turn or numbers <= NUMBERS_TOGETHER) and steps * gained >= REPAID * MILLISECONDS_TO_COMPILE


def row_for(load: Load) -> Row:
    """The row of the rule that holds."""
    return next(row for row in RULE if row.holds(load))


def is_convolutional(task: BoundTask) -> bool:
    """Whether the network has convolutions of any kind."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.module.modules())


def load_of(task: BoundTask, members: Members, few: Batch, num_rows: int, in_turn: bool = False) -> Load:
    """Count what one member handles in a step with `num_rows` rows, by running it on a few of them."""
    return Load(
        members.num_members,
        task.num_parameters + math.ceil(num_rows * _activations(task, members, few)),
        sum(isinstance(layer, nn.Conv2d) for layer in task.module.modules()),
        is_convolutional(task),
        in_turn,
    )


def _activations(task: BoundTask, members: Members, few: Batch) -> float:
    """How many numbers the layers of one member give for a row in training."""
    copy = State(members.part(0, 1)).clone().members

    def run(params: Leaves, buffers: Leaves, inputs: Inputs, _: Any) -> Tensor:
        return task.forward(params, buffers, inputs, training=True)

    random = [0] if task.stochastic else None
    return _counted(run, copy, few.inputs, few.inputs_per_member, random) / few.num_rows


@dataclass(frozen=True)
class PredictionLoad:
    """What predictions go by."""

    numbers: float
    """What the layers of one network give for a row."""
    parameters: int
    together: int
    """Networks that are run in one go."""

    @property
    def rows_at_a_time(self) -> int:
        """So many that what the layers give stays in the processor's cache, but is more than the parameters.

        Those are read for every batch.
        """
        wanted = max(NUMBERS_PREDICTED_TOGETHER / self.together, 2 * self.parameters)
        return min(max(int(wanted / self.numbers), FEWEST_ROWS), MOST_ROWS)

    def needs_threads(self, num_rows: int) -> bool:
        """Whether so many rows are work for more than one thread."""
        return num_rows * self.numbers * self.together >= NUMBERS_OF_ONE_THREAD


def prediction_load(executor: Executor, task: BoundTask, members: Members, few: Inputs) -> PredictionLoad:
    """Count what networks handle in a prediction, by running one of them on a few rows."""

    def run(params: Leaves, buffers: Leaves, inputs: Inputs, _: Any) -> Tensor:
        return task.forward(params, buffers, inputs)

    numbers = _counted(run, members.part(0, 1), few, False, None) / len(tensors_of(few)[0])
    return PredictionLoad(numbers, task.num_parameters, executor.parts(members)[0].num_members)


def _counted(function: MemberFunction, one: Members, inputs: Inputs, per_member: bool, random: list[int] | None) -> int:
    """How many numbers the operations of a member give, by running it alone."""
    counting = _Counting()

    def counted(*arguments: Any) -> Tensor:
        with counting:
            return function(*arguments)

    Loop().outputs(counted, one, inputs, per_member, random)
    return counting.numbers


class _Counting(EagerMode):
    """Counts the numbers that operations give; those that only look at others in another way do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.numbers += sum(leaf.numel() for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor))
        return found
