"""What ranks cost: seconds of a step on two ranks of one thread each, against one process of two threads.

    python benchmarks/scale.py --figure docs/figures/scale.svg     # three minutes on two quiet cores

It measures, too, what ranks tell one another in a step and how fast, and what a model (`scale_model.py`, which states
it) makes of that up to 256 ranks. A network between machines has another latency and bandwidth: --latency and
--bandwidth put them in the place of those between two processes of this machine.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from scale_model import SPACES, Job, Measured, draw, efficiency
from torch import nn

import bayesemble as be

MEMBERS, ROWS, CLASSES, STEPS, EPOCHS, TURNS = 4, 64, 10, 8, 4, 5
MANY = 6  # ranks at most that a message with nothing to tell is timed on
METHODS = {
    "deep ensemble": be.DeepEnsemble(num_members=MEMBERS),
    "repulsion between weights": be.Repulsive(num_members=MEMBERS),
    "repulsion between functions": be.Repulsive(num_members=MEMBERS, space="function", function_prior=False),
}


def network() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 64, CLASSES),
    )


def fitted(method: be.Method, executor: Any, epochs: int) -> be.Ensemble:
    """An ensemble after some epochs on images of noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS * STEPS, 3, 32, 32, generator=generator)
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return be.fit(
            be.Task(network, be.Categorical()),
            method,
            (x, y),
            epochs=epochs,
            batch_size=ROWS,
            executor=executor,
            progress=False,
        )


def step_seconds(method: be.Method, executor: Any) -> float:
    """The least mean time of a step in an epoch; the first epoch does not count."""
    return min(row["seconds"] for row in fitted(method, executor, EPOCHS).history[1:]) / STEPS


def call_seconds(numbers: int) -> float:
    """The median time of an all-to-all, in which each rank sends so many numbers."""
    world = torch.distributed.get_world_size()
    sent, got, times = torch.zeros(numbers * world), torch.zeros(numbers * world), []
    for _ in range(30):
        torch.distributed.barrier()
        begin = time.perf_counter()
        torch.distributed.all_to_all_single(got, sent)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def told_in_a_step(method: be.Method) -> dict[str, float]:
    """How many collective operations a step takes and how many bytes this rank sends to others in it, counted."""
    counted: Counter[str] = Counter()
    names = ("all_gather", "all_to_all_single", "all_reduce")
    true = {name: getattr(torch.distributed, name) for name in names}

    def counting(name: str) -> Any:
        def operation(*arguments: Any, **options: Any) -> Any:
            tensor = arguments[0] if name == "all_reduce" else arguments[1]
            others = 0.5 if name == "all_to_all_single" else 1.0  # of two ranks, this one keeps its half
            counted.update(calls=1, bytes=int(others * tensor.numel() * tensor.element_size()))
            return true[name](*arguments, **options)

        return operation

    totals = []
    for epochs in (1, 2):  # what comes on top in the second epoch is that of its steps, and of the epoch
        counted.clear()
        for name in names:
            setattr(torch.distributed, name, counting(name))
        try:
            fitted(method, be.Ranks(inner="loop"), epochs)
        finally:
            for name in names:
                setattr(torch.distributed, name, true[name])
        totals.append(dict(counted))
    return {what: (totals[1][what] - totals[0][what]) / STEPS for what in ("calls", "bytes")}


def worker(only_messages: bool) -> None:
    """One of the ranks: the first one writes down what was measured."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if only_messages:
        torch.distributed.init_process_group("gloo")
    else:
        found |= {name: step_seconds(method, be.Ranks(inner="loop")) for name, method in METHODS.items()}
        found["told"] = {name: told_in_a_step(method) for name, method in METHODS.items()}
        found["bandwidth"] = 4 * (1 << 21) / (call_seconds(1 << 21) - call_seconds(1))
    found["call"] = call_seconds(1)
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


def on_ranks(count: int, *options: str) -> dict[str, Any]:
    """What ranks of one thread each measure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", *options]
    ranks = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    told = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, Any] = json.loads(told[0])
    return found


def least_seconds(run: Any, times: int = 5) -> float:
    """The least processor time of some runs, which others on the machine do not disturb."""
    found = []
    for _ in range(times):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found)


def of_one_thread() -> tuple[float, dict[int, float]]:
    """Operations a second of a product as members have them, and seconds of the forces between so many members."""
    tall, pairs = torch.randn(64, 1 << 16), {}
    rate = 2 * 64 * 64 * (1 << 16) / least_seconds(lambda: tall @ tall.T)
    for members in (4, 16, 64, 256, 1024):
        positions = torch.randn(members, 2 * members, dtype=torch.float64)
        gram, method = positions @ positions.T, be.Repulsive(num_members=members)
        pairs[members] = least_seconds(lambda: method.forces(gram, 25_000), 3)  # noqa: B023
    return rate, pairs


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help="be one of the ranks")
    parser.add_argument("--messages", action="store_true", help="as a rank, time messages only")
    parser.add_argument("--latency", type=float, help="seconds of a message")
    parser.add_argument("--bandwidth", type=float, help="bytes a second")
    parser.add_argument("--figure", metavar="FILE", help="where the plot goes")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often all is measured; the least time counts")
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.messages)
        return
    # Whoever else uses the machine disturbs some turns; the least time is the one that was disturbed least.
    ranks, alone, gradients = [], [], []
    for _ in range(asked.turns):
        ranks.append(on_ranks(2))
        torch.set_num_threads(2)
        alone.append({name: step_seconds(method, "loop") for name, method in METHODS.items()})
        torch.set_num_threads(1)
        gradients.append(step_seconds(METHODS["deep ensemble"], "loop") / MEMBERS)
    print("| | two ranks, ms | one process, ms | ratio | calls in a step | kB sent in a step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in METHODS:
        ours, theirs = (1e3 * min(turn[name] for turn in turns) for turns in (ranks, alone))
        told = ranks[0]["told"][name]
        print(f"| {name} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} ", end="")
        print(f"| {told['calls']:.1f} | {told['bytes'] / 1e3:.1f} |")
    start = min(turn["call"] for turn in ranks)
    peer = max(on_ranks(MANY, "--messages")["call"] - start, 0.0) / (MANY - 2)
    rate, pairs = of_one_thread()
    example = network()
    weights = sum(leaf.numel() for leaf in example.parameters())
    bandwidth = asked.bandwidth or max(turn["bandwidth"] for turn in ranks)
    measured = Measured(start, peer, bandwidth, rate, pairs)
    if asked.latency:
        measured = replace(measured, start=asked.latency, peer=asked.latency)
    job = Job(min(gradients), weights, ROWS, CLASSES, MEMBERS)
    print(
        f"\ngradient {1e3 * job.gradient:.1f} ms, of {weights} weights; a call {1e6 * measured.start:.0f} us, ", end=""
    )
    print(
        f"{1e6 * measured.peer:.0f} us more for each rank; {bandwidth / 1e9:.2f} GB/s; {rate / 1e9:.0f} GFLOP/s; ",
        end="",
    )
    print("forces", ", ".join(f"{1e3 * value:.2f} ms of {members}" for members, value in pairs.items()))
    counts = (2, 4, 16, 64, 256)
    print(f"\n| ranks, {MEMBERS} members on each | {' | '.join(map(str, counts))} |")
    print("| --- |" + " --- |" * len(counts))
    for space in SPACES:
        print(f"| {space} | {' | '.join(f'{efficiency(space, job, count, measured):.2f}' for count in counts)} |")
    if asked.figure:
        draw(measured, job, asked.figure)


if __name__ == "__main__":
    main()
