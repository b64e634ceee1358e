"""Kills: training ends at a random moment or at a step of writing, goes on, and ends with the bits of a whole run.

Methods of the registry under both executors, and the commands `fit` and `predict`.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load

import bayesemble as be
from bayesemble.methods import METHODS, make_method
from faulting import stage
from faulting.fault import (
    LEFTOVER,
    LOSS,
    RIGHT,
    SILENT,
    TRACEBACK,
    Attempt,
    Verdict,
    check,
    contents,
    heard,
    temporaries,
)
from helpers import dropout_mlp, norm_mlp, quick_fit, table
from kill_driver import die_at_call
from same_bits import SMALL

LONG, SHORT = 240, 6
EPOCHS = 6
STEPS = 60
"""Steps of writing at which a run may be killed, from its first checkpoint on."""


@dataclass
class Place:
    """A folder, and what whole runs gave: by the words for them, the seconds and the answers."""

    folder: Path
    file: Path
    model: Path
    whole: dict[str, tuple[float, Any]] = field(default_factory=dict)


def prepare(place: Path) -> Place:
    """A table to learn from and to predict, and a run that predicts."""
    rows = stage.write_table(place / "noise.csv", stage.noise_rows(80))
    stage.train_table(rows, place / "model")
    return Place(place, rows, place / "model")


def subjects() -> list[tuple[str, Callable[[Place, Path], Any]]]:
    """What is killed, in words, and how it is run in a folder."""
    commands: list[tuple[str, Callable[[Place, Path], Any]]] = [
        ("bayesemble fit", fit_command),
        ("bayesemble predict", predict_command),
    ]
    names = [name for name in METHODS if name != "map"]
    fits = [
        (f"be.fit of {name} by {executor}", partial(fit_arrays, name, executor))
        for name in names
        for executor in ("loop", "vmap")
    ]
    return [fits[0], *commands, *fits[1:10], *commands, *fits[10:20], *commands, *fits[20:]]


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Kill it once or twice, then let it end."""
    every = subjects()
    words, run = every[number % len(every)]
    steps = 4 if words == "bayesemble predict" else STEPS
    kills: list[tuple[str, float]] = [
        ("step", chance.randrange(1, steps)) if chance.random() < 0.5 else ("moment", chance.random())
        for _ in range(chance.choice([1, 2]))
    ]
    shown = " and ".join(f"{how} {when:.3g}" for how, when in kills)
    return Attempt(
        f"SIGKILL of {words} at {shown}",
        lambda: killed(place, words, run, kills, number),
        seconds=120,
        may_refuse=False,
    )


def killed(
    place: Place, words: str, run: Callable[[Place, Path], Any], kills: list[tuple[str, float]], number: int
) -> Verdict:
    """Kill, go on, and compare."""
    if words not in place.whole:
        run(place, place.folder / f"warm-up {words}")  # what torch sets up on first use, the children have already
        start = time.perf_counter()
        answers = run(place, place.folder / f"whole {words}")
        place.whole[words] = (time.perf_counter() - start, answers)
    length, expected = place.whole[words]
    folder, hits = place.folder / f"killed-{number}", 0
    for how, when in kills:
        act = partial(run, place, folder)
        hits += die_within(act, step=int(when)) if how == "step" else die_within(act, delay=when * length)
    found = run(place, folder)
    different = [key for key in expected if found.get(key) != expected[key]]
    check(not different, SILENT, f"{', '.join(different[:3])} differ from those of a run that was not killed")
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder)[:3])}")
    return RIGHT, f"the same bits after {hits} kills that hit"


def die_within(act: Callable[[], Any], delay: float | None = None, step: int | None = None) -> bool:
    """Run in a child that is killed after some seconds or at a step of writing; whether that hit it."""
    pid = os.fork()
    if pid == 0:
        try:
            if step is not None:
                die_at_call(step)
            act()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    check(not failed, TRACEBACK, "a run failed instead of being killed")
    return os.WIFSIGNALED(status)


# --- what is killed ---


def fit_arrays(name: str, executor: str, _: Place, folder: Path) -> dict[str, Any]:
    """Train a method on arrays, and go on if something is there."""
    members = {} if name == "map" else {"num_members": 2}
    method = make_method(name, **(members | SMALL.get(name, {})))
    model = dropout_mlp if method.keeps_dropout else norm_mlp
    if name == "hmc":
        model = stage.small_mlp
    task, size = be.Task(model, be.Categorical()), None if method.full_batch else 16
    options = {"epochs": EPOCHS, "batch_size": size, "executor": executor, "checkpoint": folder, "resume": True}
    with heard():
        ensemble = quick_fit(task, table(), method, **options)
    saved = {f"saved {leaf}": bits for leaf, bits in stage.weights(be.load(folder, model)).items()}
    prediction = ensemble.predict(
        table(8, seed=2)[0], num_draws=3 if ensemble.method.can_draw(ensemble.state) else None
    )
    return (
        stage.weights(ensemble)
        | saved
        | {
            "history": stage.history(ensemble),
            "prediction": prediction.probs.numpy().tobytes(),
        }
    )


def fit_command(place: Place, folder: Path) -> dict[str, Any]:
    """`bayesemble fit`, and what its run predicts."""
    said = stage.command("fit", place.file, "--target", "y", "--out", folder, *stage.FLAGS, "--epochs", "40")
    said.check_success()
    out = folder.parent / f"{folder.name}.csv"
    said = stage.command("predict", folder, place.file, "--out", out)
    said.check_success()
    newest = max(name for name in contents(folder) if name.endswith("state.safetensors"))
    tensors = load((folder / newest).read_bytes())  # a run that was stopped has more checkpoints, with other numbers
    held = {name: tensors[name].numpy().tobytes() for name in sorted(tensors)}
    return held | {"table.json": (folder / "table.json").read_bytes(), "predictions": out.read_bytes()}


def predict_command(place: Place, folder: Path) -> dict[str, Any]:
    """`bayesemble predict` into a file, which is there whole or as it was."""
    folder.mkdir(exist_ok=True)
    out = folder / "predictions.csv"
    if out.is_file():
        lines = out.read_text().splitlines()
        check(len(lines) == 81, LOSS, f"a half-written file of {len(lines)} lines was left under its name")
    said = stage.command("predict", place.model, place.file, "--out", out)
    said.check_success()
    return {"predictions": out.read_bytes()}
