"""A soak: fits, predictions, saves and loads for a long time, while ranks come and go under torchrun.

    python tests/ranks_soak.py --minutes 30

Each round, one after the other:

- a job of 2, 1 or 3 ranks trains an ensemble, each rank predicts, and loads what the first one saved. In every second
  round a rank is killed (SIGKILL) at a random moment, and a job with another number of ranks goes on from there;
- this process, which lives all the time, loads the run and compares it with what it trained itself, then fits,
  predicts, saves and loads on its own;
- two ranks that live all the time, too, do the same together.

In the end it says how the memory of those that live all the time grew, and what was left behind: processes, folders,
shared memory and semaphores, sockets, descriptors. It ends with 1 if memory grew by more than 5 % or anything was left.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bayesemble as be
from leftovers import MARK, Held, growth, in_use, marked_processes, shared_memory

ALLOWED, CLOSE = 0.05, 1e-3
RANKS = (2, 1, 3)
METHODS = {
    "weight": be.Repulsive(num_members=5),
    "function": be.Repulsive(num_members=5, space="function"),
    "apart": be.DeepEnsemble(num_members=5),
}
ROWS = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
REPEATS = 6  # turns of each process that lives all the time, in a round


def network() -> nn.Module:
    """A network of some 19,000 weights."""
    return nn.Sequential(nn.Linear(3, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))


def train(kind: str, executor: Any, folder: Path | None = None, epochs: int = 6, **settings: Any) -> be.Ensemble:
    """A short run, in a folder or in none."""
    task = be.Task(network, be.HeteroscedasticGaussian(), be.NormalPrior(std=1.0))
    kept = {"checkpoint": folder, "checkpoint_every": "2 steps", "resume": True} if folder else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short runs are warned of
        return be.fit(
            task,
            METHODS[kind],
            (ROWS, ROWS[:, 0].sin()),
            epochs=epochs,
            batch_size=32,
            executor=executor,
            progress=False,
            **kept,
            **settings,
        )


def saved_and_loaded(ensemble: be.Ensemble, folder: Path, writes: bool = True, wait: Any = None) -> None:
    """Predict, save, load, and predict the same numbers again."""
    before = ensemble.predict(ROWS, batch_size=100).mean
    if writes:
        ensemble.save(folder)
    if wait is not None:
        wait()
    after = be.load(folder, network).predict(ROWS, batch_size=100).mean
    assert torch.equal(before, after), "what was loaded predicts other numbers than what was saved"


def noted(folder: Path, **more: Any) -> None:
    """Write down what this process holds."""
    with (folder / f"held-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(Held.now()) | more) + "\n")


# --- ranks ---------------------------------------------------------------------------------------------------------


def coming(folder: Path, kind: str) -> None:
    """A rank of a job that trains one run to its end."""
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    slowly = lambda *_: time.sleep(0.15)  # so that a rank can be killed between two checkpoints  # noqa: E731
    ensemble = train(kind, be.Ranks(timeout=30), folder / "run", on_epoch=slowly)
    first = torch.distributed.get_rank() == 0
    saved_and_loaded(ensemble, folder / "saved", first, torch.distributed.barrier)
    noted(folder)
    torch.distributed.destroy_process_group()


def staying(folder: Path) -> None:
    """A rank of the job that lives all the time: it waits for the next round, and ends when its folder says so."""
    number, own = 0, int(os.environ["RANK"])
    while True:
        while not (folder / f"go-{number}").exists():
            if (folder / "end").exists():
                torch.distributed.destroy_process_group()
                return
            time.sleep(0.1)
        for repeat in range(REPEATS):
            kind = list(METHODS)[(number + repeat) % len(METHODS)]
            place = folder / f"{number}-{repeat}"
            ensemble = train(kind, be.Ranks(timeout=60), place / "run", epochs=2)
            saved_and_loaded(ensemble, place / "saved", own == 0, torch.distributed.barrier)
            torch.distributed.barrier()
            if own == 0:
                shutil.rmtree(place)
            noted(folder, rank=own)
        torch.distributed.barrier()
        if own == 0:
            (folder / f"done-{number}").touch()
        number += 1


# --- the process that starts them ----------------------------------------------------------------------------------


def torchrun(ranks: int, *arguments: str) -> subprocess.Popen[str]:
    """Start a job."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def job(folder: Path, kind: str, ranks: int, kill: bool) -> bool:
    """Run a job, in which a rank may be killed at a random moment; whether it came to its end."""
    for told in folder.glob("pid-*"):
        told.unlink()
    running = torchrun(ranks, "coming", str(folder), kind)
    if kill:
        chosen, end = folder / f"pid-{random.randrange(ranks)}", time.monotonic() + 60
        while not (chosen.exists() and chosen.read_text()) and running.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(random.uniform(0.2, 2.5))
        if running.poll() is None:
            with suppress(ProcessLookupError):  # it was through
                os.kill(int(chosen.read_text()), signal.SIGKILL)
    told = running.communicate(timeout=180)[1]
    if running.returncode and not kill:
        raise RuntimeError(f"a job of {ranks} ranks ended with {running.returncode}:\n{told[-3000:]}")
    return running.returncode == 0


