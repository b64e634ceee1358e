"""Seeds by name: every random draw has its own seed, derived from one root seed and a path of names.

`child(0, "member", 3)` is the same number whatever the number of members, the executor, the machine or the
point at which a run was resumed, so none of these can change a result, and no generator state is ever saved.

Whoever takes no generator, as the layers of a network, draws from a stream: inside its blocks torch's random operations
get a generator of the stream, in this thread alone. The generators that all threads share are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayesemble.core.errors import ModelError

MEMBER = "member"
"""The name that comes before the position of a member in a path of names."""


class PartSeed(int):
    """The seed of a run of some members alone, whose positions 0, 1, ... stand for their numbers among all.

    `child(seed, "member", 0)` is what the run of all members has for the first of these numbers, so that whoever names
    members by their positions gets the random numbers that they have among all. Seeds below it keep this.
    """

    numbers: range
    """Of the members that are there."""
    whole: int
    """How many members there are in all."""

    def __new__(cls, seed: int, numbers: range, whole: int) -> Self:
        """Give a seed these numbers."""
        own = super().__new__(cls, seed)
        own.numbers, own.whole = numbers, whole
        return own

    def __reduce__(self) -> tuple[type[PartSeed], tuple[int, range, int]]:
        return PartSeed, (int(self), self.numbers, self.whole)


def child(root: int, *names: str | int) -> int:
    """Derive the seed at a path of names below a root seed: a non-negative number of 63 bits."""
    part = root if isinstance(root, PartSeed) else None
    if part is not None and MEMBER in names:
        place = names.index(MEMBER) + 1
        names, part = (*names[:place], int(names[place]) + part.numbers.start, *names[place + 1 :]), None
    digest = hashlib.blake2b(json.dumps([root, *names], default=int).encode(), digest_size=8).digest()
    found = int.from_bytes(digest, "big") >> 1
    return found if part is None else PartSeed(found, part.numbers, part.whole)


def members_of(seed: int, num: int) -> tuple[range, int]:
    """The numbers of the `num` members that a run with this seed has, and how many members there are in all."""
    return (seed.numbers, seed.whole) if isinstance(seed, PartSeed) else (range(num), num)


def generator(root: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Make a generator seeded with `child(root, *names)`."""
    return torch.Generator(device=device).manual_seed(child(root, *names))


class Generators:
    """A generator for each device, all of one seed, made when they are first needed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._found: dict[torch.device, torch.Generator] = {}

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        fresh = [torch.Generator(device).manual_seed(self._seed) for device in self._found]
        pairs = zip(self._found.values(), fresh, strict=True)
        return any(not torch.equal(one.get_state(), other.get_state()) for one, other in pairs)

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of a device."""
        if device not in self._found:
            self._found[device] = torch.Generator(device).manual_seed(self._seed)
        return self._found[device]


class EagerMode(TorchDispatchMode):
    """A mode whose code torch's compiler does not look into, if somebody uses it.

    Torch arranges for that too, but imports the compiler to do so, which takes longer than training a small network.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        if "torch._dynamo" in sys.modules:
            for cls in type(self).__mro__:
                own = cls.__dict__.get("__torch_dispatch__")
                if own is not None and issubclass(cls, EagerMode) and not hasattr(own, "_torchdynamo_disable"):
                    cls.__torch_dispatch__ = torch.compiler.disable(own)  # type: ignore[method-assign]
        super().__enter__()
        return self


class TorchStream(EagerMode):
    """Random numbers of torch for whoever takes no generator: inside `with stream:`, they are drawn from here.

    A block goes on where the last one ended. What is drawn is what torch's global generator would give after
    `torch.manual_seed(seed)`. A process that is forked inside a block, as a worker of a `DataLoader`, is not meant.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generators = Generators(seed)
        self._process = os.getpid()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_random(func, args, kwargs) or os.getpid() != self._process:
            return func(*args, **kwargs)
        return draw(func, args, kwargs, self.generators)


