"""What faults are done to: runs that are trained in a moment, and the command line in this very process."""

import io
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bayesemble as be
from bayesemble.apps.cli import main
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.tables.description import TableRequest
from bayesemble.apps.tables.run import fit_table
from comparisons import compared
from faulting.fault import REFUSED, TRACEBACK, UNCLEAR, BrokenPromiseError, Verdict
from fuzz_tables import QUICK
from helpers import quick_fit, small_mlp, table

EPOCHS = 3
FLAGS = ("--epochs", "4", "--width", "8", "--depth", "0", "--num-members", "2")
"""Of `bayesemble fit`, so that it takes a moment."""


# --- arrays ---


def train(
    folder: Path | None = None, epochs: int = EPOCHS, data: Any = None, model: Callable = small_mlp, **options: Any
) -> be.Ensemble:
    """Two members on 48 rows; everything that a run folder can hold is there."""
    usual = {"validation": table(16, seed=1), "keep_best": True, "record": "epoch", "checkpoint": folder}
    method = options.pop("method", be.DeepEnsemble(num_members=2))
    return quick_fit(be.Task(model, be.Categorical()), data or table(), method, epochs=epochs, **(usual | options))


def weights(ensemble: be.Ensemble) -> dict[str, bytes]:
    """The bits of all parameters and buffers."""
    members = ensemble.state.members
    return {name: leaf.numpy().tobytes() for name, leaf in (members.params | members.buffers).items()}


def history(ensemble: be.Ensemble) -> list[dict[str, Any]]:
    """The history but for what a clock measured."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in ensemble.history]


# --- tables and comparisons ---


def noise_rows(count: int = 60, seed: int = 0) -> list[list[str]]:
    """Cells of rows in which nothing predicts anything: three numbers, a category and the target."""
    chance = random.Random(seed)
    return [
        [*(f"{chance.gauss(0, 1):.4f}" for _ in range(3)), chance.choice("pqr"), f"{chance.gauss(0, 1):.4f}"]
        for _ in range(count)
    ]


HEADER = ["a", "b", "c", "d", "y"]


def write_table(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = HEADER, end: str = "\n") -> Path:
    """A plain CSV file."""
    path.write_bytes("".join(",".join(row) + end for row in [header, *rows]).encode())
    return path


def train_table(file: Path, folder: Path) -> Any:
    """A run of `bayesemble fit`."""
    return fit_table(TableRequest(str(file), "y", recipe=QUICK), folder)


def train_comparison(file: Path, folder: Path, methods: str = "map,deep_ensemble", **options: Any) -> Comparison:
    """Two methods on a table, with all files that a comparison can have; the same again goes on with it."""
    usual = {"members": 2, "epochs": 2, "seeds": 1, "record": True, "budget": "seconds"}
    return compared(f"{file}:y", methods, folder, **(usual | options))


def scores(comparison: Comparison) -> dict[str, Any]:
    """What a comparison found, but for what clock and memory say: scores and costs, or the reason of a failure."""
    steady = ("parameters", "gradient_evaluations")
    return {
        f"{one.label} {one.seed}": one.failure or one.scores | {name: one.cost[name] for name in steady}
        for one in comparison.results
    }


def copied(source: Path, place: Path, name: str = "copy") -> Path:
    """A copy that a fault may spoil, in place of the last one."""
    target = place / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    return target


# --- the command line ---


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def refusal(self) -> Verdict:
        """A command that ended with an error of ours, in a line; anything else is a traceback."""
        words = re.sub(r"\s+", " ", self.err)[-500:]
        raw = "Traceback" in self.err or "--debug shows where" in self.err or not self.err.strip()
        return (TRACEBACK if raw else REFUSED), f"exit {self.code}: {words}"

    def check_success(self) -> None:
        """Nothing was wrong with what was asked for, so it must not be refused."""
        if self.code:
            outcome, words = self.refusal()
            raise BrokenPromiseError(UNCLEAR if outcome == REFUSED else outcome, words)


def command(*arguments: object, encoding: str = "utf-8") -> Said:
    """Run a command of `bayesemble` here, where torch is there already."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    with (
        patch.object(sys, "argv", ["bayesemble", *map(str, arguments)]),
        patch.dict(os.environ, {"COLUMNS": "300"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = exit_code(main.main)
    printed = [stream.buffer.getvalue().decode(encoding) for stream in (out, err)]  # type: ignore[attr-defined]
    return Said(code, *printed)


def exit_code(act: Callable[[], None]) -> int:
    """What a program would end with."""
    try:
        act()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder, where commands leave what has no other place."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
