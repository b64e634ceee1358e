"""What a step on many ranks would take: a small model, of what `scale.py` measured.

M members of P weights on R ranks, k = M / R on each; batches of n rows with c outputs. Measured are

    g         seconds of a member's gradient; for dense networks of P weights it is 6 P n / rate
    start     seconds of a collective operation of two ranks with nothing to tell
    peer      seconds that it takes for each rank more
    bandwidth bytes that a rank sends in a second
    rate      operations a second of a product of matrices
    pairs(M)  seconds that forces between M members take, once their products are known; each rank works them out

    members alone     t = k g
    function space    t = k g + call + 4 (M - k) n c / bandwidth + 2 M (M + k) n c / rate + pairs(M)
    weight space      t = k g + an eighth of
                          (3 blocks + 1) call + 3 x 4 k P (R - 1) / R / bandwidth + 4 k M P / rate + pairs(M)
    call              start + (R - 2) peer
    blocks            P / 131,072, rounded up: weights of each member that are told in one go

Weight space works out the repulsion in each eighth step, as it does in networks of over 10,000 weights. The efficiency
is the share of a step that goes into gradients, k g / t. Ranks that wait for the slowest of them are not in it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MEASURING = 0.125  # share of the steps in which weight space works out the repulsion
BLOCK = 1 << 17  # weights of a member that go into one message
SPACES = ("members alone", "function space", "weight space")


@dataclass(frozen=True)
class Measured:
    """What the model goes by, all in seconds and bytes."""

    start: float
    peer: float
    bandwidth: float
    rate: float
    pairs: dict[int, float]

    def of_pairs(self, members: int) -> float:
        """Seconds of the forces between so many members, between those that were measured."""
        sizes = sorted(self.pairs)
        times = [self.pairs[size] for size in sizes]
        return float(np.exp(np.interp(np.log(members), np.log(sizes), np.log(times))))

    def of_gradient(self, weights: float, rows: int) -> float:
        """Seconds of a dense network's gradient."""
        return 6 * weights * rows / self.rate


@dataclass(frozen=True)
class Job:
    """A network, and its members."""

    gradient: float
    weights: float
    rows: int
    outputs: int
    each: int
    """Members on each rank."""


def seconds(space: str, job: Job, ranks: int, measured: Measured) -> float:
    """Of a step."""
    told, members = job.each * job.gradient, job.each * ranks
    if space == "members alone":
        return told
    call = measured.start + (ranks - 2) * measured.peer if ranks > 1 else 0.0
    if space == "function space":
        told += measured.of_pairs(members) + 2 * members * (members + job.each) * job.rows * job.outputs / measured.rate
        return told + call + 4 * (members - job.each) * job.rows * job.outputs / measured.bandwidth
    products = 4 * job.each * members * job.weights / measured.rate
    calls = 3 * math.ceil(job.weights / BLOCK) + 1
    sent = 3 * 4 * job.each * job.weights * (ranks - 1) / ranks
    return told + MEASURING * (measured.of_pairs(members) + products + calls * call + sent / measured.bandwidth)


def efficiency(space: str, job: Job, ranks: int, measured: Measured) -> float:
    """The share of a step that goes into gradients."""
    return job.each * job.gradient / seconds(space, job, ranks, measured)


def dense(weights: float, each: int, measured: Measured, rows: int = 64, outputs: int = 10) -> Job:
    """Members that are dense networks of three layers."""
    return Job(measured.of_gradient(weights, rows), weights, rows, outputs, each)


def draw(measured: Measured, convolutional: Job, path: str) -> None:
    """Efficiency by ranks, by weights and by members."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "scale", "svg.fonttype": "none"})  # same figures, same file; text is text
    drawing, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
    ranks = [2**power for power in range(9)]
    weights = [float(number) for number in np.logspace(4, 8, 17)]
    counts = [1, 2, 4, 8, 16]
    curves: list[tuple[str, str, Sequence[float], Callable[[str, float], float]]] = [
        (
            f"small ConvNet, {convolutional.each} members a rank",
            "ranks",
            ranks,
            lambda space, x: efficiency(space, convolutional, int(x), measured),
        ),
        (
            "dense networks, 64 ranks, 4 members a rank",
            "weights of a network",
            weights,
            lambda space, x: efficiency(space, dense(x, 4, measured), 64, measured),
        ),
        (
            "dense networks of a million weights, 64 ranks",
            "members, all ranks together",
            [64 * count for count in counts],
            lambda space, x: efficiency(space, dense(1e6, int(x) // 64, measured), 64, measured),
        ),
    ]
    for panel, (title, label, places, value) in zip(panels, curves, strict=True):
        for space, style in zip(SPACES, ("-", "o-", "s-"), strict=True):
            panel.semilogx(places, [value(space, place) for place in places], style, markersize=4, label=space, base=10)
        panel.set(xlabel=label, ylim=(0, 1.05))
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    for panel, places in ((panels[0], ranks[::2]), (panels[2], [64 * count for count in counts])):
        panel.set_xticks(places, [str(place) for place in places], minor=False)
        panel.set_xticks([], minor=True)
    panels[0].set_ylabel("efficiency by the model")
    panels[0].legend(frameon=False, loc="lower left")
    drawing.savefig(path, metadata={"Date": None})
