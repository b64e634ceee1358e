"""A disk that is full, read-only, limited or broken, while something is written or read.

Each is an error of ours with the path; what was there before stays and can be opened; nothing half-written is left; and
with room again the same thing works. A full disk is a small one in memory, mounted where only this process sees it; the
rest is done with limits of the kernel, or by system calls that fail at the n-th time.
"""

import errno
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bayesemble as be
from bayesemble.apps.report.page import write as write_page
from bayesemble.apps.tables.run import open_table
from bayesemble.core.errors import BayesembleError
from faulting import stage
from faulting.broken_disk import failing, mounted
from faulting.fault import (
    HARMLESS,
    REFUSED,
    RIGHT,
    SILENT,
    UNCLEAR,
    Attempt,
    BrokenPromiseError,
    Verdict,
    check,
    check_kept,
    check_no_leftovers,
    contents,
    heard,
    in_child,
)
from helpers import small_mlp, table

LONG, SHORT = 560, 14
ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES]
CALLS = {"Ensemble.save": 9, "report page": 3, "predict --out .csv": 3, "predict --out .csv.gz": 3}
"""How many steps of writing there are about; 30 elsewhere."""


@dataclass(frozen=True)
class Place:
    """A folder, a small disk if there may be one, and what is written."""

    folder: Path
    small_disk: Path | None
    file: Path
    model: Path
    run: Path


def prepare(place: Path) -> Place:
    """Runs to go on with and to predict by."""
    file = stage.write_table(place / "noise.csv", stage.noise_rows())
    stage.train_table(file, place / "model")
    stage.train(place / "run")
    (place / "work").mkdir()
    return Place(place, mounted(place / "small"), file, place / "model", place / "run")


def finish(place: Place) -> None:
    """Take the small disk away."""
    if place.small_disk is not None:
        subprocess.run(["umount", str(place.small_disk)], check=True)


