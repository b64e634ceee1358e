"""Milliseconds of a training step: small and dense networks against JAX, the loop over modules and the limit set by
their matrix products; convolutions against the loop; a whole UCI benchmark against JAX."""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch
from rivals.client import Rival

import bayesemble as be
from stopwatch.race import (
    CONVOLUTIONS,
    DENSE,
    EXECUTORS,
    SMALL,
    Case,
    Contestant,
    MatrixProducts,
    Options,
    Ours,
    PlainLoop,
    figure,
    race,
    ratio,
    show,
)

YACHT = Case("6-50-1", 100, 100, 3, (6, 50, 1))
YACHT_ROWS, YACHT_EPOCHS = 277, 40


def small(options: Options) -> None:
    """13-50-1 with 5 and 20 members, batch 100."""
    targets = "compiled at most 1.2x of JAX, the first step at most 5x; at least 15x faster than the plain loop"
    _compare(SMALL, options, targets)


def dense(options: Options) -> None:
    """784-100-100-100-10 and 784-200-200-10 with 10 members, batch 128."""
    _compare(DENSE, options, "ahead of JAX; at most 1.8x of the matrix products")


def convolutions(options: Options) -> None:
    """ResNet-8 and ResNet-20 with 5 members, batch 64."""
    _compare(CONVOLUTIONS, options, "at least 1.4x faster than the plain loop", min(options.rounds, 3))


def _compare(cases: list[Case], options: Options, targets: str, rounds: int | None = None) -> None:
    rows = []
    for case in cases:
        for threads in options.threads:
            found, words = _measured(case, threads, options, rounds or options.rounds)
            plain, jax, limit = (found.get(name) for name in ("plain", "jax", "products"))
            for name in case.ways:
                ours = found[name]
                times = [figure(one) for one in (plain, jax, limit, ours)]
                ratios = ratio(plain, ours), ratio(ours, jax), ratio(ours, limit)
                rows.append((case.name, case.members, case.batch, threads, *times, *ratios, name, words[name]))
    headings = ["network", "members", "batch", "threads", "plain loop, ms", "JAX, ms", "products, ms", "ours, ms"]
    headings += ["faster than plain", "of JAX", "of products", "way", "executor"]
    show(f"Milliseconds a step. Targets: {targets}.", headings, rows)


def _measured(case: Case, threads: int, options: Options, rounds: int) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of each contestant in one race, and the executors that were used."""
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {"plain": PlainLoop(case, threads)}
        if case.sizes:
            contestants["products"] = MatrixProducts(case, threads)
        if case.sizes and options.jax:
            rival = stack.enter_context(Rival(options.jax, "with_jax.py", case.described(), case.rows(), threads))
            contestants["jax"] = lambda: 1000 * rival.run() / case.steps
        ours = {name: Ours(case, wish, threads) for name, wish in case.ways.items()}
        found = race(contestants | ours, rounds)
    return found, {name: str(one.executor) for name, one in ours.items()}


def yacht(options: Options) -> None:
    """The work of a UCI set of 308 rows: 20 splits of 5 members, each with its own rows, 40 epochs; whole seconds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(YACHT.members, YACHT_ROWS, 6, generator=generator)
    y = torch.randn(YACHT.members, YACHT_ROWS, 1, generator=generator)
    method, best, rows = be.DeepEnsemble(num_members=YACHT.members), dict[str, float](), []
    for name, wish in EXECUTORS.items():
        for number in range(options.rounds + 1):  # the first run is told apart from the others
            start = time.perf_counter()
            data = be.PerMember(x, y)
            be.fit(YACHT.task, method, data, epochs=YACHT_EPOCHS, batch_size=YACHT.batch, executor=wish, progress=False)
            took = time.perf_counter() - start
            key = name if number else f"{name}, first run"
            best[key] = min(best.get(key, took), took)
    if options.jax:
        for _ in range(2):  # a process of its own each time, and its compilation is part of it
            with Rival(options.jax, "with_jax.py", YACHT.described(), (x, y)) as rival:
                took = rival.first_seconds + rival.run(YACHT_EPOCHS - 1)
                best["JAX, with compilation"] = min(best.get("JAX, with compilation", took), took)
                took = min(rival.run(YACHT_EPOCHS) for _ in range(options.rounds))
                best["JAX, compiled before"] = min(best.get("JAX, compiled before", took), took)
    rows = [(name, f"{took:.3g}") for name, took in best.items()]
    show("A UCI set: 20 splits x 5 members, 277 rows each, 40 epochs. Target: ahead of JAX.", ["what", "s"], rows)
