"""The networks that a prediction averages over, a few at a time, so that any number of them fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

from bayesemble.core import seeds
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.methods import Method
from bayesemble.methods.base import Maker, keeps_dropout, maker

_BUDGET = 1 << 28  # bytes of drawn leaves at a time
_MOST = 64  # draws at a time


class Draws:
    """Networks drawn from a fitted ensemble, in parts; the same ones each time it is gone through.

    A method that makes networks at will is asked for a few at a time. All others give their members at once.
    """

    def __init__(self, method: Method, state: State, num: int | None, seed: int) -> None:
        require(num is None or num >= 1, f"num_draws is a number from 1, or None, got {num}")
        self.method, self.state, self.num, self.seed = method, state, num, seed
        self._maker = maker(method, state)
        self._whole: Members | None = None
        self._passes = 0

    @property
    def made(self) -> bool:
        """Whether networks are made at will, rather than being there."""
        return self._maker is not None

    def __iter__(self) -> Iterator[Members]:
        """Go through the parts."""
        if self._whole is not None:
            yield self._whole
        elif self._maker is not None:
            yield from self._parts(self._maker)
        else:
            self._whole = self.method.draw(self.state, self.num, seeds.generator(self.seed, "draw"))
            yield self._whole

    def _parts(self, method: Maker) -> Iterator[Members]:
        num, seed = self.num or method.draws, seeds.child(self.seed, "draw")
        one = method.make(self.state, range(1), seed)
        own = [leaf for name, leaf in (one.params | one.buffers).items() if name not in one.shared]
        size = draws_at_once(sum(leaf.numel() * leaf.element_size() for leaf in own))
        for start in range(0, num, size):
            part = method.make(self.state, range(start, min(start + size, num)), seed)
            if part.num_members == num:  # no other parts: it is kept for the next batch of rows
                self._whole = part
            yield part

    def dropout_seeds(self, start: int, num: int) -> list[int] | None:
        """Seeds of what dropout layers drop in each of `num` networks from number `start` on, if they act at all."""
        if not keeps_dropout(self.method):
            return None
        self._passes += start == 0  # every batch of rows drops other units
        return [seeds.child(self.seed, "dropout", self._passes, start + index) for index in range(num)]


def draws_at_once(each: int) -> int:
    """How many networks of so many bytes to draw at a time."""
    return max(min(_MOST, _BUDGET // max(each, 1)), 1)
