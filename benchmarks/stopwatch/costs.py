"""What comes on top of plain members: interaction, posteriors around members, implicit ensembles; and what a fit, an
import and a command cost before any step."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.methods.base import Context
from bayesemble.models import mlp, resnet18
from bayesemble.training.prepare import prepare
from bayesemble.training.stepping.steps import Steps
from stopwatch.race import CONVOLUTIONS, DENSE, EXECUTORS, SMALL, Case, Options, race, show, threads

CYCLE = 8  # steps after which interaction does the same again
CYCLES = 4  # in each round, two and two: the first step of the first finds what others have left in the caches
MANY = 1000  # epochs of a plan that nobody goes through to its end


def interaction(options: Options) -> None:
    """Members that repel one another against a deep ensemble, 784-100-100-100-10, batch 128, 10 and 50 members.

    Distances are measured, and the prior over functions acts, at every eighth step. So all methods take steps in turn,
    the best of each of the eight places in that cycle counts, and the mean of the eight is told.
    """
    name, wish = list(EXECUTORS.items())[-1]
    limits = {("Repulsive", "function"): 1.05, ("Repulsive", "weight"): 1.15}
    for count in options.threads:
        rows = []
        for members in (10, 50):
            case = Case(DENSE[0].name, members, 128, CYCLE, DENSE[0].sizes)
            methods: dict[str, tuple[be.Method, float]] = {"DeepEnsemble": (be.DeepEnsemble(num_members=members), 1.0)}
            for kind in (be.Repulsive, be.Stein):
                for space in ("weight", "function"):
                    limit = limits.get((kind.__name__, space), 1.25)
                    methods[f"{kind.__name__}, {space} space"] = kind(num_members=members, space=space), limit
            takers = {key: _Cycles(case, method, wish, count) for key, (method, _) in methods.items()}
            with kept_memory():  # as in fit
                for _ in range(CYCLES // 2 * options.rounds):
                    for taker in takers.values():
                        taker.take()
                        taker.take()
            times = {key: 1000 * sum(taker.best) / CYCLE for key, taker in takers.items()}
            for key, took in times.items():
                ratio = f"{took / times['DeepEnsemble']:.2f}x"
                rows.append((members, key, f"{took:.3g}", ratio, f"{methods[key][1]}x"))
        title = f"What interaction costs ({name}, threads: {count})."
        show(title, ["members", "method", "ms a step", "of DeepEnsemble", "at most"], rows)


class _Cycles:
    """Steps of a method, a cycle at a time; seconds of the best step at each place of it.

    Those that are also taken in Python, to see that they come to the same, are fewer and fewer, and count for nothing.
    On one thread the seconds are those of the processor, which a busy machine changes less.
    """

    def __init__(self, case: Case, method: be.Method, wish: Any, count: int) -> None:
        options: dict[str, Any] = {"batch_size": case.batch, "executor": replace(wish, threads=count)}
        self.run, self.source, _, self.plan = prepare(case.task, method, case.rows(), epochs=MANY, **options)
        self.state, executor = self.run.ensemble.state, self.run.ensemble.executor
        self.steps = Steps(method, self.run.ensemble.task, executor, fresh=True)
        self.count, self.epoch, self.best = count, 0, [math.inf] * CYCLE

    def take(self) -> None:
        seconds = time.process_time if self.count == 1 else time.perf_counter
        with threads(self.count):
            for place, batch in enumerate(self.source.epoch(self.epoch, self.plan.batch_size, 0, None)):
                start = seconds()
                self.state, _ = self.steps(self.state, batch, self.plan.clock(self.epoch, place))
                self.best[place] = min(self.best[place], seconds() - start)
        self.epoch += 1


def fixed(options: Options) -> None:
    """Seconds of a fit that are not training steps; of an import; of `--help`. The best of so many."""
    rows = []
    for case in (*SMALL, *DENSE, *CONVOLUTIONS):
        data = case.rows(1)
        best = float("inf")
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            method = be.DeepEnsemble(num_members=case.members)
            fitted = be.fit(case.task, method, data, epochs=1, progress=False)
            best = min(best, time.perf_counter() - start - fitted.history[0]["seconds"])
        rows.append((f"fit: {case.name}, {case.members} members", f"{best:.3f}", "0.15"))
    commands = {
        "import bayesemble": (["-c", "import bayesemble"], "1.5"),
        "import bayesemble; bayesemble.fit": (["-c", "import bayesemble; bayesemble.fit"], ""),
        "import torch": (["-c", "import torch"], ""),
        "bayesemble --help": (["-m", "bayesemble", "--help"], "0.5"),
    }
    for name, (arguments, limit) in commands.items():
        best = float("inf")
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            best = min(best, time.perf_counter() - start)
        rows.append((name, f"{best:.3f}", limit))
    show("What it costs before any step.", ["what", "s", "at most"], rows)


def posteriors(options: Options) -> None:
    """MultiSWAG against its members, chains side by side against one by one: 20-64-64-3, one thread, whole seconds."""
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
    with threads(1):
        best = race(ways, min(options.rounds, 3))
    rows = [
        (name, f"{best[name]:.2f}", f"{other}, {best[other]:.2f}", f"{best[name] / best[other]:.2f}x", limit)
        for name, other, limit in (
            ("MultiSWAG, 5 modes", "5 members", "at most 1.15x"),
            ("10 chains one by one", "10 chains side by side", "at least 5x"),
        )
    ]
    show("Posteriors around members.", ["posterior", "s", "compared with", "ratio", "limit"], rows)


def implicit(options: Options, draws: int = 200, images: int = 16) -> None:
    """ResNet-18 on 32x32 images: a step with batch 32 and a prediction; the plain network predicts once per draw."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 3, 32, 32, generator=generator), torch.randint(10, (32,), generator=generator)
    task = be.Task(lambda: resnet18(10, stem="small"), be.Categorical()).bind(50_000, x)
    executor, batch = be.Loop(channels_last=True), Batch(x, y)
    methods = {"plain": be.DeepEnsemble(num_members=1), "EMP": be.EMP(), "ECMP": be.ECMP()}
    ensembles = {n: be.Ensemble(task, m, executor.arrange(m.init(task, 0)), executor) for n, m in methods.items()}

    def step(ensemble: be.Ensemble) -> float:
        start = time.perf_counter()
        ensemble.method.step(ensemble.state, batch, Context(task, executor, Clock(0, 1, 0)))
        return time.perf_counter() - start

    def predict(ensemble: be.Ensemble) -> float:
        plain, start = isinstance(ensemble.method, be.DeepEnsemble), time.perf_counter()
        for _ in range(draws if plain else 1):
            ensemble.predict(x[:images], num_draws=1 if plain else draws)
        return time.perf_counter() - start

    rounds = min(options.rounds, 2)
    steps = race({name: lambda one=one: step(one) for name, one in ensembles.items()}, rounds)
    predicted = race({name: lambda one=one: predict(one) for name, one in ensembles.items()}, rounds)
    rows = []
    for name in ensembles:
        ratios = f"{steps[name] / steps['plain']:.2f}x", f"{predicted[name] / predicted['plain']:.2f}x"
        rows.append((name, f"{steps[name]:.2f}", ratios[0], "1.1x", f"{predicted[name]:.1f}", ratios[1], "1.15x"))
    headings = ["ResNet-18", "step, s", "ratio", "at most", f"{draws} draws, s", "ratio", "at most"]
    show("Implicit ensembles.", headings, rows)
