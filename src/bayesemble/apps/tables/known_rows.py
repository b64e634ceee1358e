"""Which rows of a table are held out, and which there were when a run was trained.

A row is known by a seeded hash of its cells, taken by the names of their columns: neither the order of rows or columns
nor line endings matter, and equal rows fall on one side. The hashes of all rows, each once and sorted, are kept as
`RUN/rows.bin`, eight bytes for each; what `table.json` says of them tells whether they are whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core import seeds
from bayesemble.core.errors import CheckpointError, DataError
from bayesemble.core.files import replacing
from bayesemble.data.table_files import Chunk, listed

ROWS = "rows.bin"
Hashes = npt.NDArray[np.uint64]


def hash_rows(chunk: Chunk, columns: Sequence[str], seed: int) -> Hashes:
    """One number for the cells that each row has in these columns."""
    if absent := [name for name in columns if name not in chunk.columns]:
        raise DataError(f"{chunk.source} lacks columns that it had when the run was trained: {listed(absent)}")
    key = seeds.child(seed, "test rows").to_bytes(8, "big")
    # No cell holds the sign that is put between them.
    rows = map("\0".join, zip(*(chunk.columns[name] for name in sorted(columns)), strict=True))
    digests = [hashlib.blake2b(row.encode(), digest_size=8, key=key).digest() for row in rows]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def in_test(hashes: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """Which rows are held out for testing: those whose hash, as a share of the largest, is below the share."""
    return hashes / 2.0**64 < share


class Splitter:
    """Tells the held-out rows of a table from the others, and remembers the hashes of all."""

    def __init__(self, seed: int, share: float, columns: Sequence[str] = (), apart: str | None = None) -> None:
        """Rows are known by these columns, or by all but the one that is apart, such as that of weights."""
        self._seed, self._share, self._apart = seed, share, apart
        self._columns = tuple(columns)
        self._seen: list[Hashes] = []

    def part(self, chunks: Iterable[Chunk], test: bool) -> Iterator[Chunk]:
        """The held-out rows of a whole table, or the others; those without a column are refused."""
        self._seen, source, count = [], "", 0
        for chunk in chunks:
            self._columns = self._columns or tuple(name for name in chunk.columns if name != self._apart)
            hashes = hash_rows(chunk, self._columns, self._seed)
            self._seen.append(hashes)
            mask = in_test(hashes, self._share)
            kept = chunk.take(mask if test else ~mask)
            source, count = chunk.source, count + len(kept.rows)
            if len(kept.rows):
                yield kept
        if not (test or count):
            raise DataError(
                f"no row of {source} is left to learn from: equal rows are held out together; "
                "take another seed, or hold out none"
            )

    def seen(self) -> KnownRows:
        """The rows of the table that `part` went through last."""
        return KnownRows(self._columns, np.unique(np.concatenate(self._seen)))


@dataclass(frozen=True, eq=False)
class KnownRows:
    """All rows that a table had."""

    columns: tuple[str, ...]
    hashes: Hashes

    def stamp(self) -> dict[str, Any]:
        """What `table.json` says of them: the columns, how many different rows, and the sum of their hashes."""
        total = int(self.hashes.sum(dtype=np.uint64))
        return {"columns": sorted(self.columns), "count": len(self.hashes), "sum": f"{total:016x}"}

    def write(self, folder: Path) -> None:
        """Put the hashes into a run folder, whole or not at all."""
        with replacing(folder / ROWS) as temporary:
            temporary.write_bytes(self.hashes.astype("<u8").tobytes())

    @staticmethod
    def read(folder: Path, stamp: dict[str, Any]) -> KnownRows:
        """Read them from a run folder; refused if they are not those of the stamp."""
        path = folder / ROWS
        try:
            found = KnownRows(tuple(stamp["columns"]), np.frombuffer(path.read_bytes(), dtype="<u8"))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not all(isinstance(name, str) for name in found.columns) or found.stamp() != stamp:
            raise CheckpointError(f"{path} is damaged, or of another run: it does not hold the rows of table.json")
        return found

    def compare(self, now: KnownRows, share: float, file: str) -> list[str]:
        """Refuse a table from which trained rows are gone; say in notes how its held-out rows have changed."""
        trained, held_out = (self.hashes[in_test(self.hashes, share) == part] for part in (False, True))
        if gone := len(np.setdiff1d(trained, now.hashes, assume_unique=True)):
            raise DataError(
                f"{gone:,} of the {len(trained):,} different rows that the run was trained on are no longer in {file}, "
                "so its held-out rows may be such rows, slightly changed: restore the file, name another one to "
                "evaluate, or fit again"
            )
        here = now.hashes[in_test(now.hashes, share)]
        lost, added = (
            len(np.setdiff1d(one, other, assume_unique=True)) for one, other in ((held_out, here), (here, held_out))
        )
        notes = [f"{added:,} held-out rows were not there when the run was trained"] if added else []
        return notes + ([f"{lost:,} rows that were held out then are no longer in {file}"] if lost else [])