def come_and_go(folder: Path, number: int, kind: str, expected: torch.Tensor) -> str:
    """Jobs that train one run to its end, which comes to what one process trained."""
    folder.mkdir()
    ranks, killed = RANKS[number % len(RANKS)], number % 2 == 1
    story = f"{kind:8} on {ranks}"
    if not job(folder, kind, ranks, kill=killed):
        other = random.choice([count for count in RANKS if count != ranks])
        story += f", killed, on {other}"
        job(folder, kind, other, kill=False)
    ensemble = be.load(folder / "run", network)
    difference = float((ensemble.predict(ROWS).mean - expected).abs().max())
    assert difference < CLOSE, f"{story}: {difference} from one process"
    saved_and_loaded(ensemble, folder / "again")
    held = [json.loads(file.read_text().splitlines()[-1]) for file in folder.glob("held-*.jsonl")]
    shutil.rmtree(folder)
    return f"{story}: {difference:.0e} from one process, ranks held {max(one['memory'] for one in held) / 1e6:.0f} MB"


def at_home(folder: Path, number: int) -> list[dict[str, Any]]:
    """What this process does on its own in a round, and what it holds after each turn."""
    held = []
    for repeat in range(REPEATS):
        ensemble = train(list(METHODS)[(number + repeat) % len(METHODS)], "auto", folder / "run", epochs=2)
        saved_and_loaded(ensemble, folder / "saved")
        shutil.rmtree(folder)
        held.append(asdict(Held.now()))
    return held


def stay(folder: Path, number: int, long: subprocess.Popen[str]) -> None:
    """A round of the ranks that live all the time."""
    (folder / f"go-{number}").touch()
    end = time.monotonic() + 180
    while not (folder / f"done-{number}").exists():
        if long.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the ranks that live all the time ended, or hang")
        time.sleep(0.05)
    (folder / f"go-{number}").unlink()
    (folder / f"done-{number}").unlink()


def grown(name: str, series: list[dict[str, Any]]) -> Iterator[str]:
    """Say how what a process holds grew, and yield what is too much."""
    memory = [one["memory"] for one in series]
    share, slope = growth(memory)
    print(f"{name}: {memory[len(memory) // 5] / 1e6:.1f} MB when warm, {memory[-1] / 1e6:.1f} MB in the end, ", end="")
    print(f"most {100 * share:+.1f} %, {slope / 1e3:+.1f} kB a turn over {len(memory)} turns")
    if share > ALLOWED:
        yield f"{name}: memory grew by {100 * share:.1f} %"
    for what in ("descriptors", "sockets", "threads"):
        found = [one[what] for one in series[len(series) // 5 :]]
        print(f"    {what} {found[0]} when warm, {found[-1]} in the end")
        if found[-1] > found[0]:
            yield f"{name}: {what} went from {found[0]} to {found[-1]}"


def left_behind(mark: str, shared: set[str], folders: dict[str, Path]) -> Iterator[str]:
    """Whatever is there that was not before; processes get some seconds to end.

    Shared memory that is in use once they have ended belongs to others on the machine.
    """
    end = time.monotonic() + 10
    while marked_processes(mark) and time.monotonic() < end:
        time.sleep(0.2)
    yield from (f"process {one}" for one in marked_processes(mark))
    yield from (f"shared memory {one}" for one in sorted(shared_memory() - shared) if not in_use(one))
    for name, folder in folders.items():
        yield from (f"{name}: {one.relative_to(folder)}" for one in sorted(folder.rglob("*")))


def torch_folders(place: Path) -> int:
    """Folders of logs, all empty, that torchrun itself leaves in the place for temporary files; they are removed."""
    found = list(place.glob("torchelastic_*"))
    for folder in found:
        assert not [one for one in folder.rglob("*") if one.is_file()], f"{folder} is not empty"
        shutil.rmtree(folder)
    return len(found)


def soak(minutes: float, root: Path) -> int:
    """Rounds until the time is up; 1 if something grew or was left."""
    torch.set_num_threads(1)
    mark, temporary, runs, together = uuid.uuid4().hex, root / "temporary", root / "runs", root / "together"
    for folder in (temporary, runs, together):
        folder.mkdir()
    os.environ |= {MARK: mark, "TMPDIR": str(temporary)}
    shared, held, number, end = shared_memory(), [], 0, time.monotonic() + 60 * minutes
    expected = {kind: train(kind, "auto").predict(ROWS).mean for kind in METHODS}
    long = torchrun(2, "staying", str(together))
    try:
        while time.monotonic() < end:
            kind, begin = list(METHODS)[number // len(RANKS) % len(METHODS)], time.monotonic()
            story = come_and_go(runs / str(number), number, kind, expected[kind])
            held += at_home(runs / "home", number)
            stay(together, number, long)
            seconds = time.monotonic() - begin
            print(f"round {number:3} {story}; here {held[-1]['memory'] / 1e6:.0f} MB; {seconds:.0f} s", flush=True)
            number += 1
        (together / "end").touch()
        long.communicate(timeout=60)
    finally:
        long.terminate()  # torchrun hands it on
        long.wait(30)
    series = {f"process {os.getpid()} that starts the jobs": held}
    for file in sorted(together.glob("held-*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        series[f"rank {rows[0]['rank']} that stays"] = rows
        file.unlink()
    (together / "end").unlink()
    bad = [what for name, rows in series.items() for what in grown(name, rows)]
    print(f"torchrun left {torch_folders(temporary)} empty folders torchelastic_*, one for each job")
    left = list(left_behind(mark, shared, {"temporary": temporary, "runs": runs, "together": together}))
    print("left behind:", ", ".join(left) or "nothing")
    print("NOT WELL: " + "; ".join(bad + left) if bad or left else "well")
    return int(bool(bad or left))


def main() -> int:
    """Read what is asked, and soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    with tempfile.TemporaryDirectory() as place:
        return soak(parser.parse_args().minutes, Path(place))


if __name__ == "__main__":
    if sys.argv[1:2] == ["coming"]:
        coming(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["staying"]:
        staying(Path(sys.argv[2]))
    else:
        sys.exit(main())
