"""A stream of generated rows whose training is killed within epochs, and resumed: same bits, and no more memory.

python tests/stream_kill.py --rows 1000000 --batch 1000 --epochs 3 --kills 5

Rows are made from the number of their batch and held by nobody. Every run is a child of its own that is ended by
SIGKILL after a step within an epoch; the last one is left alone. torch is imported once, hence children are forked.
What they end with is compared, bit for bit, with a run that was not disturbed. Prints a line of JSON of what was seen;
memory is that of a run with few rows, of one with all of them, and of the last one.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.training.run_folders import checkpoint

FEATURES = 20


def network() -> nn.Module:
    """Has dropout, so that steps draw random numbers of their own."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1))


class Killed(be.Callback):
    """Ends the process after a step, counted through all epochs."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, info: dict[str, Tensor]) -> None:
        """No file is closed, nothing is flushed."""
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(asked: argparse.Namespace, folder: Path, kill_at: int = 0) -> None:
    """Train on rows as they are made; go on if something is there."""
    steps = asked.rows // asked.batch

    def batches():
        number = 0
        while True:
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(asked.batch, FEATURES, generator=generator)
            yield x, x[:, :1] - x[:, 1:2]
            number += 1

    be.fit(
        be.Task(network, be.Gaussian(0.1)),
        be.DeepEnsemble(num_members=2, schedule="cosine"),
        be.Stream(batches, num_data=asked.rows, steps_per_epoch=steps),
        epochs=asked.epochs,
        batch_size=None,
        executor="vmap",
        checkpoint=folder,
        checkpoint_every=f"{max(1, steps // 10)} steps",
        resume=True,
        callbacks=[Killed(kill_at)],
        progress=False,
    )


def memory(line: str) -> float:
    """MiB, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith(line)).split()[1]) / 1024


def run_child(asked: argparse.Namespace, folder: Path, kill_at: int = 0) -> float | None:
    """Train in a process of its own: None if it was killed, otherwise by how many MiB it grew at most."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            before = memory("VmRSS")
            train(asked, folder, kill_at)
            os.write(writer, json.dumps(memory("VmHWM") - before).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    said = os.read(reader, 100)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != (-signal.SIGKILL if kill_at else 0):
        raise RuntimeError(f"a child ended with {code}")
    return None if kill_at else json.loads(said)


def outcome(folder: Path) -> tuple[dict[str, Tensor], list[list[float]]]:
    """All that a run has come to: its state, and the losses of its members in every epoch."""
    found = checkpoint.read(folder)
    return checkpoint._flatten(found.state, "state"), [row["loss"] for row in found.history]


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser()
    for name, usual in (("rows", 1_000_000), ("batch", 1000), ("epochs", 3), ("kills", 5)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked, start = parser.parse_args(), time.perf_counter()
    torch.set_num_threads(1)
    steps = asked.rows // asked.batch
    within = [step for step in range(2, asked.epochs * steps) if step % steps > 1]
    kills = sorted(random.Random(0).sample(within, asked.kills))
    with tempfile.TemporaryDirectory() as root:
        few = argparse.Namespace(rows=4 * asked.batch, batch=asked.batch, epochs=1)
        train(few, Path(root) / "warm-up")  # what torch loads on first use, the children have already
        peaks = [run_child(few, Path(root) / "few rows"), run_child(asked, Path(root) / "undisturbed")]
        folder, stood = Path(root) / "killed", []
        for kill in kills:
            run_child(asked, folder, kill_at=kill)
            progress = checkpoint.read(folder).run["progress"]
            stood.append(progress["epoch"] * steps + progress["step"])
        peaks.append(run_child(asked, folder))
        (expected, told), (found, told_after) = outcome(Path(root) / "undisturbed"), outcome(folder)
    same = found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    seen = {"steps of an epoch": steps, "killed after": kills, "resumed from": stood, "grew by MiB": peaks}
    seen |= {"same bits": same and told == told_after, "seconds": round(time.perf_counter() - start, 1)}
    print(json.dumps(seen))
    sys.exit(not seen["same bits"])


if __name__ == "__main__":
    main()
