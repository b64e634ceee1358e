"""Peak memory of training, each in a process of its own: ours against the loop over modules, and method by method."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import bayesemble as be
from bayesemble.methods import make_method
from bayesemble.training.prepare import prepare
from stopwatch.race import DENSE, EXECUTORS, Case, Options, PlainLoop, show

PLAIN = "plain"


def memory(options: Options) -> None:
    """784-100-100-100-10, batch 128, 10 and 50 members, against the loop over modules; means of so many processes."""
    rows = []
    for members in (10, 50):
        plain = _mean(f"{PLAIN}:{members}", options.rounds)
        rows.append((members, "plain loop", f"{plain:.1f}", "1.00x", ""))
        for name in EXECUTORS:
            ours = _mean(f"deep_ensemble:{members}:{name}", options.rounds)
            rows.append((members, f"ours, {name}", f"{ours:.1f}", f"{ours / plain:.2f}x", "1.15x"))
    show("Growth of memory in training.", ["members", "what", "MiB at the peak", "of plain", "at most"], rows)


def _mean(what: str, rounds: int) -> float:
    command = [sys.executable, sys.argv[0], "--memory", what]
    found = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(rounds + 1)]
    return sum(float(words.split()[0]) for words in found[1:]) / rounds  # the first may have compiled something


def peak(what: str) -> float:
    """MiB by which anonymous memory grows (Linux): `plain:10`, or a method, members and an executor, `repulsive:10`."""
    kind, members, *name = what.split(":")
    case = replace(DENSE[0], members=int(members), steps=8)
    wish: Any = "auto" if name else "vmap"
    if kind == PLAIN:
        _train_plain(replace(case, members=2))
        return _growth(lambda: _train_plain(case))
    method = make_method(kind, num_members=case.members)
    if name == ["compiled"]:
        chosen = prepare(case.task, method, case.rows(), epochs=1, batch_size=case.batch).run.ensemble.executor
        wish = replace(chosen, steps="compiled")  # type: ignore[type-var]
    _train(be.DeepEnsemble(num_members=3), case, wish, epochs=1)  # two would be trained one by one
    return _growth(lambda: _train(method, case, wish, epochs=8))


def _train_plain(case: Case) -> None:
    loop = PlainLoop(replace(case, steps=5 * case.steps))
    loop()
    loop()


def _train(method: Any, case: Case, wish: Any, epochs: int) -> None:
    be.fit(case.task, method, case.rows(), epochs=epochs, batch_size=case.batch, executor=wish, progress=False)


def _growth(work: Any) -> float:
    """By how much the memory of this process grows at the most, as another process sees it.

    A thread that looked on here would need memory itself, now and then right behind a large block that a step lets go
    of: the next one would not fit there.
    """
    command = [sys.executable, "-c", _WATCH, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        before = float(watcher.stdout.readline())
        work()
        most, _ = watcher.communicate("done")
    return float(most) - before


_WATCH = """
import select, sys

def anonymous():
    with open(f"/proc/{sys.argv[1]}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

most = anonymous()
print(most, flush=True)
while not select.select([sys.stdin], [], [], 0.0005)[0]:
    most = max(most, anonymous())
print(most)
"""
