"""Whole fits of other libraries and ours: the same networks, members, rows, batches and epochs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rivals.client import Rival

import bayesemble as be
from stopwatch.race import DENSE, EXECUTORS, Case, Options, figure, ratio, show

REGRESSION = Case("13-50-1", 5, 100, 50, (13, 50, 1))
DENSE_CASE = Case(DENSE[0].name, 10, 128, 10, DENSE[0].sizes)
FULL_BATCH = Case("13-50-3", 5, 100, 1, (13, 50, 3))
FEW_AND_MANY = {REGRESSION: (1, 5), DENSE_CASE: (1, 5), FULL_BATCH: (50, 1050)}
"""Epochs of a short and of a long fit: what the long one takes more is steps alone."""


@dataclass(frozen=True)
class Peer:
    name: str
    script: str
    python: str
    """The option that names its interpreter."""
    cases: tuple[Case, ...]


PEERS = (
    Peer("torchensemble", "with_torchensemble.py", "peers", (REGRESSION, DENSE_CASE)),
    Peer("torch-uncertainty", "with_torch_uncertainty.py", "peers", (REGRESSION, DENSE_CASE)),
    Peer("TabM layers", "with_tabm.py", "peers", (REGRESSION, DENSE_CASE)),
    Peer("bde", "with_bde.py", "bde", (FULL_BATCH,)),
)


def peers(options: Options) -> None:
    """torchensemble, torch-uncertainty, TabM's layers and bde, where there is an interpreter that has them."""
    rows = []
    for peer in PEERS:
        python = getattr(options, peer.python)
        for case in peer.cases if python else ():
            rows.append(_row(peer, python, case, options.rounds))
    headings = ["peer", "network", "members", "batch", "peer, ms a step", "ours, ms a step", "faster a step"]
    headings += ["epochs", "peer, s", "ours, s", "faster", "ours"]
    show("Whole fits of peers. Target: faster than each.", headings, rows)


def _row(peer: Peer, python: str, case: Case, rounds: int) -> tuple[Any, ...]:
    few, many = FEW_AND_MANY[case]
    head = (peer.name, case.name, case.members, case.batch)
    name, wish = list(EXECUTORS.items())[-1]
    best: dict[tuple[str, int], float] = {}
    try:
        with Rival(python, peer.script, case.described(), case.rows()) as rival:
            for number in range(rounds + 1):  # the first round warms up
                for epochs in (few, many):
                    took = {"peer": rival.run(epochs), "ours": _seconds(case, wish, epochs)}
                    for who, seconds in took.items() if number else ():
                        best[who, epochs] = min(best.get((who, epochs), seconds), seconds)
    except RuntimeError as error:
        return (*head, f"does not run: {error}", *[""] * 7)
    steps = (many - few) * case.steps
    step = [1000 * (best[who, many] - best[who, few]) / steps for who in ("peer", "ours")]
    whole = [best[who, many] for who in ("peer", "ours")]
    return (*head, *map(figure, step), ratio(*step), many, *map(figure, whole), ratio(*whole), name)


def _seconds(case: Case, wish: Any, epochs: int) -> float:
    """A whole `fit`, from the task to the ensemble."""
    data = case.rows()
    start = time.perf_counter()
    method, batch = be.DeepEnsemble(num_members=case.members), case.batch
    be.fit(case.task, method, data, epochs=epochs, batch_size=batch, executor=wish, progress=False)
    return time.perf_counter() - start
