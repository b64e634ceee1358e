"""One member after the other: the reference, the most frugal in memory, and the fastest for convolutions on a CPU."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesemble.core.members import Members, State
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.seeds import TorchStream
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Batch, Inputs, Leaves, MemberFunction, OutputFunction, Outputs, Targets, map_tensors
from bayesemble.execute.executor import STEPS, Executor, gradient_leaves, slopes
from bayesemble.task.recomputation import again, recorded


@dataclass(frozen=True)
class Loop(Executor):
    """Run members one by one; only one member's activations are in memory at a time."""

    channels_last: bool = setting(False, "keep images and kernels in channels-last order, faster for convolutions")
    draws_by_vmap: bool = setting(False, "run networks that are drawn for a prediction side by side, where vmap can")
    threads: int | None = setting(None, "number of torch threads; None leaves it as it is", least=1)
    steps: str = setting("eager", "how training steps are taken: eager, traced or compiled", choices=STEPS)

    def __post_init__(self) -> None:
        validate(self)

    def details(self) -> list[str]:
        """Its order in memory, and how it predicts."""
        return ["channels-last"] * self.channels_last + ["with draws by vmap"] * self.draws_by_vmap

    def members_of_a_tensor(self, members: Members) -> int | None:
        """One, unless members share some."""
        return None if members.shared & members.params.keys() else 1

    @property
    def runs_few_members(self) -> bool:
        """One at a time; kernels in channels-last order would be copies of what lies on disk."""
        return not self.channels_last

    def arrange(self, state: State) -> State:
        """Put the kernels of each member into channels-last order, if asked for."""
        shared = state.members.shared

        def arranged(name: str, leaf: Tensor) -> Tensor:
            if self.channels_last and leaf.dim() == 5 and name not in shared:
                # Each slice along the member axis becomes a channels-last tensor.
                return leaf.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
            if self.channels_last and leaf.dim() == 4 and name in shared:
                return leaf.contiguous(memory_format=torch.channels_last)
            return leaf.contiguous()

        return state.map(arranged)

    def gradients(
        self,
        function: MemberFunction,
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> tuple[Tensor, Leaves]:
        """Values and gradients, member by member."""
        values, gradients = [], _zeros(members.params, allocator)
        batch = replace(batch, inputs=self._ordered(batch.inputs))
        for index, (params, buffers) in enumerate(members.split()):
            rows, random = (batch.inputs_of(index), batch.targets_of(index)), None if seeds is None else seeds[index]
            value, found = self.slopes_of(function, params, buffers, *rows, random)
            _add(gradients, members.shared, index, zip(params, found, strict=True))
            values.append(value)
        return torch.stack(values), gradients

    def slopes_of(
        self,
        function: MemberFunction,
        params: Leaves,
        buffers: Leaves,
        inputs: Inputs,
        targets: Targets,
        random: int | None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The value of a function of one member and its slopes in the parameters; `random` seeds what it draws."""
        leaves = gradient_leaves(params)
        with torch.enable_grad(), _random(random), recorded() as placed:
            value = function(leaves, buffers, inputs, targets)
        with again(placed):
            return value.detach(), slopes(value, list(leaves.values()))

    def coupled_gradients(
        self,
        function: OutputFunction,
        couple: Callable[[Outputs], Tensor],
        members: Members,
        batch: Batch,
        seeds: Sequence[int] | None = None,
        allocator: Allocator = MEMORY,
    ) -> Leaves:
        """Gradients of what couples the members: all forward, then all backward."""
        batch = replace(batch, inputs=self._ordered(batch.inputs))
        networks = []
        with torch.enable_grad():
            for index, (params, buffers) in enumerate(members.split()):
                leaves = gradient_leaves(params)
                with _random(None if seeds is None else seeds[index]), recorded() as placed:
                    outputs = function(leaves, buffers, batch.inputs_of(index), batch.targets_of(index))
                networks.append((leaves, outputs, placed))
            stacked = {
                name: torch.stack([outputs[name].detach() for _, outputs, _ in networks]).requires_grad_()
                for name in networks[0][1]
            }
            slope = dict(zip(stacked, slopes(couple(stacked), list(stacked.values())), strict=True))
        gradients = _zeros(members.params, allocator)
        for index, (leaves, outputs, placed) in enumerate(networks):
            with again(placed):
                found = slopes([*outputs.values()], list(leaves.values()), [slope[name][index] for name in outputs])
            _add(gradients, members.shared, index, zip(leaves, found, strict=True))
        return gradients

    def values(
        self, function: MemberFunction, members: Members, batch: Batch, seeds: Sequence[int] | None = None
    ) -> Tensor:
        """Values, member by member."""
        batch, values = replace(batch, inputs=self._ordered(batch.inputs)), []
        for index, (params, buffers) in enumerate(members.split()):
            with _random(None if seeds is None else seeds[index]):
                values.append(function(params, buffers, batch.inputs_of(index), batch.targets_of(index)))
        return torch.stack(values)

    def parts(self, members: Members) -> list[Members]:
        """Each member alone, without a member axis."""
        names, weights = frozenset(members.params | members.buffers), members.weights.split(1)
        return [Members(*leaves, weight, names) for leaves, weight in zip(members.split(), weights, strict=True)]

    def run(self, function: MemberFunction, part: Members, inputs: Inputs) -> Tensor:
        """Values of one member."""
        return function(part.params, part.buffers, self._ordered(inputs), None).unsqueeze(0)

    def _ordered(self, inputs: Inputs) -> Inputs:
        if not self.channels_last:
            return inputs
        return map_tensors(lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, inputs)


def _random(seed: int | None) -> AbstractContextManager[Any]:
    """What one member draws inside comes from its own seed, if there is one."""
    return nullcontext() if seed is None else TorchStream(seed)


def _zeros(params: Leaves, allocator: Allocator) -> Leaves:
    space = allocator.gradient_space(params)
    if space is None:
        return {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    return {name: leaf.zero_() for name, leaf in space.items()}


def _add(gradients: Leaves, shared: frozenset[str], member: int, found: Iterable[tuple[str, Tensor]]) -> None:
    for name, slope in found:
        own = gradients[name] if name in shared else gradients[name][member]
        own.add_(slope)
