"""The networks that a prediction averages over, a few at a time, so that any number of them fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Generator

from bayesemble import seeds
from bayesemble.members import Members, State
from bayesemble.methods import Method
from bayesemble.methods.method import keeps_dropout, num_draws
from bayesemble.settings import require

_BUDGET = 1 << 28  # bytes of drawn leaves at a time
_MOST = 64  # draws at a time


class Draws:
    """Networks drawn from a fitted ensemble, in parts; the same ones each time it is gone through.

    A method that makes its draws one after the other from the generator is asked for a few at a time. All others give
    their members at once.
    """

    def __init__(self, method: Method, state: State, num: int | None, seed: int) -> None:
        require(num is None or num >= 1, f"num_draws is a number from 1, or None, got {num}")
        self.method, self.state, self.seed = method, state, seed
        self.made = num_draws(method) is not None
        """Whether networks are made at will, rather than being there."""
        self.num = num_draws(method) if num is None else num
        self._whole: Members | None = None
        self._passes = 0

    def __iter__(self) -> Iterator[Members]:
        """Go through the parts."""
        size = self._size()
        if self._whole is None and (size is None or self.num is None or size >= self.num):
            self._whole = self.method.draw(self.state, self.num, self._generator())
        if self._whole is not None:
            yield self._whole
            return
        assert self.num is not None
        assert size is not None
        generator = self._generator()
        for start in range(0, self.num, size):
            yield self.method.draw(self.state, min(size, self.num - start), generator)

    def dropout_seeds(self, start: int, num: int) -> list[int] | None:
        """Seeds of what dropout layers drop in each of `num` networks from number `start` on, if they act at all."""
        if not keeps_dropout(self.method):
            return None
        self._passes += start == 0  # every batch of rows drops other units
        return [seeds.child(self.seed, "dropout", self._passes, start + index) for index in range(num)]

    def _generator(self) -> Generator:
        return seeds.generator(self.seed, "draw")

    def _size(self) -> int | None:
        """How many networks at a time, if they are made at will."""
        if not self.made:
            return None
        one = self.method.draw(self.state, 1, self._generator())
        own = [leaf for name, leaf in (one.params | one.buffers).items() if name not in one.shared]
        each = sum(leaf.numel() * leaf.element_size() for leaf in own)
        return draws_at_once(each, self.state.members.num_members)


def draws_at_once(each: int, num_members: int) -> int:
    """How many networks of so many bytes to draw at a time; a multiple of the members, which they come from in turn."""
    few = min(_MOST, _BUDGET // max(each, 1))
    return max(few // num_members, 1) * num_members
