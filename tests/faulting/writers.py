"""Two at once: two writers in a folder, a reader beside a writer, and files replaced under a loaded ensemble."""

import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bayesemble as be
from bayesemble.training.run_folders import checkpoint
from faulting import stage
from faulting.fault import (
    LEFTOVER,
    LOSS,
    REFUSED,
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
    judge,
    temporaries,
)
from helpers import small_mlp, table

LONG, SHORT = 100, 11
EPOCHS = 8


@dataclass(frozen=True)
class Place:
    """A folder, a table, and what whole runs end with, by their seed."""

    folder: Path
    file: Path
    whole: dict[int, dict[str, bytes]]


def prepare(place: Path) -> Place:
    """Runs of two seeds, and one on a table."""
    file = stage.write_table(place / "noise.csv", stage.noise_rows())
    stage.train_table(file, place / "table")
    whole = {seed: stage.weights(stage.train(epochs=EPOCHS, seed=seed)) for seed in (0, 1)}
    stage.train(place / "run")
    for seed in (0, 1):
        stage.train(epochs=2, seed=seed, record=None).save(place / f"saved-{seed}")
    return Place(place, file, whole)


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Two that meet."""
    words, act = list(MEETINGS.items())[number % len(MEETINGS)]
    folder = place.folder / f"folder-{number}"
    return Attempt(words, lambda: act(place, folder, chance), seconds=60)


def side_by_side(*acts: Callable[[], Any], pause: float = 0) -> list[Verdict]:
    """Do things in processes of their own at the same time; what came of each."""

    def begin(act: Callable[[], Any]) -> Verdict:
        return in_child(lambda: (act(), (RIGHT, "done"))[1])

    with ThreadPoolExecutor(len(acts)) as pool:
        futures = []
        for act in acts:
            futures.append(pool.submit(begin, act))
            time.sleep(pause)
        return [future.result() for future in futures]


def check_all_ended_well(verdicts: list[Verdict]) -> None:
    """At least one went well, the others too or were refused."""
    for outcome, words in verdicts:
        check(outcome in (RIGHT, REFUSED), outcome, words)
    check(any(outcome == RIGHT for outcome, _ in verdicts), LOSS, f"all were refused: {verdicts}")


# --- runs of fit ---


def two_fits(seeds: tuple[int, int], resume: bool, place: Place, folder: Path, chance: random.Random) -> Verdict:
    """Two fits into one new folder: one is refused or both are right, and the folder holds one whole run."""
    acts = [partial(stage.train, folder, epochs=EPOCHS, seed=seed, resume=resume) for seed in seeds]
    verdicts = side_by_side(*acts, pause=chance.choice([0, 0, 0.02, 0.1]))
    check_all_ended_well(verdicts)
    found = be.load(folder, small_mlp)
    check(
        stage.weights(found) == place.whole[found.seed], SILENT, f"the folder holds no whole run of seed {found.seed}"
    )
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder))}")
    return verdicts[0] if verdicts[0][0] == REFUSED else verdicts[1]


def two_threads(place: Place, folder: Path, _: random.Random) -> Verdict:
    """The same in two threads of one process."""
    acts = [partial(stage.train, folder, epochs=EPOCHS, seed=seed, resume=True) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(act) for act in acts]
        verdicts = [judge_quietly(future.result) for future in futures]
    check_all_ended_well(verdicts)
    found = be.load(folder, small_mlp)
    check(
        stage.weights(found) == place.whole[found.seed], SILENT, f"the folder holds no whole run of seed {found.seed}"
    )
    return next((verdict for verdict in verdicts if verdict[0] == REFUSED), verdicts[0])


def judge_quietly(act: Callable[[], Any]) -> Verdict:
    return judge(Attempt("", lambda: (act(), (RIGHT, "done"))[1], seconds=60))


def load_beside_fit(place: Place, folder: Path, _: random.Random) -> Verdict:
    """Load again and again while a run writes checkpoints."""
    pid = os.fork()
    if pid == 0:
        try:
            stage.train(folder, epochs=30, record=None)
        finally:
            os._exit(0)
    loads, failures = 0, []
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
        if folder.is_dir() and checkpoint.exists(folder):
            loads += 1
            outcome, words = judge_quietly(lambda: be.load(folder, small_mlp))
            failures += [] if outcome == RIGHT else [(outcome, words)]
    os.waitpid(pid, 0)
    bad = next((one for one in failures if one[0] == TRACEBACK), None)
    check(bad is None, TRACEBACK, f"{len(failures)} of {loads} loads failed: {bad and bad[1]}")
    check(not failures, UNCLEAR, f"{len(failures)} of {loads} loads failed: {failures and failures[0][1]}")
    return RIGHT, f"{loads} loads beside a running fit"


def save_over_run(place: Place, folder: Path, _: random.Random) -> Verdict:
    """Save an ensemble into the folder of a run of fit: the run stays."""
    shutil.copytree(place.folder / "run", folder)
    before = contents(folder)
    try:
        stage.train(epochs=1, record=None, seed=5).save(folder)
    finally:
        check_kept(before, folder)
    return RIGHT, "saved beside it"


def two_saves(place: Place, folder: Path, _: random.Random) -> Verdict:
    """Two processes save into one folder: one of the two is there, whole."""
    ensembles = {seed: be.load(place.folder / f"saved-{seed}", small_mlp) for seed in (0, 1)}
    verdicts = side_by_side(*(partial(ensemble.save, folder) for ensemble in ensembles.values()))
    check_all_ended_well(verdicts)
    found = be.load(folder, small_mlp)
    check(stage.weights(found) == stage.weights(ensembles[found.seed]), SILENT, "what is there is neither of the two")
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder))}")
    return RIGHT, f"the one of seed {found.seed} is there"


# --- the command line ---


def two_predictions(place: Place, folder: Path, _: random.Random) -> Verdict:
    """Two commands write one file: it is whole."""
    folder.mkdir()
    out = folder / "predictions.csv"

    def predict() -> None:
        said = stage.command("predict", place.folder / "table", place.file, "--out", out)
        said.check_success()

    verdicts = side_by_side(predict, predict)
    check_all_ended_well(verdicts)
    lines = len(out.read_text().splitlines())
    check(lines == 61, LOSS, f"the file has {lines} lines")
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder))}")
    return RIGHT, "one whole file"


def two_comparisons(place: Place, folder: Path, _: random.Random) -> Verdict:
    """The same comparison twice at once: one is refused or both find the same."""

    def compare() -> None:
        found = stage.train_comparison(place.file, folder, budget=None)
        failures = [one.failure for one in found.results if one.failure]
        raw = [words for words in failures if "Error:" in words]
        check(not raw, TRACEBACK, f"{raw}")
        if failures:
            raise be.CheckpointError(failures[0])

    verdicts = side_by_side(compare, compare)
    for outcome, words in verdicts:
        check(outcome in (RIGHT, REFUSED), outcome, words)
    again = stage.scores(stage.train_comparison(place.file, folder, budget=None))
    calm = stage.scores(stage.train_comparison(place.file, folder.with_name(f"{folder.name}-calm"), budget=None))
    check(again == calm, SILENT, f"{again} instead of {calm}")
    return verdicts[0] if verdicts[0][0] == REFUSED else verdicts[1]


# --- files under a loaded ensemble ---


def replaced(change: Callable[[Path, Path], Any], place: Place, folder: Path, _: random.Random) -> Verdict:
    """A loaded ensemble does not change with its file, nor die of it."""
    shutil.copytree(place.folder / "saved-0", folder)

    def act() -> Verdict:
        loaded, x = be.load(folder, small_mlp), table(16)[0]
        before = be.load(folder, small_mlp).predict(x).probs.clone()
        file = next(folder.glob("*/state.safetensors"))
        change(file, next((place.folder / "saved-1").glob("*/state.safetensors")))
        check(bool((loaded.predict(x).probs == before).all()), SILENT, "the loaded ensemble predicts other numbers")
        return RIGHT, "the same predictions"

    return in_child(act)


MEETINGS: dict[str, Callable[[Place, Path, random.Random], Verdict]] = {
    "two fits of one seed into a new folder, resume=True": partial(two_fits, (0, 0), True),
    "two fits of two seeds into a new folder": partial(two_fits, (0, 1), False),
    "two fits in two threads": two_threads,
    "be.load beside a running fit": load_beside_fit,
    "save over a run": save_over_run,
    "two saves into one folder": two_saves,
    "two predictions into one file": two_predictions,
    "two comparisons in one folder": two_comparisons,
    "another file copied over that of a loaded ensemble": partial(
        replaced, lambda file, new: shutil.copyfile(new, file)
    ),
    "the file of a loaded ensemble cut": partial(replaced, lambda file, _: os.truncate(file, 100)),
    "the folder of a loaded ensemble deleted": partial(replaced, lambda file, _: shutil.rmtree(file.parent)),
}
