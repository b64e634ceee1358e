"""Random numbers inside a vectorised network, drawn member by member from each member's own seed.

Under `torch.vmap` a random operation runs once for all members on a tensor `(member, ...)`. The mode below carries
it out for each member under that member's own random state instead, so that member i sees the numbers it would see
alone, one by one in a loop, or beside any number of others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core.seeds import EagerMode, Generators, draw, is_random


@contextmanager
def per_member(seeds: Sequence[int] | None) -> Iterator[None]:
    """Draw what is random inside the members from these seeds, one per member; nothing to do without seeds."""
    if seeds is None:
        yield
    else:
        with _PerMember(seeds):
            yield


class _PerMember(EagerMode):
    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self.generators = [Generators(seed) for seed in seeds]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_random(func, args, kwargs):
            return func(*args, **kwargs)
        drawn = [
            draw(func, [_own(index, value) for value in args], kwargs, generators)
            for index, generators in enumerate(self.generators)
        ]
        if func._schema.is_mutable:  # slices of the tensor were filled in place
            return args[0]
        return pytree.tree_map(lambda *parts: torch.stack(parts), *drawn)


def _own(index: int, value: Any) -> Any:
    """The share of one member in an argument: its slice of a tensor, or a shape without the member axis."""
    if isinstance(value, Tensor):
        return value[index]
    return value[1:] if isinstance(value, list | tuple) else value
