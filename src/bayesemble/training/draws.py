"""The networks that a prediction averages over, a few at a time, so that any number of them fits into memory."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.memory import how_many_fit
from bayesemble.core.settings import require
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method

_BYTES_AT_A_TIME = 1 << 28  # of drawn leaves
_BYTES_AT_HAND = 1 << 30  # more may lie on a disk
_DRAWS_AT_A_TIME = 64


@dataclass(frozen=True, eq=False)
class DrawnNetworks:
    """Networks of a fitted ensemble, in parts; the same ones each time they are gone through.

    A method that can draw any number of networks is asked for a few at a time. All others give those they have, or a
    sample of them by their weights.
    """

    method: Method
    state: State
    num: int | None
    """How many; None lets the method say."""
    seed: int
    team: Team = ALONE
    """The processes that the others are on, where these are not all; they predict together."""

    def __post_init__(self) -> None:
        require(self.num is None or self.num >= 1, f"num_draws is a number from 1, or None, got {self.num}")

    @cached_property
    def sampled(self) -> bool:
        """Whether the method draws new networks, rather than having only its own."""
        return self.method.can_draw(self.state)

    def __iter__(self) -> Iterator[Members]:
        """Go through the parts."""
        return iter(self._parts()) if self._kept is None else iter(self._kept)

    def joined(self) -> Members:
        """All of them at once."""
        return self._draw(0, self._count) if self.sampled else self._held()

    def dropout_seeds(self, rows: int, start: int, num: int) -> list[int] | None:
        """Seeds of what dropout layers drop in `num` networks from number `start` on, if they act at all.

        `rows` counts batches of rows, each of which drops other units.
        """
        if not self.method.keeps_dropout:
            return None
        return [seeds.child(self.seed, "dropout", rows + 1, start + index) for index in range(num)]

    @cached_property
    def at_hand(self) -> bool:
        """Whether going through them costs nothing: none is drawn again, nor brought in from a disk."""
        return self._kept is not None and sum(_own_bytes(part) for part in self._kept) <= _BYTES_AT_HAND

    @property
    def bytes_kept(self) -> int:
        """How much memory the networks take that were needed so far and are kept, beside that of the state."""
        return self._bytes_of_kept if "_kept" in self.__dict__ else 0

    @cached_property
    def _bytes_of_kept(self) -> int:
        there = {id(leaf) for leaves in self.state.groups().values() for leaf in leaves.values()}
        return sum(_own_bytes(part, there) for part in self._kept or [])

    @cached_property
    def _kept(self) -> list[Members] | None:
        """All parts, if they are few enough to be kept for the next batch of rows."""
        if not self.sampled:
            return [self._held()]
        return list(self._parts()) if self._count * self._bytes <= _BYTES_AT_A_TIME else None

    def _parts(self) -> Iterator[Members]:
        size = draws_at_once(self._bytes)
        for start in range(0, self._count, size):
            yield self._draw(start, min(start + size, self._count))

    @cached_property
    def _count(self) -> int:
        return self.num or self.method.usual_draws(self.state) or 0

    @cached_property
    def _bytes(self) -> int:
        """Of the leaves that one network has for itself."""
        return _own_bytes(self._draw(0, 1))

    def _draw(self, start: int, stop: int) -> Members:
        return self.method.draw(self.state, range(start, stop), seeds.child(self.seed, "draw"))

    def _held(self) -> Members:
        networks = self.method.networks(self.state)
        if self.num is None:
            return networks
        generator = seeds.generator(self.seed, "draw")
        return networks.take(
            torch.multinomial(networks.weights.double(), self.num, replacement=True, generator=generator)
        )


def _own_bytes(members: Members, but: Container[int] = ()) -> int:
    """Of the leaves that are not shared, but for those with these identities."""
    own = [leaf for name, leaf in (members.params | members.buffers).items() if name not in members.shared]
    return sum(leaf.numel() * leaf.element_size() for leaf in own if id(leaf) not in but)


def draws_at_once(size: int) -> int:
    """How many networks of this many bytes to draw at a time."""
    return min(how_many_fit(_BYTES_AT_A_TIME, size), _DRAWS_AT_A_TIME)
