"""What the rule behind `executor="auto"` picks, beside the quickest of all candidates.

    python benchmarks/executors.py                     # the whole grid: a few minutes
    python benchmarks/executors.py --only ResNet       # networks whose name has this in it
    python benchmarks/executors.py --threads one       # one thread, by its processor time: for a busy machine
    python benchmarks/executors.py --save grid.jsonl   # every time measured, to derive a new rule from

Each case is a network, a number of members and a batch. Every candidate takes training steps of a deep ensemble in
short rounds that alternate, so that a busy moment of the machine hits all; the best round of each counts, after a
warm-up. The rule is asked twice: with one thread to use, and with all.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.members import State
from bayesemble.core.types import Batch, Clock
from bayesemble.execute.choose import choose
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.execute.rule import load_of
from bayesemble.methods.base import Context
from bayesemble.models import mlp, resnet
from bayesemble.task.task import BoundTask

MEMBERS, BATCHES = (2, 5, 20, 100), (32, 128, 1000)
MOST_NUMBERS = 100_000_000  # of all members in a step; larger cases are left out
MOST_SECONDS = 4.0  # a case whose candidates would take longer than this in one step each is left out
ROUND_SECONDS = 0.01


class Tokens(nn.Module):
    """The mean of embedded tokens, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 32), mlp(32, [64], 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


class Attention(nn.Module):
    """One block of a transformer on 16 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 10)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embed(tokens)).mean(1))


def small_convnet() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 10))


def tiny_convnet() -> nn.Module:
    convolutions = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2)]
    return nn.Sequential(*convolutions, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def series_convnet() -> nn.Module:
    convolutions = [nn.Conv1d(4, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 10))


@dataclass(frozen=True)
class Network:
    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    tokens: int = 0
    """Inputs are whole numbers below this, if there are."""
    regression: bool = False

    @property
    def likelihood(self) -> be.Categorical | be.Gaussian:
        return be.Gaussian() if self.regression else be.Categorical()

    def batch(self, rows: int) -> Batch:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, *self.inputs, generator=generator)
        if self.tokens:
            x = torch.randint(self.tokens, (rows, *self.inputs), generator=generator)
        return Batch(x, torch.randn(rows, 1) if self.regression else torch.randint(10, (rows,), generator=generator))


NETWORKS = {
    "13-50-1": Network(lambda: mlp(13, [50], 1), (13,), regression=True),
    "20-64-64-10": Network(lambda: mlp(20, [64, 64], 10), (20,)),
    "784-100-100-100-10": Network(lambda: mlp(784, [100] * 3, 10), (784,)),
    "784-200-200-10": Network(lambda: mlp(784, [200] * 2, 10), (784,)),
    "100-1000-1000-10": Network(lambda: mlp(100, [1000] * 2, 10), (100,)),
    "50-100-100-10, batch norm": Network(lambda: mlp(50, [100] * 2, 10, norm=True), (50,)),
    "50-100-100-10, dropout": Network(lambda: mlp(50, [100] * 2, 10, dropout=0.1), (50,)),
    "embedded tokens": Network(Tokens, (16,), tokens=1000),
    "transformer block": Network(Attention, (16,), tokens=100),
    "convolutions of series": Network(series_convnet, (4, 32)),
    "tiny convnet, 8x8": Network(tiny_convnet, (3, 8, 8)),
    "small convnet, 28x28": Network(small_convnet, (1, 28, 28)),
    "ResNet-8, width 16": Network(lambda: resnet(8, 10), (3, 32, 32)),
    "ResNet-8, width 64": Network(lambda: resnet(8, 10, width=64), (3, 32, 32)),
}


@dataclass(frozen=True)
class Case:
    name: str
    members: int
    rows: int

    @property
    def network(self) -> Network:
        return NETWORKS[self.name]

    def bound(self) -> tuple[BoundTask, State, Batch]:
        batch, method = self.network.batch(self.rows), be.DeepEnsemble(num_members=self.members)
        task = be.Task(self.network.make, self.network.likelihood).bind(self.rows, batch.inputs)
        return task, method.init(task, 0), batch


def chosen(case: Case, threads: int) -> Executor:
    """What the rule says where torch has so many threads."""
    task, state, batch = case.bound()
    executor = choose("auto", task, state, batch, lambda _: lambda: None).executor
    return replace(executor, threads=executor.threads or threads)  # type: ignore[type-var]


def candidates(case: Case) -> list[Executor]:
    """Every way to run the network, on one thread and on all, and what the rule picks."""
    ways: list[Executor] = []
    for threads in dict.fromkeys((1, torch.get_num_threads())):
        ways += [be.Loop(threads=threads), be.Vmap(threads=threads), chosen(case, threads)]
        if len(case.network.inputs) == 3:
            ways.append(be.Loop(channels_last=True, threads=threads))
    return list(dict.fromkeys(same_steps(way) for way in ways))


def same_steps(executor: Executor) -> Executor:
    """Without what only predictions go by."""
    return replace(executor, draws_by_vmap=False) if isinstance(executor, be.Loop) else executor


@kept_memory()  # as in a fit
def measure(case: Case, seconds: float, clock: Callable[[], float]) -> dict[Executor, float] | None:
    """Milliseconds of a step of each candidate, the best round; None if that would take too long."""
    task, state, batch = case.bound()
    method = be.DeepEnsemble(num_members=case.members)

    def steps(executor: Executor) -> Callable[[int], float]:
        context, trial = Context(task, executor, Clock(0, 1, 0)), executor.arrange(state.clone())

        def run(count: int) -> float:
            nonlocal trial
            with thread_count(executor):
                start = clock()
                for _ in range(count):
                    trial, _ = method.step(trial, batch, context)
                return (clock() - start) / count

        return run

    running = {executor: steps(executor) for executor in candidates(case)}
    best: dict[Executor, float] = {}
    begin = clock()
    for executor, run in running.items():  # the warm-up
        best[executor] = run(1)
        if clock() - begin > MOST_SECONDS:
            return None
    rounds = 0
    while rounds == 0 or clock() - begin < seconds:
        for executor, run in running.items():
            took = run(max(1, min(20, int(ROUND_SECONDS / best[executor]))))
            best[executor] = min(best[executor], took)
        rounds += 1
    return {executor: 1000 * took for executor, took in best.items()}


def too_large(case: Case) -> bool:
    """Whether the members handle more numbers than can be timed in a few seconds."""
    task, state, batch = replace(case, rows=4).bound()
    return case.members * load_of(task, state.members, batch, case.rows).numbers > MOST_NUMBERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name has this in it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for one case")
    parser.add_argument("--threads", choices=("one", "all"), default="all", help="the most that a candidate gets")
    parser.add_argument("--save", help="file for every time measured, a JSON line for each case")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="There is a performance drop")
    clock = time.perf_counter
    if arguments.threads == "one":
        clock = time.thread_time
        torch.set_num_threads(1)
    table = Table("network", "members", "batch", "threads", "the rule's", "ms", "quickest", "ms", "ratio")
    ratios = []
    for name, members, rows in itertools.product(NETWORKS, MEMBERS, BATCHES):
        case = Case(name, members, rows)
        if arguments.only not in name or too_large(case):
            continue
        found = measure(case, arguments.seconds, clock)
        if found is None:
            continue
        for threads in dict.fromkeys((1, torch.get_num_threads())):
            own = {executor: took for executor, took in found.items() if executor.threads <= threads}  # type: ignore
            picked, best = same_steps(chosen(case, threads)), min(own, key=own.__getitem__)
            ratios.append(own[picked] / own[best])
            row = (str(threads), str(picked), f"{own[picked]:.2f}", str(best), f"{own[best]:.2f}", f"{ratios[-1]:.2f}")
            table.add_row(name, str(members), str(rows), *row)
        if arguments.save:
            line = {"case": asdict(case), "ms": {str(executor): took for executor, took in found.items()}}
            with Path(arguments.save).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    Console(width=160).print(table)
    within = sum(ratio <= 1.2 for ratio in ratios) / len(ratios)
    print(f"{len(ratios)} cases: within 1.2x of the quickest in {100 * within:.0f}%, worst {max(ratios):.2f}x")


if __name__ == "__main__":
    main()
