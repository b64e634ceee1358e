"""Kills training runs at random moments and at each step of writing, and checks that each, resumed, ends undisturbed.

Run by test_checkpoint.py in a process of its own: torch is imported once, and every run is a forked child.
Prints one line of JSON with what was seen.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.training.run_folders import checkpoint, tensor_files
from helpers import dropout_mlp, table

EPOCHS = 8
FIRST_WRITES = 1 + 2 * 8  # the lock is flushed; steps of two writes: one file, five flushes, a rename, a flush
LATER_WRITE = 13  # the same, then a rename and four deletions of the oldest one


def train(folder: Path) -> be.Ensemble:
    x, y = table(64)
    return be.fit(
        be.Task(dropout_mlp, be.Categorical()),
        be.DeepEnsemble(num_members=2, bootstrap=True, anchored=True, schedule="cosine"),
        (x, y),
        epochs=EPOCHS,
        batch_size=32,
        validation=(x, y),
        keep_best=True,
        executor="vmap",
        checkpoint=folder,
        resume=True,
        progress=False,
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(number: int) -> None:
    """Kill this process at its n-th step of writing: before a flush, a rename, a deletion, or half-way in a file."""
    calls = 0

    def counting(original):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == number:
                die()
            return original(*args, **kwargs)

        return wrapped

    def half_written(tensors, path, metadata):
        nonlocal calls
        calls += 1
        if calls == number:
            Path(path).write_bytes(os.urandom(500))
            die()
        return save_file(tensors, path, metadata)

    save_file = tensor_files.save_file
    tensor_files.save_file = half_written
    os.fsync = counting(os.fsync)
    os.unlink = counting(os.unlink)
    Path.replace = counting(Path.replace)


def run_child(folder: Path, delay: float | None = None, call: int | None = None) -> bool:
    """Train in a child; kill it after a delay or at a step of writing. True if it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            if call is not None:
                die_at_call(call)
            train(folder)
            os._exit(0)
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr)
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a child failed instead of being killed")
    return os.WIFSIGNALED(status)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.read(folder)
    return checkpoint._flatten(found.state, "state") | checkpoint._flatten(found.best, "best")


def losses(folder: Path) -> list:
    return [(row["epoch"], row["loss"], row["validation_loss"]) for row in checkpoint.read(folder).history]


def main() -> None:
    root, timed, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
    torch.set_num_threads(1)
    train(root / "warm-up")  # what torch imports on first use, the children have already
    start = time.perf_counter()
    assert not run_child(root / "undisturbed")
    length = time.perf_counter() - start
    expected, expected_losses = tensors(root / "undisturbed"), losses(root / "undisturbed")
    plans = [{"delay": chance.uniform(0, length)} for _ in range(timed)]
    plans += [{"call": FIRST_WRITES + 1 + step} for step in range(LATER_WRITE)]
    seen = {"killed": 0, "unfinished": 0, "leftovers": 0}
    for index, plan in enumerate(plans):
        folder = root / f"run{index}"
        for _ in range(2):  # killed, resumed and killed again
            seen["killed"] += run_child(folder, **plan)
            seen["leftovers"] += any(folder.glob(".writing-*"))
        if checkpoint.exists(folder):
            seen["unfinished"] += checkpoint.read(folder).run["progress"]["epoch"] < EPOCHS
        assert not run_child(folder)
        found = tensors(folder)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), f"run {index} {plan}: {name} differs"
        assert losses(folder) == expected_losses
        names = sorted(path.name for path in folder.iterdir())
        assert len(names) == 2, f"only the last two checkpoints should be left, found {names}"
        assert all(name.startswith("checkpoint-") for name in names), names
        shutil.rmtree(folder)
    print(json.dumps(seen))


if __name__ == "__main__":
    with scoped(0):
        main()
