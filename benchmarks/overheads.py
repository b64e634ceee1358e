"""What callbacks and accumulation cost beside the steps themselves: processor time, best of many short turns.

Both are less than the noise of the steps on a busy machine, so that each is timed alone and then set beside the time of
a step: callbacks as the training loop calls them, and accumulation with gradients that are given. What it does with
them is to cut the batch and to add them up, one addition for each weight and part. Turns are short and alternate, since
a long one meets whatever else the machine does: `OMP_NUM_THREADS=1 python benchmarks/overheads.py`.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

import bayesemble as be
from bayesemble.core.types import Batch, Clock
from bayesemble.execute.executor import Executor
from bayesemble.execute.loop import Loop
from bayesemble.execute.vmap import Vmap
from bayesemble.methods.base import Context
from bayesemble.training.callbacks.base import Callbacks
from bayesemble.training.stopping import stop_requests


class Looks(be.Callback):
    """A callback that is called at each step and epoch, and does nothing."""

    def on_step(self, step: int, info: object) -> None:
        """Nothing."""

    def on_epoch(self, state: object, row: object) -> None:
        """Nothing."""


def network() -> nn.Module:
    """One of a usual size for tables."""
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def best(turns: int, *runs: Callable[[], object]) -> list[float]:
    """The least processor time of each, in turns."""
    times = [[] for _ in runs]
    for _ in range(turns):
        for own, run in zip(times, runs, strict=True):
            begin = time.process_time()
            run()
            own.append(time.process_time() - begin)
    return [min(own) for own in times]


def callbacks() -> tuple[float, float]:
    """Seconds that two callbacks add to a step, and seconds of a step without them."""
    x = torch.randn(2048, 16, generator=torch.Generator().manual_seed(0))
    data, task = (x, (x[:, 0] > 0).long()), be.Task(network, be.Categorical())
    called, info = Callbacks([Looks(), Looks()]), {"loss": torch.zeros(5)}

    def fit(epochs: int) -> None:
        method = be.DeepEnsemble(num_members=5)
        be.fit(task, method, data, epochs=epochs, batch_size=256, executor="vmap", progress=False)

    with stop_requests(by_sigterm=False) as request:

        def call() -> None:
            if called.steps:
                with request.noting():
                    called.step(1, info)

        more = best(2000, call)[0]
    short, long = best(10, lambda: fit(2), lambda: fit(10))
    return more, (long - short) / (8 * 8)


class Given:
    """In place of an executor: gradients that are there already, so that only the work with them takes time."""

    def __init__(self, values: torch.Tensor, gradients: dict[str, torch.Tensor]) -> None:
        self.found = values, gradients

    def gradients(self, *_: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The same for every batch."""
        return self.found


def accumulation(executor: Executor) -> tuple[float, float]:
    """Seconds to cut a batch in four and add up four gradients, and seconds that these gradients take."""
    x = torch.randn(1024, 16, generator=torch.Generator().manual_seed(0))
    y, task = (x[:, 0] > 0).long(), be.Task(network, be.Categorical())
    bound = task.bind(len(x), x[:4])
    members = bound.new_members(5, seed=0)
    clock = Clock(step=0, total_steps=1, seed=0)
    pieces = [Batch(a, b) for a, b in zip(x.split(256), y.split(256), strict=True)]

    def one_by_one(parts: Context) -> None:
        for piece in pieces:  # none is kept: memory that is used again is quicker
            parts.gradients(members, piece)

    parts = Context(bound, executor, clock)
    given = Given(*parts.gradients(members, pieces[0]))
    whole = Context(replace(bound, max_batch=256), given, clock)
    alone = Context(bound, given, clock)
    together, apart = best(2000, lambda: whole.gradients(members, Batch(x, y)), lambda: one_by_one(alone))
    return together - apart, best(100, lambda: one_by_one(parts))[0]


if __name__ == "__main__":
    more, step = callbacks()
    print(f"two callbacks: {100 * more / step:+.2f} %, {1e6 * more:.1f} us beside a step of {1e3 * step:.2f} ms")
    for executor in (Loop(), Vmap()):
        more, parts = accumulation(executor)
        beside = f"{1e3 * more:.3f} ms beside {1e3 * parts:.2f} ms of gradients"
        print(f"accumulation in four parts, {type(executor).__name__}: {100 * more / parts:+.1f} %, {beside}")
