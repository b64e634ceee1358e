"""What ranks cost: seconds of a step on two ranks of one thread each, against one process of two threads.

    python benchmarks/scale.py                   # measures, then says what a model makes of it up to 256 ranks

The model is small and stated: with M members of P weights on R ranks, one member's gradient takes `g` seconds, measured
here, and a message of b bytes takes `latency + b / bandwidth`, both measured here between two processes of one machine.

    members alone     t = (M / R) g
    function space    t = (M / R) g + latency + 4 M rows outputs / bandwidth
    weight space      t = (M / R) g + leaves x (2 latency) + 2 x 4 P (M / R) / bandwidth
    efficiency        t(1) / (R t(R))

A network between machines has another latency and bandwidth: --latency and --bandwidth put them in the place of ours.
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
from typing import Any

import torch
from torch import nn

import bayesemble as be

MEMBERS, ROWS, CLASSES, STEPS, EPOCHS, TURNS = 4, 64, 10, 8, 4, 3
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


def step_seconds(method: be.Method, executor: Any) -> float:
    """The least mean time of a step in an epoch; the first epoch does not count."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS * STEPS, 3, 32, 32, generator=generator)
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = be.fit(
            be.Task(network, be.Categorical()),
            method,
            (x, y),
            epochs=EPOCHS,
            batch_size=ROWS,
            executor=executor,
            progress=False,
        )
    return min(row["seconds"] for row in found.history[1:]) / STEPS


def messages() -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes a second of an all-to-all between two ranks."""

    def seconds(numbers: int) -> float:
        sent, got, times = torch.zeros(numbers), torch.zeros(numbers), []
        for _ in range(20):
            torch.distributed.barrier()
            begin = time.perf_counter()
            torch.distributed.all_to_all_single(got, sent)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    few, many = 2, 1 << 22
    latency = seconds(few)
    return latency, 4 * many / (seconds(many) - latency)


def worker() -> None:
    """One of two ranks: the first one writes down what was measured."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {name: step_seconds(method, be.Ranks(inner="loop")) for name, method in METHODS.items()}
    found["latency"], found["bandwidth"] = messages()
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


def on_two_ranks() -> dict[str, float]:
    """What two ranks of one thread each measure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker"]
    ranks = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, float] = json.loads(told[0])
    return found


def efficiencies(name: str, gradient: float, latency: float, bandwidth: float, per_rank: int) -> list[float]:
    """What the model says for 1 to 256 ranks that hold so many members each."""
    example = network()
    leaves, weights = len(list(example.parameters())), sum(leaf.numel() for leaf in example.parameters())
    found = []
    for ranks in (1, 2, 4, 16, 64, 256):
        told = 0.0
        if ranks > 1 and "functions" in name:
            told = latency + 4 * ranks * per_rank * ROWS * CLASSES / bandwidth
        elif ranks > 1 and "weights" in name:
            told = leaves * 2 * latency + 2 * 4 * weights * per_rank / bandwidth
        found.append(per_rank * gradient / (per_rank * gradient + told))
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help="be one of the ranks")
    parser.add_argument("--latency", type=float, help="seconds of a message")
    parser.add_argument("--bandwidth", type=float, help="bytes a second")
    asked = parser.parse_args()
    if asked.worker:
        worker()
        return
    # Whoever else uses the machine disturbs some turns; the least time is the one that was disturbed least.
    ranks, alone, gradients = [], [], []
    for _ in range(TURNS):
        ranks.append(on_two_ranks())
        torch.set_num_threads(2)
        alone.append({name: step_seconds(method, "loop") for name, method in METHODS.items()})
        torch.set_num_threads(1)
        gradients.append(step_seconds(METHODS["deep ensemble"], "loop") / MEMBERS)
    gradient = min(gradients)
    for name in METHODS:
        ours, theirs = (1e3 * min(turn[name] for turn in turns) for turns in (ranks, alone))
        print(f"{name:30} two ranks {ours:7.1f} ms, one process {theirs:7.1f} ms: {ours / theirs:.2f}")
    latency = asked.latency or min(turn["latency"] for turn in ranks)
    bandwidth = asked.bandwidth or max(turn["bandwidth"] for turn in ranks)
    print(f"gradient {1e3 * gradient:.1f} ms, latency {1e6 * latency:.0f} us, bandwidth {bandwidth / 1e9:.2f} GB/s")
    print("efficiency by the model on 1, 2, 4, 16, 64, 256 ranks with 4 members each")
    for name in METHODS:
        shares = efficiencies(name, gradient, latency, bandwidth, per_rank=4)
        print(f"{name:30} {' '.join(f'{share:.3f}' for share in shares)}")


if __name__ == "__main__":
    main()
