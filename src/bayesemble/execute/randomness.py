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
from torch.utils._python_dispatch import TorchDispatchMode

from bayesemble.core.seeds import scoped, seed_torch


@contextmanager
def per_member(seeds: Sequence[int] | None) -> Iterator[None]:
    """Draw what is random inside the members from these seeds, one per member; nothing to do without seeds."""
    if seeds is None:
        yield
    else:
        with scoped(), _PerMember(seeds):
            yield


class _PerMember(TorchDispatchMode):
    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self.seeds = seeds
        self.states: dict[str, list[Tensor]] = {}  # random state of each member, by kind of device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch's compiler would be imported only to be told so."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        drawn = [self._draw(index, func, args, kwargs) for index in range(len(self.seeds))]
        if func._schema.is_mutable:  # slices of the tensor were filled in place
            return args[0]
        return pytree.tree_map(lambda *parts: torch.stack(parts), *drawn)

    def _draw(self, index: int, func: Any, args: Any, kwargs: Any) -> Any:
        kind = next((a.device.type for a in args if isinstance(a, Tensor)), kwargs.get("device") or "cpu")
        kind = torch.device(kind).type
        source = torch.random if kind == "cpu" else torch.get_device_module(kind)
        if kind not in self.states:
            self.states[kind] = [_first_state(source, seed) for seed in self.seeds]
        source.set_rng_state(self.states[kind][index])
        result = func(*[self._own(index, value) for value in args], **kwargs)
        self.states[kind][index] = source.get_rng_state()
        return result

    def _own(self, index: int, value: Any) -> Any:
        """The share of one member in an argument: its slice of a tensor, or a shape without the member axis."""
        if isinstance(value, Tensor):
            return value[index]
        return value[1:] if isinstance(value, list | tuple) else value


def _first_state(source: Any, seed: int) -> Tensor:
    seed_torch(seed)
    state: Tensor = source.get_rng_state()
    return state
