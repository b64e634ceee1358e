"""The rows that were answered last, by their numbers, for labels that come later; memory stays as it is."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from bayesemble.data.schema import Encoded, Schema

MOST_ROWS = 10_000
_MOST_BYTES = 64_000_000


class RecentRows:
    """A ring of encoded rows. An id is a word of this ring and the number of the row: a foreign one is noticed."""

    def __init__(self, schema: Schema) -> None:
        width, codes = schema.num_numbers, len(schema.category_sizes)
        self.size = max(100, min(MOST_ROWS, _MOST_BYTES // (4 * width + 8 * codes)))
        self._numbers = np.zeros((self.size, width), np.float32)
        self._categories = np.zeros((self.size, codes), np.int64)
        self._labelled = np.zeros(self.size, bool)
        self._word, self._next = secrets.token_hex(4), 0

    def add(self, encoded: Encoded) -> list[str]:
        """Keep rows in place of the oldest; their ids."""
        num = len(encoded.rows)
        numbers = range(self._next, self._next + num)
        kept = slice(max(0, num - self.size), num)  # of more rows than there is room for, the last
        places = np.arange(self._next, self._next + num)[kept] % self.size
        self._numbers[places], self._categories[places] = encoded.numbers[kept], encoded.categories[kept]
        self._labelled[places] = False
        self._next += num
        return [f"{self._word}-{number}" for number in numbers]

    def place(self, id: Any) -> int | None:
        """Where the row with an id stands; None if it is not here (any more), or has its label already."""
        word, _, digits = id.partition("-") if isinstance(id, str) else ("", "", "")
        if word != self._word or not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            return None
        number = int(digits)
        here = self._next - self.size <= number < self._next and not self._labelled[number % self.size]
        return number % self.size if here else None

    def take(self, places: list[int]) -> tuple[Any, Any]:
        """The rows at these places, which have their labels from now on."""
        self._labelled[places] = True
        return self._numbers[places].copy(), self._categories[places].copy()
