"""What commands write and print: nothing of the user's is replaced, JSON is strict, and any stdout is borne."""

import csv
import json
import math
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from faulting import stage
from faulting.fault import (
    HARMLESS,
    RIGHT,
    SILENT,
    TRACEBACK,
    UNCLEAR,
    Attempt,
    Verdict,
    check,
    check_kept,
    contents,
    in_child,
)
from helpers import with_tests_on_path

LONG, SHORT = 81, 12


@dataclass(frozen=True)
class Place:
    """A folder with a table, its run, a run of classes, and a comparison."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "noise.csv"


def prepare(place: Path) -> Place:
    """Train all that commands speak of."""
    file = stage.write_table(place / "noise.csv", stage.noise_rows())
    stage.train_table(file, place / "run")
    rows = [[*row[:4], "=cmd|' /C calc'!A0" if float(row[0]) > 0 else "@SUM(1)"] for row in stage.noise_rows()]
    stage.write_table(place / "formulas.csv", rows)
    stage.train_table(place / "formulas.csv", place / "classes")
    stage.train_comparison(file, place / "comparison", budget=None)
    return Place(place)


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """One command into one place, or one that prints."""
    cases: list[tuple[str, Callable[[], Verdict]]] = []
    for words, target in TARGETS.items():
        cases.append((f"predict --out {words}", partial(guarded, place, target, "predict")))
    for words, target in ({words: target for words, target in TARGETS.items() if "input" not in words} | PAGES).items():
        cases.append((f"report --out {words}", partial(guarded, place, target, "report")))
    for words, arrange in FOLDERS.items():
        cases.append((f"fit --out {words}", partial(fit_into, place, arrange)))
    cases.append(("formulas in cells and classes", partial(formulas, place)))
    for words in COMMANDS:
        cases.append((f"{' '.join(words)} --json", partial(strict_json, place, words)))
        cases.append((f"{' '.join(words)} to an ascii stdout", partial(printed, place, words, "ascii")))
        cases.append((f"{' '.join(words)} to a latin-1 stdout", partial(printed, place, words, "latin-1")))
    for target, mean, std in ODD_NUMBERS:
        words = f"score --json of target {target}, mean {mean}, std {std}"
        cases.append((words, partial(odd_scores, place, f"target,mean,std\n{target},{mean},{std}\n1,1,1\n")))
    for probs in ODD_PROBABILITIES:
        words = f"score --json of probabilities {probs}"
        cases.append((words, partial(odd_scores, place, f"target,p_a,p_b\na,{probs}\nb,0.5,0.5\n")))
    random.Random(0).shuffle(cases)
    for words in (("methods",), ("evaluate", "run"), ("methods", "--json")):
        cases.append((f"{' '.join(words)} to a closed pipe", partial(piped, place, words, "pipe")))
        cases.append((f"{' '.join(words)} to a full stdout", partial(piped, place, words, "/dev/full")))
    words, act = cases[number % len(cases)]
    return Attempt(words, act, seconds=60)


# --- files that must stay ---

Target = Callable[[Path], Path]
"""Where a command is told to write, in a copy of all folders."""


def made(name: str, make: Callable[[Path], Any]) -> Target:
    """Something new under a name."""

    def target(folder: Path) -> Path:
        make(folder / name)
        return folder / name

    return target


def newest(folder: Path, name: str) -> Path:
    return sorted(folder.glob("checkpoint-*"))[-1] / name


TARGETS: dict[str, Target] = {
    "its input": lambda folder: folder / "noise.csv",
    "a link to its input": lambda folder: made("link.csv", lambda path: path.symlink_to(folder / "noise.csv"))(folder),
    "a hard link to its input": lambda folder: made("hard.csv", lambda path: os.link(folder / "noise.csv", path))(
        folder
    ),
    "RUN/table.json": lambda folder: folder / "run" / "table.json",
    "RUN/predictions.csv": lambda folder: folder / "run" / "predictions.csv",
    "a manifest": lambda folder: newest(folder / "run", "manifest.json"),
    "a history": lambda folder: newest(folder / "run", "history.jsonl"),
    "tensors": lambda folder: newest(folder / "run", "state.safetensors"),
    "the results of a comparison": lambda folder: folder / "comparison" / "results.json",
    "the source of a run": lambda folder: folder / "comparison" / "runs" / "map" / "seed-0" / "source.json",
    "the user's thesis": made("thesis.tex", lambda path: path.write_text("years of work")),
    "a folder": made("folder.csv", Path.mkdir),
    "a pipe": made("pipe.csv", os.mkfifo),
    "a device": made("full.csv", lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))),
    "a folder that is not there": lambda folder: folder / "nowhere" / "predictions.csv",
}
PAGES: dict[str, Target] = {
    "the user's table": made("mine.csv", lambda path: path.write_text("years,of,work\n")),
}


def guarded(place: Place, target: Target, command: str) -> Verdict:
    """Whatever was there is there still; a table may take the place of a table only."""
    folder = place.folder / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("run", "comparison"):
        shutil.copytree(place.folder / name, folder / name)
    for name in ("noise.csv", "formulas.csv"):
        shutil.copyfile(place.folder / name, folder / name)
    path = target(folder)
    before = contents(folder)
    if command == "predict":
        said = stage.command("predict", folder / "run", folder / "noise.csv", "--out", path)
    else:
        with patch("bayesemble.apps.report.comparison.comparison_page", lambda *_: "<p>a page</p>"):
            said = stage.command("report", folder / "comparison", "--out", path)
    check_kept(before, folder)
    if said.code:
        verdict = said.refusal()
        check(verdict[0] != TRACEBACK, *verdict)
        hidden = [name for name in contents(folder) if name not in before]
        check(not hidden, "LEFTOVER", f"left behind: {', '.join(hidden)}")
        return verdict
    return RIGHT, f"written to {path.name}"


# --- folders of the user ---

FOLDERS: dict[str, Callable[[Path], Any]] = {
    "a folder with the user's table.json": lambda folder: (folder / "table.json").write_text('{"mine": 1}'),
    "a folder with the user's notes": lambda folder: (folder / "notes.txt").write_text("years of work"),
    "a folder with the user's results.json": lambda folder: (folder / "results.json").write_text('{"mine": 1}'),
    "a folder with hidden files of the user": lambda folder: (folder / ".git").mkdir(),
    "a folder with a checkpoint of the user": lambda folder: (folder / "checkpoint-1").mkdir(),
}


def fit_into(place: Place, arrange: Callable[[Path], Any]) -> Verdict:
    """A folder with files of the user is not taken over."""
    folder = place.folder / "users"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arrange(folder)
    before = contents(folder)
    said = stage.command("fit", place.file, "--target", "y", "--out", folder, *stage.FLAGS)
    check_kept(before, folder)
    if said.code == 0:
        return HARMLESS, "the user's files are there still"
    return said.refusal()


def formulas(place: Place) -> Verdict:
    """No cell of the predictions is one that a spreadsheet would run."""
    out = place.folder / "formulas-out.csv"
    said = stage.command(
        "predict", place.folder / "classes", place.folder / "formulas.csv", "--out", out, "--keep", "y"
    )
    said.check_success()
    with out.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    running = [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r") and not number(cell)]
    check(not running, SILENT, f"a spreadsheet would run {running[:1]}")
    return RIGHT, "no cell would run"


def number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- what is printed ---

COMMANDS: list[tuple[str, ...]] = [
    ("evaluate", "run"),
    ("evaluate", "classes"),
    ("diagnose", "run"),
    ("diagnose", "classes"),
    ("methods",),
    ("methods", "repulsive"),
    ("datasets",),
    ("predict", "run", "noise.csv", "--out", "printed.csv"),
]
ODD_NUMBERS = [
    ("1e308", "0", "1e-300"),
    ("0", "1e308", "1"),
    ("1e200", "-1e200", "1e-200"),
    ("0", "0", "1e-320"),
    ("1", "1", "1e308"),
    ("nan", "0", "1"),
    ("inf", "0", "1"),
    ("0", "0", "0"),
    ("0", "0", "-1"),
]
ODD_PROBABILITIES = ["0,1", "1,0", "0,0", "1e-320,1", "-0.1,1.1", "nan,1", "0.4,0.4", "1e308,1e308"]


def strict(text: str) -> Any:
    """JSON of the standard, and nothing beside it."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        check(False, UNCLEAR, f"stdout is not strict JSON: {error}: {text[:200]}")