Write = Callable[[Path, Place], Any]


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """One thing that is written or read, and one thing that goes wrong meanwhile."""
    name, act = list(WRITERS.items())[number % len(WRITERS)]
    ways = ["call", "call", "full", "limit", "read-only", "call", "full", "reading"]
    way = ways[number // len(WRITERS) % len(ways)]
    if way == "full" and place.small_disk is None:
        way = "limit"
    if way == "reading":
        return failing_read(place, chance)
    if way == "full":
        room = chance.randrange(0, 60_000)
        return Attempt(f"{name} with {room} bytes free on the disk", partial(on_full_disk, place, act, room))
    if way == "limit":
        size = chance.choice([0, 10, 100, 1000, 3000])
        words = f"{name} where files may have {size} bytes"
        return Attempt(words, lambda: in_child(partial(with_small_files, place, act, size)))
    if way == "read-only":
        words = f"{name} into a folder that may only be read"
        return Attempt(words, lambda: in_child(partial(in_read_only_folder, place, act)))
    error, call = chance.choice(ERRORS), chance.randrange(CALLS.get(name, 30))
    words = f"{name} where step {call} of writing fails: {os.strerror(error)}"
    return Attempt(words, partial(with_failing_call, place, act, error, call))


# --- what is written ---


def checkpoint(folder: Path, _: Place) -> Any:
    """Go on with a run for two epochs, which are recorded too."""
    return stage.weights(stage.train(folder / "run", epochs=stage.EPOCHS + 2, resume=True))


def fresh(folder: Path, _: Place) -> Any:
    """A run in a new folder."""
    return stage.weights(stage.train(folder / "new", epochs=2))


def save(folder: Path, place: Place) -> Any:
    """Save over what was saved before."""
    stage.train(epochs=2, record=None).save(folder / "saved")


def predict(suffix: str, folder: Path, place: Place) -> Any:
    """`bayesemble predict` over a file of before."""
    spoken("predict", place.model, place.file, "--out", folder / f"predictions{suffix}")


def fit(folder: Path, place: Place) -> Any:
    """`bayesemble fit` into a new folder."""
    spoken("fit", place.file, "--target", "y", "--out", folder / "fitted", *stage.FLAGS)


def page(folder: Path, _: Place) -> Any:
    """A page of a report."""
    write_page(folder / "report.html", "<p>words</p>" * 3000)


def spoken(*words: object) -> None:
    """A command; its error is raised as it would be by the library."""
    said = stage.command(*words)
    if said.code:
        outcome, line = said.refusal()
        raise BayesembleError(line) if outcome == REFUSED else BrokenPromiseError(outcome, line)


WRITERS: dict[str, Write] = {
    "checkpoint of be.fit": checkpoint,
    "be.fit into a new folder": fresh,
    "Ensemble.save": save,
    "predict --out .csv": partial(predict, ".csv"),
    "predict --out .csv.gz": partial(predict, ".csv.gz"),
    "bayesemble fit": fit,
    "report page": page,
}


# --- what goes wrong ---


def furnished(place: Place, folder: Path) -> dict[str, bytes | str]:
    """A folder with runs and files of before; all that is in it."""
    for path in list(folder.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(place.run, folder / "run")
    stage.train(epochs=1, record=None).save(folder / "saved")
    for name in ("predictions.csv", "predictions.csv.gz", "report.html"):
        (folder / name).write_text("of before")
    return contents(folder)


def refused(place: Place, act: Write, folder: Path, before: dict[str, bytes | str]) -> Verdict:
    """It is refused with its path and everything is as before, or it went well; then it goes well for sure."""
    try:
        with heard():
            act(folder, place)
    except BayesembleError as error:
        words = str(error)
    else:
        return HARMLESS, "it went well"
    check(str(folder) in words, UNCLEAR, f"{words!r} does not name a path in {folder}")
    check_readable(place, folder, before)
    return REFUSED, words


def check_readable(place: Place, folder: Path, before: dict[str, bytes | str]) -> None:
    """What was whole before is there and opens; beside it there are whole checkpoints at most."""
    now = contents(folder)
    grown = {name for name in now if name.startswith(("run/", "new", "fitted")) and "/." not in f"/{name}"}
    kept = {name: data for name, data in before.items() if not name.startswith("run/checkpoint")}
    check_kept(kept, folder)
    check_no_leftovers(before | dict.fromkeys(grown, ""), folder)
    be.load(folder / "run", small_mlp).predict(table(4)[0])
    be.load(folder / "saved", small_mlp).predict(table(4)[0])


def goes_well(place: Place, act: Write, folder: Path) -> None:
    """The same again where nothing is wrong, with the result that it has elsewhere."""
    with heard():
        found = act(folder, place)
        furnished(place, place.folder / "work")
        expected = act(place.folder / "work", place)
    check(found == expected, SILENT, "after the fault, the same thing ends with other weights")


def on_full_disk(place: Place, act: Write, room: int) -> Verdict:
    """Leave so many bytes free, then free the rest and do it again."""
    folder = place.small_disk
    assert folder is not None
    (folder / "filler").unlink(missing_ok=True)
    furnished(place, folder)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "filler").write_bytes(bytes(max(free - room, 0)))
    before = contents(folder)
    try:
        verdict = refused(place, act, folder, before)
    finally:
        (folder / "filler").unlink()
    if verdict[0] == REFUSED:
        goes_well(place, act, folder)
    return verdict


def with_small_files(place: Place, act: Write, size: int) -> Verdict:
    """As on a disk with a quota: in a child, whose files may not grow beyond a size."""
    folder = place.folder / "work"
    before = furnished(place, folder)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        verdict = refused(place, act, folder, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    return verdict


def in_read_only_folder(place: Place, act: Write) -> Verdict:
    """In a child that is not root, before anything is trained."""
    folder = place.folder / "work"
    before = furnished(place, folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.folder.chmod(0o755)
    if not os.geteuid():
        os.setegid(65534)
        os.seteuid(65534)
    trained = 0

    def count(*_: Any, **__: Any) -> None:
        nonlocal trained
        trained += 1

    try:
        with patch("bayesemble.training.progress.Progress.row", count):
            verdict = refused(place, act, folder, before)
    finally:
        if os.getuid() != os.geteuid():
            os.seteuid(0)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
    late = trained and act in (checkpoint, fresh, fit)
    check(not late, UNCLEAR, f"it was noticed after {trained} epochs of training: {verdict[1]}")
    return verdict


def with_failing_call(place: Place, act: Write, error: int, call: int) -> Verdict:
    """A system call fails once."""
    folder = place.folder / "work"
    before = furnished(place, folder)
    with failing(folder, error, call) as left:
        verdict = refused(place, act, folder, before)
    if left[0] >= 0:
        return RIGHT, "there are fewer steps"
    if verdict[0] == REFUSED:
        goes_well_again = place.folder / "again"
        shutil.rmtree(goes_well_again, ignore_errors=True)
        shutil.copytree(folder, goes_well_again)
        goes_well(place, act, goes_well_again)
    return verdict


def failing_read(place: Place, chance: random.Random) -> Attempt:
    """Open a run from a disk that does not give a file back."""
    call, table_run = chance.randrange(6), chance.random() < 0.5
    folder = place.model if table_run else place.run

    def act() -> Verdict:
        before = contents(folder)
        with failing(folder, errno.EIO, call, reading=True) as left:
            try:
                open_table(folder) if table_run else be.load(folder, small_mlp)
            except BayesembleError as error:
                check_kept(before, folder)
                check(str(folder) in str(error), UNCLEAR, f"{error} names no file")
                return REFUSED, str(error)
        check(left[0] >= 0, SILENT, "a file could not be read, and nobody noticed")
        return RIGHT, "there are fewer steps"

    return Attempt(f"step {call} of reading {folder.name} fails: {os.strerror(errno.EIO)}", act)
