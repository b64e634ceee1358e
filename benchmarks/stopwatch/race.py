"""Rounds that alternate, the best of each; the cases they are about, and the tables that come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.execute.executor import Executor
from bayesemble.models import mlp, resnet

EXECUTORS: dict[str, str | Executor] = {"auto": "auto", "compiled": be.Vmap(steps="compiled")}
"""Ways to train dense networks that are measured beside the rivals; the last one is what peers are held against."""
LOOPS: dict[str, str | Executor] = {"auto": "auto", "compiled": be.Loop(channels_last=True, steps="compiled")}
"""Ways to train networks of convolutions."""

Contestant = Callable[[], float]
"""Trains once; milliseconds of a step."""


@dataclass(frozen=True)
class Options:
    """What the command was told."""

    rounds: int = 5
    jax: str | None = None
    peers: str | None = None
    bde: str | None = None
    threads: tuple[int, ...] = (1,)
    figure: str | None = None


@dataclass(frozen=True)
class Case:
    """An ensemble to train: network, members, rows of a step, and steps of an epoch."""

    name: str
    members: int
    batch: int
    steps: int
    sizes: tuple[int, ...] = ()
    """Of a dense network."""
    depth: int = 0
    """Of a ResNet of width 16 on images of 32x32."""

    @property
    def classes(self) -> int:
        return 10 if self.depth else self.sizes[-1] if self.sizes[-1] > 1 else 0

    def make(self) -> nn.Module:
        return resnet(self.depth, 10) if self.depth else mlp(self.sizes[0], self.sizes[1:-1], self.sizes[-1])

    @property
    def task(self) -> be.Task:
        return be.Task(self.make, be.Categorical() if self.classes else be.Gaussian())

    @property
    def ways(self) -> dict[str, str | Executor]:
        """How it is trained, by name."""
        return EXECUTORS if self.sizes else LOOPS

    def rows(self, steps: int | None = None) -> tuple[Tensor, Tensor]:
        count, generator = self.batch * (steps or self.steps), torch.Generator().manual_seed(0)
        shape = (3, 32, 32) if self.depth else self.sizes[:1]
        x = torch.randn(count, *shape, generator=generator)
        if self.classes:
            return x, torch.randint(self.classes, (count,), generator=generator)
        return x, torch.randn(count, 1, generator=generator)

    def described(self) -> dict[str, Any]:
        """For a rival in another process."""
        return {"sizes": self.sizes, "members": self.members, "batch": self.batch}


SMALL = [Case("13-50-1", members, 100, 500, (13, 50, 1)) for members in (5, 20)]
DENSE = [
    Case("784-100-100-100-10", 10, 128, 40, (784, 100, 100, 100, 10)),
    Case("784-200-200-10", 10, 128, 40, (784, 200, 200, 10)),
]
CONVOLUTIONS = [Case("ResNet-8, width 16", 5, 64, 4, depth=8), Case("ResNet-20, width 16", 5, 64, 2, depth=20)]


class PlainLoop:
    """What a person would write without a library: a loop over modules, each with its own Adam."""

    def __init__(self, case: Case, threads: int | None = None) -> None:
        self.case, self.threads = case, threads
        self.networks = [case.make().train() for _ in range(case.members)]
        self.optimisers = [torch.optim.Adam(network.parameters(), lr=1e-3) for network in self.networks]
        self.loss = nn.CrossEntropyLoss() if case.classes else nn.MSELoss()
        x, y = case.rows(max(1, case.steps // 5))
        self.batches = list(zip(x.split(case.batch), y.split(case.batch), strict=True))

    def __call__(self) -> float:
        with threads(self.threads):
            start = time.perf_counter()
            for x, y in self.batches:
                for network, optimiser in zip(self.networks, self.optimisers, strict=True):
                    optimiser.zero_grad()
                    self.loss(network(x), y).backward()
                    optimiser.step()
            return 1000 * (time.perf_counter() - start) / len(self.batches)


class MatrixProducts:
    """The products that no step can do without: forward, for the weights, and for the inputs but those of the data."""

    def __init__(self, case: Case, threads: int | None = None) -> None:
        self.threads, members, batch = threads, case.members, case.batch
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, (inputs, outputs) in enumerate(zip(case.sizes, case.sizes[1:], strict=False)):
            x, slope = torch.randn(members, batch, inputs), torch.randn(members, batch, outputs)
            weight = torch.randn(members, outputs, inputs)
            pairs = [(x, weight.mT), (slope.mT, x)] + ([(slope, weight)] if number else [])
            self.products += [(one, other, torch.bmm(one, other)) for one, other in pairs]

    def __call__(self, times: int = 20) -> float:
        with threads(self.threads):
            start = time.perf_counter()
            for _ in range(times):
                for one, other, out in self.products:
                    torch.bmm(one, other, out=out)
            return 1000 * (time.perf_counter() - start) / times


class Ours:
    """`fit`; the best epoch of each fit counts, so that what a fit does once is left out.

    So are steps that are taken both ways, of which four epochs have one without: they become fewer and fewer.
    """

    def __init__(
        self, case: Case, wish: str | Executor = "auto", threads: int | None = None, method: Any = None, epochs: int = 4
    ) -> None:
        self.case, self.epochs, self.data = case, epochs, case.rows()
        self.method = method or be.DeepEnsemble(num_members=case.members)
        self.wish = wish
        found = self._fit().executor if isinstance(wish, str) else wish
        self.executor = replace(found, threads=threads or found.threads)  # type: ignore[type-var]
        self.wish = self.executor

    def _fit(self) -> be.Ensemble:
        options: dict[str, Any] = {"batch_size": self.case.batch, "executor": self.wish, "progress": False}
        return be.fit(self.case.task, self.method, self.data, epochs=self.epochs, **options)

    def __call__(self) -> float:
        return 1000 * min(row["seconds"] for row in self._fit().history) / self.case.steps


def race(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """The best of so many rounds after a warm-up. Rounds alternate, so that a busy machine slows all."""
    best = dict.fromkeys(contestants, float("inf"))
    for number in range(rounds + 1):
        for name, run in contestants.items():
            took = run()
            best[name] = min(best[name], took) if number else best[name]
    return best


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table in Markdown."""
    lines = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    print(f"\n{title}\n", line(lines[0]), line(["-" * width for width in widths]), *map(line, lines[1:]), sep="\n")


def figure(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:.0f}"


def ratio(one: float | None, other: float | None) -> str:
    return "" if one is None or other is None else f"{one / other:.2f}x"
