"""The loop with compiled gradients: those of one member are recorded and compiled, and serve all members in turn.

Where a network is large, as those of convolutions are, Python costs little, but passes through memory do: the compiler
does several operations in one pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bayesemble.core.errors import TrainingError
from bayesemble.core.types import Inputs, Leaves, MemberFunction, Targets, tensors_of
from bayesemble.execute.loop import Loop
from bayesemble.execute.programs.alike import close
from bayesemble.execute.programs.program import Replay, tidy
from bayesemble.execute.programs.recorder import Record, Recorder

logger = logging.getLogger("bayesemble")

_MOST_BYTES = 1 << 30  # that are held while a member is recorded
_ROUNDING = 0.02  # share of a gradient: of millions of ReLUs, some are so close to zero that they take the other side


@dataclass
class _Program:
    replay: Replay
    uses: int = 0


@dataclass(frozen=True)
class CompiledLoop(Loop):
    """A loop that makes programs of what a member is asked for; they are kept as long as it lives."""

    make: Callable[[Record], Replay] = field(kw_only=True, compare=False)
    """Makes a function of a record."""
    programs: dict[Hashable, _Program | None] = field(init=False, default_factory=dict, compare=False, repr=False)

    def slopes_of(
        self,
        function: MemberFunction,
        params: Leaves,
        buffers: Leaves,
        inputs: Inputs,
        targets: Targets,
        random: int | None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The value of a function and its slopes in the parameters, by a program where the function comes again."""
        if random is not None or not hasattr(function, "__self__"):  # one that is made anew for every step
            self._say_once("what a member is asked for differs from step to step, as in adversarial training")
            return super().slopes_of(function, params, buffers, inputs, targets, random)
        tensors = [*params.values(), *buffers.values(), *tensors_of((inputs, targets))]
        key = (function, *[(tensor.shape, tensor.stride()) for tensor in tensors])
        if key not in self.programs:
            self.programs[key] = self._recorded(function, params, buffers, inputs, targets)
        program = self.programs[key]
        if program is None:
            return super().slopes_of(function, params, buffers, inputs, targets, random)
        program.uses += 1
        if program.uses & (program.uses - 1):
            value, *found = program.replay(*tensors)
            return value, found
        own = {name: leaf.clone() for name, leaf in buffers.items()}
        expected, slopes = super().slopes_of(function, params, own, inputs, targets, random)
        value, *found = program.replay(*tensors)
        if not close([expected, *slopes], [value, *found], _ROUNDING):
            raise TrainingError(
                "the gradient of a member differs from that of its compiled form: the network goes by something not "
                'in its inputs, or cannot be compiled. Train with an executor such as be.Loop(steps="eager")'
            )
        return value, found

    def _recorded(
        self, function: MemberFunction, params: Leaves, buffers: Leaves, inputs: Inputs, targets: Targets
    ) -> _Program | None:
        own = {name: leaf.clone() for name, leaf in buffers.items()}
        recorder = Recorder([*params.values(), *own.values(), *tensors_of((inputs, targets))], _MOST_BYTES)
        with recorder:
            value, slopes = super().slopes_of(function, params, own, inputs, targets, None)
        record = recorder.finish([value, *slopes])
        if record.obstacle is not None:
            self._say_once(record.obstacle)
            return None
        return _Program(self.make(tidy(record)))

    def coupled_gradients(self, *arguments: Any, **settings: Any) -> Leaves:
        """Gradients of what couples the members, as the loop has them."""
        self._say_once("members are coupled by their outputs")
        return super().coupled_gradients(*arguments, **settings)

    def _say_once(self, obstacle: str) -> None:
        """Tell why gradients are not compiled."""
        if obstacle not in self.programs:
            self.programs[obstacle] = None
            logger.warning("gradients are taken in Python, not compiled: %s", obstacle)
