"""What every executor offers."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from bayesemble.core.members import Members, State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Batch, Inputs, Leaves, MemberFunction, OutputFunction, Outputs

STEPS = ("eager", "traced", "compiled")
_THREADS_PER_CORE = 4


class Executor(ABC):
    """Runs a function of one member for all members. All executors give the same numbers."""

    threads: int | None
    """Number of torch threads; None leaves it as it is."""
    steps: str
    """How training steps are taken: one of `STEPS`."""

    def __str__(self) -> str:
        threads = [f"on {self.threads} thread" + ("s" if self.threads > 1 else "")] if self.threads else []
        steps = [] if self.steps == type(self).steps else [self.steps]
        return " ".join([type(self).__name__.lower(), *self.details(), *steps, *threads])

    def details(self) -> list[str]:
        """What sets this executor apart from others of its class, in words."""
        return []

    @property
    def fits(self) -> int:
        """How many fits the members belong to, those of a fit one behind the other: see `SideBySide`."""
        return 1

    def members_of_a_tensor(self, members: Members) -> int | None:
        """How many members of a leaf an optimiser takes for one tensor, so that nothing it rounds depends on others
        beside them; None is all."""
        return None

    @property
    @abstractmethod
    def runs_few_members(self) -> bool:
        """Whether only a few members are worked on at a time, so that the others may lie on disk."""

    @abstractmethod
    def arrange(self, state: State) -> State:
        """Lay everything out in memory as this executor likes it."""

    @abstractmethod
    def gradients(
        self,
        function: MemberFunction,
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> tuple[Tensor, Leaves]:
        """Values `(member,)` of a scalar function and its gradients in the parameters, shaped like them.

        What is random inside a member derives from its seed. A shared leaf gets the sum over members. The gradients
        lie where the allocator has room for them.
        """

    @abstractmethod
    def coupled_gradients(
        self,
        function: OutputFunction,
        couple: Callable[[Outputs], Tensor],
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> Leaves:
        """Gradients, in the parameters, of one number that depends on the outputs of all members at once.

        `function` gives the outputs of one member, `couple` the number from all of them, stacked `(member, ...)`.
        The activations of all members are kept until the number is known.
        """

    @abstractmethod
    def values(
        self, function: MemberFunction, members: Members, batch: Batch, seeds: Sequence[int] | None = None
    ) -> Tensor:
        """Values of a function of one member, stacked: `(member, ...)`. Gradients flow through them."""

    @torch.no_grad()
    def outputs(
        self,
        function: MemberFunction,
        members: Members,
        inputs: Inputs,
        per_member: bool,
        seeds: Sequence[int] | None = None,
    ) -> Tensor:
        """Values of a function that has no targets, stacked: `(member, ...)`. No gradients are kept."""
        return self.values(function, members, Batch(inputs, torch.empty(0), inputs_per_member=per_member), seeds)

    @abstractmethod
    def parts(self, members: Members) -> list[Members]:
        """Views of the members that are run in one go, as `run` takes them."""

    @abstractmethod
    def run(self, function: MemberFunction, part: Members, inputs: Inputs) -> Tensor:
        """Values of a function for one of the parts, `(member, ...)`, where nothing is random; inputs are shared."""


def thread_count(executor: Executor) -> AbstractContextManager[None]:
    """Use the executor's number of threads inside the block, if it asks for one.

    A run may come from a larger machine, or from somebody who means harm: four threads per core are the most.
    """
    before, threads = torch.get_num_threads(), executor.threads
    return nullcontext() if threads is None or threads == before else _other_threads(threads, before)


@contextmanager
def _other_threads(threads: int, before: int) -> Iterator[None]:
    if threads > 1:
        most = _THREADS_PER_CORE * (os.cpu_count() or 1)
        if threads > most:
            warnings.warn(f"{threads} threads were asked for; this machine takes {most}", stacklevel=3)
        threads = min(threads, most)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gradient_leaves(leaves: Leaves) -> Leaves:
    """The same values as leaves of a new graph."""
    return {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}


def slopes(
    value: Tensor | Sequence[Tensor], leaves: Sequence[Tensor], along: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Gradients of a scalar, or of values `along` given directions; zero for leaves that they do not depend on."""
    return torch.autograd.grad(value, tuple(leaves), along, allow_unused=True, materialize_grads=True)
