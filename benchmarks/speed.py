"""How fast an ensemble trains, against a plain Python loop over torch modules with an optimiser each; what it costs
that members repel one another, against the same members on their own; what SWAG costs beside the members it surrounds,
and chains side by side beside chains one after the other; what implicit ensembles cost beside one network.

    python benchmarks/speed.py --memory repulsive:10     # peak memory, in a process of its own
    python benchmarks/speed.py            # all cases; ratios within one run, best of several rounds after a warm-up

Both sides take the same steps: same networks, batch, loss and Adam. Rounds of the two alternate, so that a busy
machine slows both.
"""

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.methods import make_method
from bayesemble.methods.base import Context
from bayesemble.models import mlp, resnet, resnet18


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    likelihood: be.Categorical | be.Gaussian
    inputs: tuple[int, ...]
    members: int
    batch: int
    steps: int
    target: float


CASES = (
    Case("13-50-1", lambda: mlp(13, [50], 1), be.Gaussian(), (13,), 20, 100, 200, 6.0),
    Case("784-100-100-100-10", lambda: mlp(784, [100] * 3, 10), be.Categorical(), (784,), 10, 128, 40, 1.4),
    Case("ResNet-8, width 16", lambda: resnet(8, 10), be.Categorical(), (3, 32, 32), 5, 64, 4, 1.2),
)


def make_data(case: Case, num_rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, *case.inputs, generator=generator)
    if isinstance(case.likelihood, be.Categorical):
        return x, torch.randint(10, (num_rows,), generator=generator)
    return x, torch.randn(num_rows, 1, generator=generator)


class PlainLoop:
    """What a person would write without this library."""

    def __init__(self, case: Case, x: Tensor, y: Tensor) -> None:
        self.networks = [case.make().train() for _ in range(case.members)]
        self.optimisers = [torch.optim.Adam(network.parameters(), lr=1e-3) for network in self.networks]
        categorical = isinstance(case.likelihood, be.Categorical)
        self.loss = nn.CrossEntropyLoss() if categorical else nn.MSELoss()
        self.batches = list(zip(x.split(case.batch), y.split(case.batch), strict=True))

    def run(self) -> None:
        for x, y in self.batches:
            for network, optimiser in zip(self.networks, self.optimisers, strict=True):
                optimiser.zero_grad()
                self.loss(network(x), y).backward()
                optimiser.step()


class Ours:
    """`fit` with the executor that "auto" picked in a first, untimed fit."""

    def __init__(self, case: Case, x: Tensor, y: Tensor) -> None:
        self.case, self.data = case, (x, y)
        self.task = be.Task(case.make, case.likelihood)
        self.method = be.DeepEnsemble(num_members=case.members)
        first = be.fit(self.task, self.method, self.data, epochs=1, batch_size=case.batch, progress=False)
        self.executor, self.words = first.executor, f"{first.executor}: {first.execution}"
        self.seconds = 0.0

    def run(self) -> None:
        fitted = be.fit(
            self.task,
            self.method,
            self.data,
            epochs=1,
            batch_size=self.case.batch,
            executor=self.executor,
            progress=False,
        )
        self.seconds = fitted.history[0]["seconds"]


def measure(case: Case, rounds: int) -> tuple[float, float, str]:
    """Milliseconds a step of the plain loop and of ours, each the best round."""
    x, y = make_data(case, case.batch * case.steps)
    plain, ours = PlainLoop(case, x, y), Ours(case, x, y)
    plain.run()
    best_plain = best_ours = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        plain.run()
        best_plain = min(best_plain, time.perf_counter() - start)
        ours.run()
        best_ours = min(best_ours, ours.seconds)
    return 1000 * best_plain / case.steps, 1000 * best_ours / case.steps, ours.words