def strict_json(place: Place, words: tuple[str, ...]) -> Verdict:
    """One JSON value on stdout."""
    with stage.working_in(place.folder):
        said = stage.command(*words, "--json")
    said.check_success()
    strict(said.out)
    return RIGHT, "strict JSON"


def odd_scores(place: Place, text: str) -> Verdict:
    """Scores of odd predictions: strict JSON, or a sentence."""
    file = place.folder / "scored.csv"
    file.write_text(text)
    said = stage.command("score", file, "--json")
    if said.code:
        return said.refusal()
    strict(said.out)
    return RIGHT, f"strict JSON: {said.out[:100]}"


def printed(place: Place, words: tuple[str, ...], encoding: str) -> Verdict:
    """A terminal that does not know all signs; in a child, as what could not be printed waits for the next time."""

    def act() -> Verdict:
        with stage.working_in(place.folder):
            said = stage.command(*words, encoding=encoding)
        said.check_success()
        return RIGHT, f"{len(said.out)} signs"

    return in_child(act)


def piped(place: Place, words: tuple[str, ...], where: str) -> Verdict:
    """Nobody reads what a real command prints, or there is no room for it."""
    command = [sys.executable, "-m", "bayesemble", *words]
    options: dict[str, Any] = {
        "stderr": subprocess.PIPE,
        "cwd": place.folder,
        "env": with_tests_on_path(),
        "text": True,
    }
    if where == "pipe":
        process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=50)
    else:
        with open(where, "w") as full:
            process = subprocess.Popen(command, stdout=full, **options)
            _, told = process.communicate(timeout=50)
        check(process.returncode != 0, SILENT, "nothing could be printed, and the exit code is 0")
    check("Traceback" not in told, TRACEBACK, told[-500:])
    check("Exception ignored" not in told, TRACEBACK, told[-500:])
    return RIGHT, f"exit {process.returncode}: {told[-200:].strip()}"
