"""Signals to `bayesemble fit` and `compare`, and SIGTERM to `be.fit`: a calm end, and the same bits afterwards."""

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bayesemble as be
from bayesemble.apps.compare.results import Comparison
from bayesemble.training.run_folders import checkpoint
from faulting import kills, stage
from faulting.fault import HANG, LEFTOVER, LOSS, RIGHT, SILENT, TRACEBACK, Attempt, Verdict, check, temporaries
from faulting.kills import Place
from helpers import quick_fit, small_mlp, table, with_tests_on_path

LONG, SHORT = 100, 6
SIGNALS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "SIGINT twice": [signal.SIGINT, signal.SIGINT],
    "SIGHUP": [signal.SIGHUP],
    "STOP and CONT": [signal.SIGSTOP, signal.SIGCONT],
}
COMPARE = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGKILL": signal.SIGKILL, "a worker killed": None}
EVERY = 25
"""One signal in so many goes to a comparison, which takes a minute."""

prepare = kills.prepare


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Send one signal or two at a random moment."""
    moment = chance.random()
    if number % EVERY == EVERY - 1:
        name = list(COMPARE)[number // EVERY % len(COMPARE)]
        act = partial(compare_disturbed, place, number, COMPARE[name], moment)
        return Attempt(f"{name} in bayesemble compare --jobs 2 at {moment:.2f}", act, seconds=300, may_refuse=False)
    if number % 6 == 5:
        return Attempt(
            "SIGTERM to be.fit between two checkpoints",
            partial(sigterm_saves, place, number, chance),
            60,
            may_refuse=False,
        )
    name = list(SIGNALS)[number % 6]
    act = partial(fit_disturbed, place, number, SIGNALS[name], moment, chance.uniform(0, 0.05))
    return Attempt(f"{name} to bayesemble fit at {moment:.2f}", act, seconds=120, may_refuse=False)


# --- fit ---


def fit_disturbed(place: Place, number: int, signals: list[int], moment: float, pause: float) -> Verdict:
    """Disturb the command in a child, give it again, and compare."""
    if "fit" not in place.whole:
        kills.fit_command(place, place.folder / "warm-up")
        start = time.perf_counter()
        answers = kills.fit_command(place, place.folder / "whole")
        place.whole["fit"] = (time.perf_counter() - start, answers)
    length, expected = place.whole["fit"]
    folder, said = place.folder / f"fit-{number}", place.folder / f"said-{number}.txt"
    pid = spoken_child(lambda: command_line(place, folder), said)
    time.sleep(moment * length)
    for number in signals:
        send(pid, number)
        time.sleep(pause)
    _, status = os.waitpid(pid, 0)
    words = said.read_text()
    check("Traceback" not in words, TRACEBACK, words[-500:])
    check("--debug shows" not in words, TRACEBACK, words[-500:])
    found = kills.fit_command(place, folder)
    different = [key for key in expected if found.get(key) != expected[key]]
    check(not different, SILENT, f"{', '.join(different[:3])} differ from those of a run that was not disturbed")
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder)[:3])}")
    return RIGHT, f"ended with {os.waitstatus_to_exitcode(status)}, went on to the same bits"


def command_line(place: Place, folder: Path) -> None:
    """`bayesemble fit` as the shell would start it."""
    words = ["fit", place.file, "--target", "y", "--out", folder, *stage.FLAGS, "--epochs", "40"]
    sys.argv = ["bayesemble", *map(str, words)]
    stage.main.main()


def spoken_child(act: Callable[[], Any], said: Path) -> int:
    """Start something in a child that prints into a file, tracebacks too; its number."""
    pid = os.fork()
    if pid:
        return pid
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    code = 1
    try:
        code = stage.exit_code(act)
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def send(pid: int, number: int) -> None:
    """Send a signal, if there is anybody left to get it."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        os.kill(pid, number)


def sigterm_saves(place: Place, number: int, chance: random.Random) -> Verdict:
    """A run that keeps its first checkpoint for the end gets SIGTERM: what it had learned is there."""
    folder, asked, epochs = place.folder / f"term-{number}", chance.randrange(2, 20), 40
    reading, writing = os.pipe()

    def train(on_epoch: Any = None, **options: Any) -> be.Ensemble:
        task = be.Task(small_mlp, be.Categorical())
        return quick_fit(task, table(), epochs=epochs, checkpoint_every=1000, on_epoch=on_epoch, **options)

    def report(_: Any, row: dict[str, Any]) -> None:
        os.write(writing, b".")
        time.sleep(0.01)

    pid = spoken_child(lambda: train(report, checkpoint=folder), place.folder / f"said-{number}.txt")
    os.close(writing)
    os.read(reading, 1)
    for _ in range(asked):
        os.read(reading, 1)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os.close(reading)
    words = (place.folder / f"said-{number}.txt").read_text()
    check("Traceback" not in words, TRACEBACK, words[-500:])
    check(checkpoint.exists(folder), LOSS, f"SIGTERM after {asked + 1} epochs, and no checkpoint is there")
    done = len(be.load(folder, small_mlp).history)
    check(done > asked, LOSS, f"SIGTERM after {asked + 1} epochs, the checkpoint has {done}")
    found = stage.weights(train(checkpoint=folder, resume=True))
    check(found == stage.weights(train()), SILENT, "the resumed run ends with other weights")
    return RIGHT, f"a checkpoint of {done} epochs, resumed to the same bits"


# --- compare ---


def compare_disturbed(place: Place, number: int, sent: int | None, moment: float) -> Verdict:
    """Disturb a comparison, give the same command again, and compare its scores with those of a calm one."""
    if "compare" not in place.whole:
        start = time.perf_counter()
        check(started(place, place.folder / "calm").wait(120) == 0, TRACEBACK, "a calm comparison failed")
        place.whole["compare"] = (time.perf_counter() - start, Comparison.read(place.folder / "calm"))
    length, calm = place.whole["compare"]
    folder = place.folder / f"comparison-{number}"
    first = started(place, folder)
    time.sleep((0.3 + 0.6 * moment) * length)
    workers = [pid for pid in children(first.pid) if "resource_tracker" not in command_of(pid)]
    if sent is not None:
        first.send_signal(sent)
    elif workers:
        os.kill(workers[0], signal.SIGKILL)
    _, words = first.communicate(timeout=120)
    check("Traceback" not in words, TRACEBACK, words[-500:])
    end = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    check(not any(map(alive, workers)), HANG, "workers of a comparison that ended live on")
    again = started(place, folder)
    _, words = again.communicate(timeout=200)
    check(again.returncode == 0, TRACEBACK, words[-500:])
    found = stage.scores(Comparison.read(folder))
    check(found == stage.scores(calm), SILENT, f"{found} instead of {stage.scores(calm)}")
    check(not temporaries(folder), LEFTOVER, f"left behind: {', '.join(temporaries(folder)[:3])}")
    return RIGHT, f"ended with {first.returncode}, {len(workers)} workers are gone, then the same scores"


def started(place: Place, folder: Path) -> subprocess.Popen[str]:
    """`bayesemble compare` in a process group of its own."""
    words = ["compare", "--data", f"{place.file}:y", "--methods", "deep_ensemble,repulsive", "--members", "2"]
    words += ["--seeds", "1", "--epochs", "60", "--jobs", "2", "--out", str(folder), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "bayesemble", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=with_tests_on_path(),
    )


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def command_of(pid: int) -> str:
    """The words that a process was started with; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
