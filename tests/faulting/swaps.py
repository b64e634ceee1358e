"""Data and networks that are changed under a run: noticed and said, or the result is that of the run.

Which rows a score is of is seen by what `evaluate` hands to the network: rows that were trained on must never be scored
as held out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import bayesemble as be
from bayesemble.apps.tables.run import TableRun, evaluate_table, open_table
from bayesemble.core.errors import CheckpointError
from faulting import stage
from faulting.fault import RIGHT, SILENT, Attempt, Verdict, check, heard
from faulting.kills import die_within
from helpers import small_mlp, table

LONG, SHORT = 400, 20

Row = tuple[int | None, list[str]]
"""The number that a row had when it was trained on, None of a new one, and its cells."""


@dataclass(frozen=True)
class Changed:
    """A table as somebody left it."""

    rows: list[Row]
    header: list[str]
    end: str = "\n"


def tables(chance: random.Random, rows: list[Row]) -> dict[str, Callable[[], Changed]]:
    """What may happen to a table, by words."""
    place, other = chance.randrange(len(rows)), chance.randrange(len(rows))
    header = stage.HEADER

    def edited(column: int, cell: str) -> Changed:
        number, cells = rows[place]
        found = [*cells[:column], cell, *cells[column + 1 :]]
        return Changed([*rows[:place], (number, found), *rows[place + 1 :]], header)

    def swapped() -> Changed:
        found = list(rows)
        found[place], found[other] = found[other], found[place]
        return Changed(found, header)

    def targets(draw: Callable[[str], str]) -> Changed:
        return Changed([(number, [*cells[:-1], draw(cells[-1])]) for number, cells in rows], header)

    order = chance.sample(range(len(header)), len(header))
    column, new = chance.randrange(3), stage.noise_rows(1, seed=chance.randrange(10**6))[0]
    return {
        "sorted": lambda: Changed(sorted(rows, key=lambda row: float(row[1][column])), header),
        "a row deleted": lambda: Changed(rows[:place] + rows[place + 1 :], header),
        "a row added": lambda: Changed([*rows[:place], (None, new), *rows[place:]], header),
        "two rows swapped": swapped,
        "a cell edited": lambda: edited(column, f"{chance.gauss(0, 1):.4f}"),
        "a target edited": lambda: edited(4, f"{chance.gauss(0, 1):.4f}"),
        "targets replaced": lambda: targets(lambda _: f"{chance.gauss(1000, 50):.3f}"),
        "targets drawn anew": lambda: targets(lambda _: f"{chance.gauss(0, 1):.4f}"),
        "a column renamed": lambda: Changed(rows, ["z" if name == header[column] else name for name in header]),
        "columns in another order": lambda: Changed(
            [(number, [cells[index] for index in order]) for number, cells in rows], [header[index] for index in order]
        ),
        "other line endings": lambda: Changed(rows, header, "\r\n"),
        "shuffled": lambda: Changed(chance.sample(rows, len(rows)), header),
        "the first half alone": lambda: Changed(rows[: len(rows) // 2], header),
    }


@dataclass(frozen=True)
class Place:
    """A folder with runs: on a table whole and interrupted, on arrays interrupted, and a comparison."""

    folder: Path
    file: Path
    rows: list[Row]
    held_out: frozenset[int]


def prepare(place: Path) -> Place:
    """Train all of them."""
    rows: list[Row] = list(enumerate(stage.noise_rows(80)))
    file = write(place / "noise.csv", Changed(rows, stage.HEADER))
    with scored() as seen:
        fit(file, place / "table")
    while not (place / "interrupted").is_dir():
        die_within(partial(fit, file, place / "interrupted"), step=24)
    stage.train(place / "arrays")
    stage.train_comparison(file, place / "comparison", budget=None)
    return Place(place, file, rows, frozenset(number - 2 for number in seen))


def write(path: Path, changed: Changed) -> Path:
    return stage.write_table(path, [cells for _, cells in changed.rows], changed.header, changed.end)


def fit(file: Path, folder: Path) -> Any:
    """A run on the table, with enough checkpoints to be interrupted between two."""
    said = stage.command("fit", file, "--target", "y", "--out", folder, *stage.FLAGS, "--epochs", "20")
    if said.code:
        raise CheckpointError(said.err) if said.refusal()[0] == "refused" else RuntimeError(said.err)
    return said


class scored:  # noqa: N801
    """Inside, the numbers of the rows in their file that are scored as held out."""

    def __enter__(self) -> list[int]:
        found: list[int] = []
        whole = TableRun.evaluate

        def spy(run: TableRun, parts: Any, where: str, *args: Any, **kwargs: Any) -> Any:
            kept = list(parts)
            if "held-out" in where:
                found.extend(int(row) for part in kept for row in part.rows)
            return whole(run, kept, where, *args, **kwargs)

        self.patch = patch.object(TableRun, "evaluate", spy)
        self.patch.start()
        return found

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Change the table or the arrays, and use the run as before."""
    changes = tables(chance, place.rows)
    uses: dict[str, Callable[[str, Changed], Verdict]] = {
        "evaluate": partial(evaluate, place),
        "fit goes on": partial(resume, place),
        "compare again": partial(compare, place),
    }
    if number % 4 == 3:
        words, act = list(ARRAYS.items())[number // 4 % len(ARRAYS)]
        return Attempt(words, partial(act, place, chance), may_refuse=act is not same_network)
    use = list(uses)[number % 4]
    words = list(changes)[number // 4 % len(changes)]
    return Attempt(f"{words}, then {use}", lambda: uses[use](words, changes[words]()), seconds=60)


SAME_ROWS = ("columns in another order", "other line endings")
"""After these, each row is what it was."""


def evaluate(place: Place, words: str, changed: Changed) -> Verdict:
    """`evaluate` says that the file is another, or scores rows that were held out."""
    folder = stage.copied(place.folder / "table", place.folder)
    try:
        write(place.file, changed)
        with heard() as said, scored() as seen:
            notes = evaluate_table(open_table(folder)).notes or []
    finally:
        write(place.file, Changed(place.rows, stage.HEADER))
    if said or notes:
        return RIGHT, f"said: {[*said, *notes][0]}"
    origins = [changed.rows[number - 2][0] for number in seen]
    trained = [origin for origin in origins if origin is not None and origin not in place.held_out]
    check(not trained, SILENT, f"{len(trained)} of {len(seen)} rows scored as held out were trained on; not a word")
    intact = [changed.rows[number - 2] for number in seen if changed.rows[number - 2] not in place.rows]
    same = words in SAME_ROWS or not intact
    check(same, SILENT, f"{len(intact)} rows scored are not those of the run; not a word")
    return RIGHT, f"{len(seen)} rows that were held out, and no other"


def resume(place: Place, words: str, changed: Changed) -> Verdict:
    """`fit` goes on only with the rows that it began with."""
    folder = stage.copied(place.folder / "interrupted", place.folder)
    try:
        write(place.file, changed)
        with scored() as seen:
            said = fit(place.file, folder)
    finally:
        write(place.file, Changed(place.rows, stage.HEADER))
    if words in SAME_ROWS:
        return RIGHT, "the rows are the same"
    origins = {changed.rows[number - 2][0] for number in seen}
    same = changed.rows == place.rows
    check(same, SILENT, f"training went on with other rows: {said.err[-200:]}, {len(origins)} scored")
    return RIGHT, "the rows are the same"


def compare(place: Place, words: str, changed: Changed) -> Verdict:
    """The same command again: refused, or trained anew on the table as it is now."""
    folder, fresh = stage.copied(place.folder / "comparison", place.folder), place.folder / "fresh"
    try:
        write(place.file, changed)
        with heard() as said:
            spoken: list[str] = []
            found = stage.scores(stage.train_comparison(place.file, folder, budget=None, say=spoken.append))
        stage.shutil.rmtree(fresh, ignore_errors=True)
        expected = stage.scores(stage.train_comparison(place.file, fresh, budget=None))
    finally:
        write(place.file, Changed(place.rows, stage.HEADER))
    failures = [value for value in found.values() if isinstance(value, str)]
    told = [line for line in [*said, *failures] if "rows" in line or "data" in line or "column" in line]
    if found == expected:
        return RIGHT, "the scores are those of the table as it is"
    check(bool(told), SILENT, f"old scores for a changed table: {found} instead of {expected}")
    return RIGHT, f"said: {told[0]}"


# --- arrays and networks ---


def tanh_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def other_data(change: Callable[[torch.Tensor, torch.Tensor, random.Random], tuple], words: str) -> Callable:
    """Go on with arrays of the same size and other values."""

    def act(place: Place, chance: random.Random) -> Verdict:
        folder = stage.copied(place.folder / "arrays", place.folder)
        with heard() as said:
            stage.train(folder, epochs=stage.EPOCHS + 1, resume=True, data=change(*table(), chance))
        check(bool(said), SILENT, f"training went on with {words}, and nobody said so")
        return RIGHT, f"said: {said[0]}"

    return act


def one_value(x: torch.Tensor, y: torch.Tensor, chance: random.Random) -> tuple:
    x[chance.randrange(len(x)), chance.randrange(4)] += 1e-3
    return x, y


def permuted(x: torch.Tensor, y: torch.Tensor, chance: random.Random) -> tuple:
    order = torch.tensor(chance.sample(range(len(x)), len(x)))
    return x[order], y[order]


def one_label(x: torch.Tensor, y: torch.Tensor, chance: random.Random) -> tuple:
    y[chance.randrange(len(y))] ^= 1
    return x, y


def other_network(resumed: bool, place: Place, _: random.Random) -> Verdict:
    """Tanh where ReLU was."""
    folder = stage.copied(place.folder / "arrays", place.folder)
    with heard() as said:
        if resumed:
            stage.train(folder, epochs=stage.EPOCHS + 1, resume=True, model=tanh_mlp)
        else:
            be.load(folder, tanh_mlp)
    check(bool(said), SILENT, "another network than the one that was trained, and nobody said so")
    return RIGHT, f"said: {said[0]}"


def same_network(place: Place, _: random.Random) -> Verdict:
    """The control: the network and the data that were trained are taken without a word."""
    folder = stage.copied(place.folder / "arrays", place.folder)
    with heard() as said:
        be.load(folder, small_mlp)
        stage.train(folder, epochs=stage.EPOCHS + 1, resume=True)
    check(not said, SILENT, f"nothing was changed, but it is said: {said}")
    return RIGHT, "taken as they are"


ARRAYS: dict[str, Callable[[Place, random.Random], Verdict]] = {
    "resume with other rows of the same size": other_data(lambda x, y, chance: table(seed=9), "other rows"),
    "resume with Tanh for ReLU": partial(other_network, True),
    "load with Tanh for ReLU": partial(other_network, False),
    "resume with one value changed": other_data(one_value, "one value changed"),
    "resume with rows in another order": other_data(permuted, "rows in another order"),
    "resume with one label changed": other_data(one_label, "one label changed"),
    "resume and load of what was trained": same_network,
}
