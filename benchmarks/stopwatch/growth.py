"""How time grows with members, rows and weights: slopes on logarithmic axes, and a figure of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bayesemble as be
from bayesemble.models import mlp
from stopwatch.race import Options, figure, race, show

MEMBERS = (4, 8, 16, 32, 64, 128, 256)
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTHS = {10_000: 51, 100_000: 264, 1_000_000: 946, 10_000_000: 3108}
"""Widths w of 100-w-w-10 that come closest to so many weights."""
LIMIT = 1.05


def growth(options: Options) -> None:
    """Milliseconds by members (4 to 256), rows (10^4 to 10^7, from a mapped file) and weights (10^4 to 10^7)."""
    with tempfile.TemporaryDirectory() as folder:
        curves = {
            "members": _race(MEMBERS, _by_members, options.rounds),
            "rows": _race(ROWS, lambda rows: _by_rows(Path(folder), rows), min(options.rounds, 2)),
            "weights": _race(WIDTHS, _by_weights, min(options.rounds, 3)),
        }
    titles = {"members": "13-50-1, batch 100: ms a step", "rows": "4-32-1, 2 members, batch 10,000: ms an epoch"}
    titles["weights"] = "100-w-w-10, 2 members, batch 32: ms a step"
    rows = []
    for name, curve in curves.items():
        times = ", ".join(f"{at:,}: {figure(took)}" for at, took in curve.items())
        last = dict(list(curve.items())[-2:])
        rows.append((name, titles[name], times, f"{slope(curve):.2f}", LIMIT, f"{slope(last):.2f}"))
    show("How time grows.", ["with", "what", "times", "slope", "at most", "of the last two"], rows)
    if options.figure:
        _draw(curves, titles, options.figure)


def slope(curve: dict[int, float]) -> float:
    """Of the line through the logarithms of sizes and times, by least squares."""
    return float(np.polyfit(np.log(list(curve)), np.log(list(curve.values())), 1)[0])


def _race(sizes: Any, make: Callable[[int], Callable[[], float]], rounds: int) -> dict[int, float]:
    runs = {str(size): make(size) for size in sizes}
    return {int(size): took for size, took in race(runs, rounds).items()}


def _fitted(task: be.Task, members: int, data: Any, batch: int) -> Callable[[], float]:
    """A function that fits for an epoch and gives the milliseconds of its steps."""

    def run() -> float:
        method = be.DeepEnsemble(num_members=members)
        fitted = be.fit(task, method, data, epochs=1, batch_size=batch, progress=False)
        return 1000 * fitted.history[0]["seconds"]

    return run


def _noise(rows: int, inputs: int) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0))


def _by_members(members: int, steps: int = 20) -> Callable[[], float]:
    rows = 100 * steps
    run = _fitted(be.Task(lambda: mlp(13, [50], 1), be.Gaussian()), members, (_noise(rows, 13), _noise(rows, 1)), 100)
    return lambda: run() / steps


def _by_rows(folder: Path, rows: int) -> Callable[[], float]:
    """Rows lie in files that are mapped into memory, and are taken in random order."""
    generator = np.random.default_rng(0)
    data = []
    for name, columns in (("x", 4), ("y", 1)):
        path = folder / f"{name}{rows}"
        array = np.memmap(path, np.float32, "w+", shape=(rows, columns))
        for start in range(0, rows, 1_000_000):
            part = array[start : start + 1_000_000]
            part[:] = generator.standard_normal(part.shape, np.float32)
        array.flush()
        data.append(np.memmap(path, np.float32, "c", shape=(rows, columns)))
    return _fitted(be.Task(lambda: mlp(4, [32], 1), be.Gaussian()), 2, tuple(data), 10_000)


def _by_weights(weights: int, steps: int = 4) -> Callable[[], float]:
    width, rows = WIDTHS[weights], 32 * steps
    task = be.Task(lambda: mlp(100, [width, width], 10), be.Categorical())
    labels = torch.randint(10, (rows,), generator=torch.Generator().manual_seed(0))
    run = _fitted(task, 2, (_noise(rows, 100), labels), 32)
    return lambda: run() / steps


def _draw(curves: dict[str, dict[int, float]], titles: dict[str, str], path: str) -> None:
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "growth", "svg.fonttype": "none"})  # same figures, same file; text is text
    drawing, panels = plt.subplots(1, len(curves), figsize=(11, 3.6), layout="constrained")
    for panel, (name, curve) in zip(panels, curves.items(), strict=True):
        sizes, times = np.array(list(curve)), np.array(list(curve.values()))
        panel.loglog(sizes, times, "o-", label=f"slope {slope(curve):.2f}")
        panel.loglog(sizes, times[-1] * sizes / sizes[-1], ":", color="gray", label="slope 1")
        panel.set(xlabel=name, title=titles[name].split(": ")[0], ylabel=titles[name].split(": ")[1])
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    drawing.savefig(path, metadata={"Date": None})
