"""Folders that hold what is not ours, or what looks like ours and is hostile.

Nothing of the user's is ever deleted or changed, nothing hangs, and what cannot be honoured is refused in a sentence.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bayesemble as be
from faulting import forgeries, stage
from faulting.fault import REFUSED, RIGHT, SILENT, Attempt, Verdict, check, check_kept, contents, heard, in_child
from helpers import small_mlp, table

LONG, SHORT = 251, 20

Arrange = Callable[[Path, Path], Any]
"""Puts something into a folder; the second path is a folder of the user elsewhere."""


@dataclass(frozen=True)
class Place:
    """Runs to spoil, and a folder of the user."""

    folder: Path
    file: Path
    elsewhere: Path
    resumed: dict[str, bytes]


def prepare(place: Path) -> Place:
    """A run of fit, one on a table, a comparison."""
    file = stage.write_table(place / "noise.csv", stage.noise_rows())
    stage.train(place / "run")
    stage.train_table(file, place / "table")
    stage.train_comparison(file, place / "comparison", budget=None)
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "thesis.tex").write_text("years of work")
    (place / "empty").mkdir()
    whole = stage.train(stage.copied(place / "run", place), epochs=stage.EPOCHS + 2, resume=True)
    return Place(place, file, place / "elsewhere", stage.weights(whole))


# --- the user's own files ---


def folder_with(name: str, file: str = "thesis.tex") -> Arrange:
    """A folder of the user, with years of work."""

    def arrange(folder: Path, _: Path) -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_text("years of work")

    return arrange


def file_called(name: str, text: str = "years of work") -> Arrange:
    return lambda folder, _: (folder / name).write_text(text)


def link_called(name: str, target: str = "") -> Arrange:
    return lambda folder, elsewhere: (folder / name).symlink_to(elsewhere / target)


def pipe_called(name: str) -> Arrange:
    def arrange(folder: Path, _: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)

    return arrange


NINE = "checkpoint-000009"
USERS: dict[str, Arrange] = {
    "a folder .writing-mine": folder_with(".writing-mine"),
    "a folder checkpoint-1": folder_with("checkpoint-1"),
    "a folder checkpoint-000009": folder_with(NINE),
    "a folder like a half-written checkpoint": folder_with(".writing-checkpoint-000001-1"),
    "a folder like one of another machine": folder_with(".writing-checkpoint-000001-1@host", "state.safetensors"),
    "a checkpoint in Arabic digits": folder_with("checkpoint-\N{ARABIC-INDIC DIGIT NINE}"),
    "a checkpoint with a number of 200 digits": folder_with("checkpoint-" + "9" * 200),
    "a checkpoint with 200 zeros": folder_with("checkpoint-" + "0" * 200 + "9"),
    "an empty folder checkpoint-000009": lambda folder, _: (folder / NINE).mkdir(),
    "a manifest of the user's": folder_with(NINE, "manifest.json"),
    "a file .writing-notes.txt": file_called(".writing-notes.txt"),
    "a file checkpoint-000009": file_called(NINE),
    "a file recording": file_called("recording.txt"),
    "a file in recording": folder_with("recording", "epoch-\N{ARABIC-INDIC DIGIT ONE}.safetensors"),
    "a link .writing-000001": link_called(".writing-000001"),
    "a link like a half-written checkpoint": link_called(".writing-checkpoint-000001-1"),
    "a link checkpoint-000009": link_called(NINE),
    "a dangling link checkpoint-000009": link_called(NINE, "nothing"),
    "a link as lock": link_called(".bayesemble-lock", "thesis.tex"),
    "a pipe checkpoint-000009": pipe_called(NINE),
    "a pipe .writing-checkpoint-000001-1": pipe_called(".writing-checkpoint-000001-1"),
    "a pipe as manifest": pipe_called(f"{NINE}/manifest.json"),
    "a pipe as run.json": pipe_called(f"{NINE}/run.json"),
    "a file table.json": file_called("table.json"),
    "a file results.json": file_called("results.json"),
    "a file source.json": file_called("source.json"),
}


def fit_new(folder: Path, place: Place) -> Any:
    stage.train(folder, epochs=2)


def fit_on(folder: Path, place: Place) -> Any:
    found = stage.weights(stage.train(folder, epochs=stage.EPOCHS + 2, resume=True))
    check(found == place.resumed, SILENT, "the resumed run ends with other weights")


def load(folder: Path, _: Place) -> Any:
    be.load(folder, small_mlp).predict(table(4)[0])


def save(folder: Path, _: Place) -> Any:
    stage.train(epochs=1, record=None).save(folder)


def command(*words: str) -> Callable[[Path, Place], Any]:
    """A command in which FOLDER and FILE stand for themselves."""

    def act(folder: Path, place: Place) -> Any:
        said = stage.command(*({"FOLDER": folder, "FILE": place.file}.get(word, word) for word in words))
        if said.code:
            outcome, line = said.refusal()
            check(outcome == REFUSED, outcome, line)
            raise be.CheckpointError(line)

    return act


FIT = command("fit", "FILE", "--target", "y", "--out", "FOLDER", *stage.FLAGS)
ACTIONS: dict[str, tuple[str, Callable[[Path, Place], Any]]] = {
    "be.fit resumes": ("run", fit_on),
    "be.fit starts": ("empty", fit_new),
    "be.load": ("run", load),
    "save": ("empty", save),
    "bayesemble fit": ("empty", FIT),
    "bayesemble fit again": ("table", FIT),
    "bayesemble evaluate": ("table", command("evaluate", "FOLDER")),
}


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Every file of the user with every action, and every forgery with load and resume."""
    pairs: list[tuple[str, Callable[[], Verdict]]] = []
    for action, (base, act) in ACTIONS.items():
        for words, arrange in USERS.items():
            pairs.append((f"{words}, then {action}", partial(among_users, place, base, arrange, act)))
    for action, act in {"be.load": forgeries.load, "be.fit resumes": partial(fit_on, place=place)}.items():
        for words, change in (forgeries.FORGED | forgeries.VERSIONS).items():
            judged = partial(changed, place, change, act, words in forgeries.VERSIONS)
            pairs.append((f"{words}, then {action}", judged))
    for words, change in forgeries.COMPARISONS.items():
        pairs.append((f"{words}, then report", partial(reported, place, change)))
    order = random.Random(0).sample(pairs, len(pairs))
    words, act = order[number % len(order)]
    return Attempt(words, lambda: in_child(act), seconds=40)


def among_users(place: Place, base: str, arrange: Arrange, act: Callable[[Path, Place], Any]) -> Verdict:
    """All that is the user's stays; of ours, only what is replaced by newer goes."""
    folder = stage.copied(place.folder / base, place.folder)
    ours = set(contents(folder))
    arrange(folder, place.elsewhere)
    before = {name: data for name, data in contents(folder).items() if name not in ours}
    outside = contents(place.elsewhere)
    try:
        with heard():
            act(folder, place)
        verdict = RIGHT, "it works beside them"
    except be.BayesembleError as error:
        verdict = REFUSED, str(error)
    check_kept(before, folder)
    check_kept(outside, place.elsewhere)
    return verdict


def changed(place: Place, change: forgeries.Change, act: Callable[[Path], Any], version: bool) -> Verdict:
    """A run that somebody forged."""
    folder = stage.copied(place.folder / "run", place.folder)
    change(folder)
    return forgeries.opened(folder, act, version)


def reported(place: Place, change: Callable[[dict[str, Any]], Any]) -> Verdict:
    """A comparison that somebody forged."""
    return forgeries.reported(stage.copied(place.folder / "comparison", place.folder), change)
