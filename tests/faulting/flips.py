"""Damaged files: random bits, bytes, digits, lengths and values in every file of four kinds of folders.

Each is refused by name, or harmless: then all that can be read of the folder is what it was, to the bit.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bayesemble as be
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.compare.source import open_run
from bayesemble.apps.tables.description import read_request
from bayesemble.apps.tables.run import evaluate_table, open_table
from bayesemble.core.errors import BayesembleError
from bayesemble.data.table_files import read_rows
from faulting import stage
from faulting.damage import damage
from faulting.fault import HARMLESS, LOSS, REFUSED, RIGHT, SILENT, Attempt, Verdict, check, contents, heard, named
from helpers import small_mlp, table

LONG, SHORT = 4_600, 50

Answers = dict[str, Any]
Ask = Callable[[Path], Answers]


@dataclass(frozen=True)
class Place:
    """Folders to damage, by name, with what each answers when it is whole."""

    folder: Path
    files: list[tuple[str, Path]]
    asks: dict[str, list[tuple[Ask, Answers]]]


def prepare(place: Path) -> Place:
    """Four folders: a run of fit, a saved ensemble, a run on a table, a comparison."""
    file = stage.write_table(place / "noise.csv", stage.noise_rows())
    stage.train(place / "run").save(place / "saved")
    stage.train_table(file, place / "table")
    stage.train_comparison(file, place / "comparison")
    asks: dict[str, list[Ask]] = {
        "run": [ask_run, ask_run, ask_resumed],
        "saved": [ask_run],
        "table": [partial(ask_table, file)],
        "comparison": [partial(ask_comparison, file)],
    }
    answered = {
        name: [(ask, ask(stage.copied(place / name, place))) for ask in questions] for name, questions in asks.items()
    }
    found = [(name, path.relative_to(place / name)) for name in asks for path in sorted((place / name).rglob("*"))]
    files = [(name, file) for name, file in found if (place / name / file).is_file()]
    small = [(name, file) for name, file in files if file.suffix == ".json" and "checkpoint-" not in str(file)]
    files = [*small * 4, *(one for one in files if one not in small)]  # those are read and shown by many
    return Place(place, files, answered)


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Damage one file of one folder, and ask."""
    name, file = place.files[number % len(place.files)]
    ask, expected = chance.choice(place.asks[name])
    folder = stage.copied(place.folder / name, place.folder)
    words = damage(chance, folder / file)
    asked = getattr(ask, "func", ask).__name__
    return Attempt(f"{name}/{file}: {words}; {asked}", lambda: compared(ask, expected, folder, file))


def compared(ask: Ask, expected: Answers, folder: Path, file: Path) -> Verdict:
    """Whether a damaged folder is refused by name, or gives the answers of the whole one."""
    before = contents(folder)
    try:
        with heard() as said:
            found = ask(folder)
    except BayesembleError as error:
        gone = before.keys() - contents(folder).keys()
        check(not gone, LOSS, f"refused, but these are gone: {', '.join(sorted(gone))}")
        return named(error, file.name, *([str(folder / file.parent)] if file.parent.name else []))
    different = [name for name in expected if found.get(name) != expected[name]]
    if not different:
        return (RIGHT, f"said: {said[0]}") if said else (HARMLESS, "all answers are the same")
    told = next((words for words in [*said, *map(str, found.values())] if file.name in words), None)
    if told is not None:
        return REFUSED, f"said: {told[:300]}"
    first = different[0]
    if isinstance(expected[first], bytes):
        return SILENT, f"other bits in {first}"
    return SILENT, f"another {first}: {str(found.get(first))[:200]} instead of {str(expected[first])[:200]}"


# --- all that can be read of a folder ---


def ask_run(folder: Path) -> Answers:
    """What an ensemble of arrays says."""
    ensemble = be.load(folder, small_mlp)
    answers: Answers = {
        "prediction": ensemble.predict(table(8, seed=2)[0]).member_probs.numpy().tobytes(),
        "history": stage.history(ensemble),
        "seed": ensemble.seed,
        "method": str(ensemble.method),
    }
    return answers | recorded(ensemble)


def recorded(ensemble: be.Ensemble) -> Answers:
    """The bits of all networks along training."""
    recording = ensemble.recording
    assert recording is not None
    members = {epoch: recording.members(epoch) for epoch in recording.epochs}
    return {
        f"recording of {name} in epoch {epoch}": leaf.numpy().tobytes()
        for epoch, found in members.items()
        for name, leaf in [*found.params.items(), *found.buffers.items(), ("weights", found.weights)]
    }


def ask_resumed(folder: Path) -> Answers:
    """What comes of a run that goes on."""
    ensemble = stage.train(folder, epochs=stage.EPOCHS + 1, resume=True)
    return stage.weights(ensemble) | {"history": stage.history(ensemble)}


def ask_table(file: Path, folder: Path) -> Answers:
    """What a run on a table says."""
    run, request = open_table(folder), read_request(folder)
    predictive = [run.predict(run.schema.encode(chunk, with_targets=False)) for chunk in read_rows(file)]
    return {
        "mean": [one.mean.tolist() for one in predictive],
        "std": [one.variance.tolist() for one in predictive],
        "evaluation": evaluate_table(run).to_json(),
        "request": repr(request),
    }


def ask_comparison(file: Path, folder: Path) -> Answers:
    """What a comparison says: its file, its runs, and the same command again."""
    read = Comparison.read(folder)
    answers: Answers = {"results.json": stage.scores(read), "data": read.data, "command": without_jobs(read.command)}
    for run in sorted((folder / "runs").glob("*/*")):
        ensemble, split = open_run(run)
        answers[f"prediction of {run.parent.name}"] = ensemble.predict(split.x_test).mean.numpy().tobytes()
        answers[f"split of {run.parent.name}"] = split.x_train.tobytes() + split.y_test.tobytes()
        answers |= recorded(ensemble)
    again = stage.train_comparison(file, folder)
    return answers | {"results of the same command again": stage.scores(again)}


def without_jobs(command: dict[str, Any]) -> str:
    """The settings of a comparison."""
    return json.dumps(command, sort_keys=True)
