"""All members at once with `torch.vmap`: fast for small dense networks, where Python is the whole cost of a loop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.members import Members, State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Batch, Inputs, Leaves, MemberFunction, OutputFunction, Outputs
from bayesemble.execute.executor import STEPS, Executor, gradient_leaves, slopes
from bayesemble.execute.optimizers.fused import turned_like
from bayesemble.execute.randomness import per_member as random_per_member


@dataclass(frozen=True)
class Vmap(Executor):
    """Run members vectorised over the member axis."""

    chunk: int | None = setting(None, "members at a time, the lever on memory; None takes all at once", least=1)
    threads: int | None = setting(None, "number of torch threads; None leaves it as it is", least=1)
    steps: str = setting("traced", "how training steps are taken: eager, traced or compiled", choices=STEPS)

    def __post_init__(self) -> None:
        validate(self)

    def details(self) -> list[str]:
        """How many members are run at a time."""
        return [f"by {self.chunk}"] if self.chunk else []

    @property
    def runs_few_members(self) -> bool:
        """A chunk at a time, if there are chunks."""
        return self.chunk is not None

    def members_of_a_tensor(self, members: Members) -> int | None:
        """Those of a chunk, whether chunks take whole steps one after the other or only gradients."""
        return None if members.shared & members.params.keys() else self.chunk

    def arrange(self, state: State) -> State:
        """Vectorised members lie one behind the other."""
        return state.map(lambda _, leaf: leaf.contiguous())

    def gradients(
        self,
        function: MemberFunction,
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> tuple[Tensor, Leaves]:
        """Values and gradients, chunk by chunk."""
        values, parts, space = [], [], _space(members, allocator)
        if not space and self.chunk is not None and self.chunk < members.num_members:
            space = {n: torch.empty_like(leaf) for n, leaf in members.params.items() if n not in members.shared}
        for start, stop in self._chunks(members):
            own = None if seeds is None else seeds[start:stop]
            chunk, rows = members.part(start, stop), batch.of_members(start, stop)
            leaves = gradient_leaves(chunk.params)
            with torch.enable_grad(), random_per_member(own):
                mapped = _vectorised(function, chunk, rows, random=own is not None)
                value = mapped(leaves, chunk.buffers, rows.inputs, rows.targets)
            found = list(slopes(value.sum(), list(leaves.values())))[::-1]
            # Those of a dense layer come transposed; what follows goes through them and the leaf side by side. Each is
            # let go of as soon as it has found its place.
            part: Leaves = {}
            for name, leaf in leaves.items():
                if name in space:
                    space[name][start:stop].copy_(found.pop())
                else:
                    part[name] = turned_like(found.pop(), leaf, found)
            parts.append(part)
            values.append(value.detach())
        return torch.cat(values), _joined(parts, members.shared) | space

    def coupled_gradients(
        self,
        function: OutputFunction,
        couple: Callable[[Outputs], Tensor],
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> Leaves:
        """Gradients of what couples the members: all chunks forward, then all backward."""
        leaves, parts = [], []
        with torch.enable_grad():
            for start, stop in self._chunks(members):
                own = None if seeds is None else seeds[start:stop]
                chunk, rows = members.part(start, stop), batch.of_members(start, stop)
                leaves.append(gradient_leaves(chunk.params))
                with random_per_member(own):
                    mapped = _vectorised(function, chunk, rows, random=own is not None)
                    parts.append(mapped(leaves[-1], chunk.buffers, rows.inputs, rows.targets))
            value = couple({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
        found = iter(slopes(value, [leaf for own in leaves for leaf in own.values()]))
        space, gradients = _space(members, allocator), [{name: next(found) for name in own} for own in leaves]
        parts = [_moved(part, space, *bounds) for part, bounds in zip(gradients, self._chunks(members), strict=True)]
        return _joined(parts, members.shared) | space

    def values(
        self, function: MemberFunction, members: Members, batch: Batch, seeds: Sequence[int] | None = None
    ) -> Tensor:
        """Values, chunk by chunk."""
        parts = []
        for start, stop in self._chunks(members):
            own = None if seeds is None else seeds[start:stop]
            chunk, rows = members.part(start, stop), batch.of_members(start, stop)
            with random_per_member(own):
                mapped = _vectorised(function, chunk, rows, random=own is not None)
                parts.append(mapped(chunk.params, chunk.buffers, rows.inputs, rows.targets))
        return torch.cat(parts)

    def parts(self, members: Members) -> list[Members]:
        """Chunks."""
        return [members.part(start, stop) for start, stop in self._chunks(members)]

    def run(self, function: MemberFunction, part: Members, inputs: Inputs) -> Tensor:
        """Values of a chunk."""
        batch = Batch(inputs, torch.empty(0))
        outputs: Tensor = _vectorised(function, part, batch, random=False)(
            part.params, part.buffers, batch.inputs, batch.targets
        )
        return outputs

    def _chunks(self, members: Members) -> Iterator[tuple[int, int]]:
        size = self.chunk or members.num_members
        for start in range(0, members.num_members, size):
            yield start, min(start + size, members.num_members)


@dataclass(frozen=True)
class SideBySide(Vmap):
    """Members of several fits, vectorised together, to the bits that each fit gives alone.

    A product of stacked matrices (`bmm`) rounds each of them in the same way whatever lies beside it. What rounds by
    the place of a number in its tensor, as fused optimisers do at its end, has to be done fit by fit.
    """

    num_fits: int = setting(1, "fits that the members belong to, in equal shares", least=1)

    @property
    def fits(self) -> int:
        """How many fits there are."""
        return self.num_fits

    def members_of_a_tensor(self, members: Members) -> int:
        """Those of a fit."""
        return members.num_members // self.num_fits


def _vectorised(function: Callable[..., Any], members: Members, batch: Batch, random: bool) -> Callable[..., Any]:
    """The function over all members; their number is one more argument, as all leaves and rows may be shared."""
    axes = (
        0,
        members.axes(members.params),
        members.axes(members.buffers),
        0 if batch.inputs_per_member else None,
        0 if batch.targets_per_member else None,
    )

    def numbered(_: Tensor, *arguments: Any) -> Any:
        return function(*arguments)

    mapped = torch.vmap(numbered, in_dims=axes, randomness="different" if random else "error")
    return partial(mapped, torch.arange(members.num_members))


def _space(members: Members, allocator: Allocator) -> Leaves:
    """Where the gradients of all members are put if they go to disk; nothing if they stay in memory."""
    return allocator.gradient_space({n: leaf for n, leaf in members.params.items() if n not in members.shared}) or {}


def _moved(part: Leaves, space: Leaves, start: int, stop: int) -> Leaves:
    """Put the gradients of some members in their place, and give back those that have none."""
    for name in space:
        space[name][start:stop].copy_(part[name])
    return {name: leaf for name, leaf in part.items() if name not in space}


def _joined(parts: list[Leaves], shared: frozenset[str]) -> Leaves:
    if len(parts) == 1:
        return parts[0]
    return {
        name: torch.stack([part[name] for part in parts]).sum(0)
        if name in shared
        else torch.cat([part[name] for part in parts])
        for name in parts[0]
    }