def is_random(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation of torch draws random numbers and was given no generator."""
    names = _arguments_if_random(func)
    if names is None or kwargs.get("generator") is not None:
        return False
    # Attention is random only with dropout.
    return "dropout_p" not in names or (dict(zip(names, args, strict=False)) | kwargs).get("dropout_p", 0.0) > 0


@cache
def _arguments_if_random(func: Any) -> list[str] | None:
    """Names of the arguments of an operation that may draw random numbers, None of any other."""
    may_be = torch.Tag.nondeterministic_seeded in func.tags
    return [argument.name for argument in func._schema.arguments] if may_be else None


def draw(func: Any, args: Any, kwargs: dict[str, Any], generators: Generators) -> Any:
    """Carry out a random operation with one of these generators."""
    if recomputing():
        raise ModelError(
            "the network draws random numbers, as dropout does, inside activation checkpointing "
            "(torch.utils.checkpoint), which could not draw the same in the backward pass; turn off one of the two"
        )
    kind = next((value.device for value in args if isinstance(value, Tensor)), kwargs.get("device"))
    own = generators.on(torch.device(kind or "cpu"))
    with_generator = _with_generator(func)
    if with_generator is not None:
        return with_generator(*args, **kwargs, generator=own)
    source: Any = torch.random if own.device.type == "cpu" else torch.get_device_module(own.device)
    with _SHARED:  # there is no such operation but with torch's own generator: it is lent the state of ours
        before = source.get_rng_state()
        source.set_rng_state(own.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            own.set_state(source.get_rng_state())
            source.set_rng_state(before)


@cache
def _with_generator(func: Any) -> Any:
    """The same operation with an argument `generator`, or None: `aten.randn.default` has `aten.randn.generator`."""
    own = [argument.name for argument in func._schema.arguments]
    if "generator" in own:
        return func
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        names = [argument.name for argument in other._schema.arguments]
        if "generator" in names and [one for one in names if one != "generator"] == own:
            return other
    return None


def recomputing() -> bool:
    """Whether a block of `torch.utils.checkpoint` is running, which is run again in the backward pass."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and "_checkpoint_hook" in hooks[0].__qualname__


_SHARED = threading.RLock()


class Stream:
    """Random numbers of somebody else's code, as a factory or a data set: by torch, by numpy, or by Python's `random`.

    A block goes on where the last one ended. The last two have only one state for all threads: threads take turns, and
    at the end of a block both get back what they had.
    """

    def __init__(self, seed: int) -> None:
        self._torch = _UnlessReseeded(seed)
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    def __enter__(self) -> Stream:
        _SHARED.acquire()
        try:
            self._before = self._swapped(self._states)
        except BaseException:  # numpy may have been given a generator of another kind, which takes no such state
            _SHARED.release()
            raise
        self._torch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._torch.__exit__(*error)
        self._states = self._swapped(self._before)
        _SHARED.release()

    @staticmethod
    def _swapped(states: tuple[Any, Any]) -> tuple[Any, Any]:
        before = random.getstate(), np.random.get_state()
        random.setstate(states[0])
        np.random.set_state(states[1])
        return before


class _UnlessReseeded(TorchStream):
    """A stream until the code inside says `torch.manual_seed`: what it draws then is what it asked for.

    The state that torch's own generator had before that comes back at the end of the block.
    """

    def __enter__(self) -> Self:
        self._before = torch.get_rng_state()
        self._seed_before, self._fresh_before = torch.initial_seed(), _just_seeded()
        self._left = False
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._reseeded():
            torch.set_rng_state(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_random(func, args, kwargs or {}) and self._reseeded():
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _reseeded(self) -> bool:
        now = torch.initial_seed() != self._seed_before or (not self._fresh_before and _just_seeded())
        self._left = self._left or now
        return self._left


def _just_seeded() -> bool:
    """Whether nothing was drawn from torch's own generator since it was seeded."""
    return torch.equal(torch.get_rng_state(), _state_after(torch.initial_seed()))


@lru_cache(maxsize=1)
def _state_after(seed: int) -> Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def scoped(seed: int) -> Stream:
    """A block of somebody else's code that draws from a seed: `with scoped(3): ...`."""
    return Stream(seed)