def print_fixed_cost(rounds: int) -> None:
    """Seconds of a fit that are not training steps, the best round."""
    table = Table("network", "fixed cost of a fit, s", "at most")
    for case in CASES:
        data, best = make_data(case, case.batch), float("inf")
        for _ in range(rounds + 1):
            start = time.perf_counter()
            task, method = be.Task(case.make, case.likelihood), be.DeepEnsemble(num_members=case.members)
            fitted = be.fit(task, method, data, epochs=1, progress=False)
            best = min(best, time.perf_counter() - start - fitted.history[0]["seconds"])
        table.add_row(case.name, f"{best:.3f}", "0.15")
    Console(width=120).print(table)


@dataclass(frozen=True)
class Overhead:
    name: str
    method: type[be.Repulsive] | type[be.Stein]
    space: str
    members: int
    target: float


OVERHEADS = tuple(
    Overhead(name, method, space, members, limits[space])
    for members, limits in ((10, {"function": 1.10, "weight": 1.25}), (50, {"function": 1.3, "weight": 1.5}))
    for name, method in (("Repulsive", be.Repulsive), ("Stein", be.Stein))
    for space in ("weight", "function")
)


def measure_overhead(members: int, rounds: int, steps: int = 30) -> dict[str, float]:
    """Milliseconds a step of a deep ensemble and of interacting ones, 784-100-100-100-10, batch 128, all by vmap."""
    case = CASES[1]
    data = make_data(case, case.batch * steps)
    methods: dict[str, Any] = {"DeepEnsemble": be.DeepEnsemble(num_members=members)}
    for row in OVERHEADS:
        if row.members == members:
            methods[f"{row.name}, {row.space} space"] = row.method(num_members=members, space=row.space)
    best = dict.fromkeys(methods, float("inf"))
    for number in range(rounds + 1):  # the first round warms up
        for name, method in methods.items():
            fitted = be.fit(
                be.Task(case.make, case.likelihood),
                method,
                data,
                epochs=1,
                batch_size=case.batch,
                executor="vmap",
                progress=False,
            )
            if number:
                best[name] = min(best[name], 1000 * fitted.history[0]["seconds"] / steps)
    return best


def peak_memory(kind: str, members: int) -> float:
    """MiB by which anonymous memory grows while members are trained, 784-100-100-100-10, batch 128 (Linux)."""

    def anonymous() -> float:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024

    case, peak, done = CASES[1], 0.0, threading.Event()
    data = make_data(case, case.batch * 8)
    options: dict[str, Any] = {"batch_size": case.batch, "executor": "vmap", "progress": False}
    be.fit(be.Task(case.make, case.likelihood), be.DeepEnsemble(num_members=2), data, epochs=1, **options)
    before = anonymous()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.0005):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    be.fit(be.Task(case.make, case.likelihood), make_method(kind, num_members=members), data, epochs=2, **options)
    done.set()
    watcher.join()
    return peak - before


