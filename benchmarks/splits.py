"""All splits of a UCI set, an ensemble each: one by one, side by side, and by JAX.

    python benchmarks/splits.py --folder DATA
    python benchmarks/splits.py --folder DATA --jax PYTHON      # an interpreter that has jax, for jax_splits.py

A deep ensemble of five networks with one hidden layer of 50 ReLU units for each of the 20 standard splits, Adam,
batches of 100, 40 epochs. Both libraries are timed from arrays to trained networks, imports apart, in the first call of
a new process. JAX compiles in that call or, if it keeps compiled programs on disk, reads them. Seconds are by the
clock; the processor's seconds stand beside them, as they depend less on what else the machine does.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from uci import load, standard

import bayesemble as be
from bayesemble.models import mlp


def timed(words: str, function: Callable[[], Any]) -> Any:
    start, spent = time.perf_counter(), time.process_time()
    found = function()
    took, worked = time.perf_counter() - start, time.process_time() - spent
    print(f"{words:<40} {took:8.2f} s {worked:8.2f} processor s", flush=True)
    return found


def same_bits(one: be.Ensemble, other: be.Ensemble) -> bool:
    pairs = zip(one.state.members.params.values(), other.state.members.params.values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--set", default="yacht")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--jax", help="an interpreter that has jax")
    arguments = parser.parse_args()

    splits = load(arguments.folder, arguments.set)
    (x_mean, x_std), (y_mean, y_std) = standard(splits.x), standard(splits.y)
    inputs, targets = ((splits.x - x_mean) / x_std).float(), ((splits.y - y_mean) / y_std).float()
    data, seeds = list(zip(inputs, targets, strict=True)), range(len(inputs))
    task = be.Task(lambda: mlp(inputs.shape[-1], [50], targets.shape[-1]), be.Gaussian(0.5**0.5))
    method = be.DeepEnsemble(num_members=arguments.members)
    settings: dict[str, Any] = {"epochs": arguments.epochs, "batch_size": 100, "progress": False}

    def one_by_one() -> list[be.Ensemble]:
        return [be.fit(task, method, rows, seed=seed, **settings) for rows, seed in zip(data, seeds, strict=True)]

    together = timed("side by side", lambda: be.fit_side_by_side(task, method, data, seeds=seeds, **settings))
    timed("side by side, again", lambda: be.fit_side_by_side(task, method, data, seeds=seeds, **settings))
    alone = timed("one by one", one_by_one)
    assert all(same_bits(*pair) for pair in zip(together, alone, strict=True)), "the bits differ"
    losses = [loss for ensemble in alone for loss in ensemble.history[-1]["loss"]]
    print(f"the same bits in all {len(alone)} fits; mean loss of the last epoch {sum(losses) / len(losses):.4f}")
    if arguments.jax is not None:
        run_jax(arguments)


def run_jax(arguments: argparse.Namespace) -> None:
    program = [arguments.jax, str(Path(__file__).with_name("jax_splits.py"))]
    for name in ("folder", "set", "members", "epochs"):
        program += [f"--{name}", str(getattr(arguments, name))]
    for _ in range(2):
        subprocess.run(program, check=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            subprocess.run([*program, "--cache", folder], check=True)


if __name__ == "__main__":
    main()
