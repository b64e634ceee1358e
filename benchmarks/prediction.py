"""Predictions beside what a person would write by hand: a Python loop over torch modules.

    python benchmarks/prediction.py                  # rows of a table, one by one and a million, and ResNet-18
    python benchmarks/prediction.py --rows 100000    # fewer than a million
    python benchmarks/prediction.py --threads one    # one thread, by its processor time: for a busy machine

The loop is in eval mode, without gradients, and averages probabilities; it has the rows in batches of the same size.
Rounds of the two alternate and the best of each counts, so that a busy moment of the machine hits both.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be
from bayesemble.models import mlp, resnet18

CLOCK = time.perf_counter


def modules_of(ensemble: be.Ensemble, make: Callable[[], nn.Module], num: int | None = None) -> list[nn.Module]:
    """The networks that a prediction averages over, each as a module of its own."""
    found = []
    for params, buffers in ensemble.draw(num).split():
        module = make()
        module.load_state_dict(params | buffers)
        found.append(module.eval())
    return found


@torch.no_grad()
def by_loop(modules: list[nn.Module], rows: Tensor, batch: int) -> Tensor:
    parts = [torch.stack([module(part).softmax(-1) for module in modules]).mean(0) for part in rows.split(batch)]
    return torch.cat(parts)


def alternating(ways: dict[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, float]:
    """Seconds of the best call of each."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            for _ in range(calls):
                start = CLOCK()
                way()
                best[name] = min(best[name], CLOCK() - start)
    return best


def fitted(make: Callable[[], nn.Module], method: be.methods.Method) -> be.Ensemble:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 20, generator=generator), torch.randint(5, (200,), generator=generator)
    return be.fit(be.Task(make, be.Categorical()), method, (x, y), epochs=1, batch_size=50, progress=False)


def measure_rows(table: Table, num_rows: int, members: int, rounds: int, calls: int) -> None:
    def make() -> nn.Module:
        return mlp(20, [50], 5)

    ensemble = fitted(make, be.DeepEnsemble(num_members=members))
    modules = modules_of(ensemble, make)
    x = torch.randn(num_rows, 20, generator=torch.Generator().manual_seed(1))
    batch = ensemble.predictor().rows_at_a_time
    torch.testing.assert_close(ensemble.predict(x[:100]).probs, by_loop(modules, x[:100], batch))
    best = alternating(
        {
            "loop": lambda: by_loop(modules, x, batch),
            "members": lambda: ensemble.predict(x).probs,
            "reduced": lambda: ensemble.predict(x, keep_members=False).probs,
        },
        rounds,
        calls,
    )
    words = f"20-50-5, {members} member{'s' * (members > 1)}, {num_rows:,} row{'s' * (num_rows > 1)}"
    add(table, words, best["loop"], best["members"], 1.0)
    add(table, f"{words}, all measures, members not kept", best["loop"], best["reduced"], None)


def measure_draws(table: Table, rounds: int, calls: int) -> None:
    """One row, with networks that are drawn: the first call draws them."""

    def make() -> nn.Module:
        return mlp(20, [50], 5)

    ensemble = fitted(make, be.ECMP(select="output"))
    modules, x = modules_of(ensemble, make), torch.randn(1, 20, generator=torch.Generator().manual_seed(1))
    best = alternating(
        {
            "loop": lambda: by_loop(modules, x, 1),
            "anew": lambda: replace(ensemble).predict(x).probs,
            "kept": lambda: ensemble.predict(x).probs,
        },
        rounds,
        calls,
    )
    add(table, "20-50-5, 20 draws, 1 row, drawn for this call", best["loop"], best["anew"], None)
    add(table, "20-50-5, 20 draws, 1 row, draws kept", best["loop"], best["kept"], 1.0)


def measure_trunk(table: Table, rounds: int, draws: int = 200, images: int = 16) -> None:
    """ResNet-18 whose output layer alone is drawn: the loop takes as many passes as there are draws."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 3, 32, 32, generator=generator)
    task = be.Task(lambda: resnet18(10, stem="small"), be.Categorical()).bind(50_000, x)
    executor, network = be.Loop(channels_last=True), resnet18(10, stem="small").eval()
    network, ordered = (one.to(memory_format=torch.channels_last) for one in (network, x))
    for method in (be.EMP(select="output"), be.ECMP(select="output")):
        ensemble = be.Ensemble(task, method, executor.arrange(method.init(task, 0)), executor)
        best = alternating(
            {
                "pass": lambda: by_loop([network], ordered, images),
                "first": lambda ensemble=ensemble: replace(ensemble).predict(x, num_draws=draws).probs,
                "later": lambda ensemble=ensemble: ensemble.predict(x, num_draws=draws).probs,
            },
            rounds,
        )
        words = f"ResNet-18, {type(method).__name__} of the output, {draws} draws, {images} images"
        add(table, f"{words}, first call", draws * best["pass"], best["first"], 20.0)
        add(table, f"{words}, later calls", draws * best["pass"], best["later"], 20.0)


def add(table: Table, name: str, plain: float, ours: float, least: float | None) -> None:
    goal = "" if least is None else f"{least:g}x"
    table.add_row(name, f"{1000 * plain:.3g}", f"{1000 * ours:.3g}", f"{plain / ours:.2f}x", goal)


def main() -> None:
    global CLOCK
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", choices=("one", "all"), default="all")
    asked = parser.parse_args()
    if asked.threads == "one":
        torch.set_num_threads(1)
        CLOCK = time.process_time
    table = Table("prediction", "plain loop, ms", "bayesemble, ms", "faster", "at least")
    for members in (1, 2, 10, 50):
        measure_rows(table, 1, members, 3 * asked.rounds, 100)
    measure_draws(table, asked.rounds, 50)
    for members in (1, 10):
        measure_rows(table, asked.rows, members, asked.rounds, 1)
    measure_trunk(table, asked.rounds)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