def measure_implicit(rounds: int, draws: int = 200, images: int = 16) -> dict[str, tuple[float, float]]:
    """Seconds of a training step (batch 32) and of a prediction of ResNet-18, 32x32 images: plain, EMP and ECMP.

    The plain network predicts as often as there are draws.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 3, 32, 32, generator=generator), torch.randint(10, (32,), generator=generator)
    task = be.Task(lambda: resnet18(10, stem="small"), be.Categorical()).bind(50_000, x)
    executor, batch = be.Loop(channels_last=True), Batch(x, y)
    methods = {"plain": be.DeepEnsemble(num_members=1), "EMP": be.EMP(), "ECMP": be.ECMP()}
    ensembles = {n: be.Ensemble(task, m, executor.arrange(m.init(task, 0)), executor) for n, m in methods.items()}
    best = {name: (float("inf"), float("inf")) for name in methods}
    for number in range(rounds + 1):  # the first round warms up
        for name, ensemble in ensembles.items():
            start = time.perf_counter()
            ensemble.method.step(ensemble.state, batch, Context(task, executor, Clock(number, rounds + 1, 0)))
            stepped = time.perf_counter()
            for _ in range(draws if name == "plain" else 1):
                ensemble.predict(x[:images], num_draws=1 if name == "plain" else draws)
            done = time.perf_counter()
            if number:
                best[name] = (min(best[name][0], stepped - start), min(best[name][1], done - stepped))
    return best


def measure_posteriors(rounds: int) -> dict[str, float]:
    """Seconds to fit 20-64-64-3 for four epochs of 100 steps of 64 rows, on one thread."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(6400, 20, generator=generator), torch.randint(3, (6400,), generator=generator)

    def seconds(method: Any, executor: str = "vmap") -> float:
        start = time.perf_counter()
        task = be.Task(lambda: mlp(20, [64, 64], 3), be.Categorical())
        be.fit(task, method, data, epochs=4, batch_size=64, executor=executor, progress=False)
        return time.perf_counter() - start

    ways = {
        "5 members": lambda: seconds(be.DeepEnsemble(num_members=5)),
        "MultiSWAG, 5 modes": lambda: seconds(be.SWAG(num_members=5)),
        "10 chains side by side": lambda: seconds(be.CyclicalSGMCMC(num_members=10)),
        "10 chains one by one": lambda: sum(seconds(be.CyclicalSGMCMC(num_members=1), "loop") for _ in range(10)),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds + 1):  # the first round warms up, and is never the best
        for name, way in ways.items():
            best[name] = min(best[name], way())
    torch.set_num_threads(threads)
    return best


def print_posteriors(rounds: int) -> None:
    best = measure_posteriors(rounds)
    table = Table("posterior", "s", "compared with", "ratio", "limit")
    for name, other, limit in (
        ("MultiSWAG, 5 modes", "5 members", "at most 1.15x"),
        ("10 chains one by one", "10 chains side by side", "at least 5x"),
    ):
        table.add_row(
            name, f"{best[name]:.2f}", f"{other}, {best[other]:.2f}", f"{best[name] / best[other]:.2f}x", limit
        )
    Console(width=120).print(table)


def print_implicit(rounds: int) -> None:
    table = Table("ResNet-18", "step, s", "ratio", "at most", "200 draws, s", "ratio", "at most")
    best = measure_implicit(rounds)
    for name, (step, predicted) in best.items():
        ratios = f"{step / best['plain'][0]:.3f}x", f"{predicted / best['plain'][1]:.3f}x"
        table.add_row(name, f"{step:.2f}", ratios[0], "1.1x", f"{predicted:.1f}", ratios[1], "1.15x")
    Console(width=120).print(table)


def print_overheads(rounds: int) -> None:
    table = Table("members", "method", "ms a step", "ratio to DeepEnsemble", "at most")
    for members in (10, 50):
        best = measure_overhead(members, rounds)
        limits = {f"{row.name}, {row.space} space": row.target for row in OVERHEADS if row.members == members}
        for name, milliseconds in best.items():
            ratio = f"{milliseconds / best['DeepEnsemble']:.3f}x"
            table.add_row(str(members), name, f"{milliseconds:.2f}", ratio, f"{limits.get(name, 1.0)}x")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--memory", metavar="METHOD:MEMBERS", help="peak memory of one method alone, such as repulsive:10"
    )
    arguments = parser.parse_args()
    if arguments.memory:
        kind, members = arguments.memory.split(":")
        print(f"{peak_memory(kind, int(members)):.1f} MiB")
        return
    rounds = arguments.rounds
    table = Table("network", "members", "batch", "plain loop, ms", "bayesemble, ms", "ratio", "target", "auto")
    for case in CASES:
        plain, ours, words = measure(case, rounds)
        row = (f"{plain:.2f}", f"{ours:.2f}", f"{plain / ours:.2f}x", f"{case.target}x", words)
        table.add_row(case.name, str(case.members), str(case.batch), *row)
    Console(width=160).print(table)
    print_fixed_cost(rounds)
    print_overheads(rounds)
    print_posteriors(min(rounds, 3))
    print_implicit(min(rounds, 2))


if __name__ == "__main__":
    main()
