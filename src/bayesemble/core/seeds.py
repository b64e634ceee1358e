"""Seeds by name: every random draw has its own seed, derived from one root seed and a path of names.

`child(0, "member", 3)` is the same number whatever the number of members, the executor, the machine or the
point at which a run was resumed, so none of these can change a result, and no generator state is ever saved.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def child(root: int, *names: str | int) -> int:
    """Derive the seed at a path of names below a root seed: a non-negative number of 63 bits."""
    digest = hashlib.blake2b(json.dumps([root, *names], default=int).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(root: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Make a generator seeded with `child(root, *names)`."""
    return torch.Generator(device=device).manual_seed(child(root, *names))


def seed_torch(seed: int) -> None:
    """Set torch's global random state, on all devices.

    Where there is only the CPU, its generator is seeded directly: `torch.manual_seed` writes down a traceback for each
    kind of device that is missing, which takes longer than a step of a small network.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


_GLOBAL_STATE = threading.RLock()


@contextmanager
def scoped(seed: int | None = None) -> Iterator[None]:
    """Run a block with torch's global random state set to `seed`; the caller's state comes back afterwards.

    One thread at a time: there is only one such state.
    """
    with _GLOBAL_STATE, torch.random.fork_rng():
        if seed is not None:
            seed_torch(seed)
        yield


class Stream:
    """Random numbers from torch's global state for whoever takes no generator: they go on where the last ones ended."""

    def __init__(self, seed: int) -> None:
        with scoped(seed):
            self._state = torch.get_rng_state()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Run a block in which torch draws from this stream."""
        with scoped():
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()
