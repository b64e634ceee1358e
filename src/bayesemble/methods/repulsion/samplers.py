"""Where functions are compared: samplers that draw inputs, anew at every step."""

from typing import Protocol, runtime_checkable

import torch

from bayesemble.core.types import Inputs, map_tensors, tensors_of


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
