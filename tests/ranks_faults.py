"""Jobs of two ranks that are disturbed on purpose, under torchrun; each has to end with the bits of an undisturbed one.

python tests/ranks_faults.py kill 20      # SIGKILL of a rank at a random moment, --max-restarts 2
python tests/ranks_faults.py write 10     # SIGKILL of a rank that is writing its file of a checkpoint
python tests/ranks_faults.py stop         # SIGSTOP of a rank, noticed by the timeout
python tests/ranks_faults.py hosts        # two hosts in network namespaces (needs root); the link is cut, and mended
"""

import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bayesemble as be
from bayesemble.training.run_folders import tensor_files

LIMIT = 10.0
METHODS = {
    "weight": be.Repulsive(num_members=5),
    "function": be.Repulsive(num_members=5, space="function"),
    "apart": be.DeepEnsemble(num_members=5),
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
HOSTS = {"first": "10.77.0.1", "second": "10.77.0.2"}


def network() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def rank(folder: str, kind: str) -> None:
    """One rank of a job, which may end itself in the first attempt; prints a digest of the weights."""
    torch.set_num_threads(1)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    own, attempt = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    disturbed = os.environ.get("DISTURB", "").split()  # rank, seconds, signal
    if (writing := os.environ.get("KILL_WRITING", "").split()) and attempt == "0" and own == int(writing[0]):
        _die_writing(*map(int, writing[1:]))

    def disturb() -> None:
        time.sleep(float(disturbed[1]))
        os.kill(os.getpid(), int(disturbed[2]))

    def on_epoch(_: Any, row: dict[str, Any]) -> None:
        if disturbed and attempt == "0" and own == int(disturbed[0]) and row["epoch"] == 1:
            threading.Thread(target=disturb, daemon=True).start()

    task = be.Task(network, be.Gaussian(noise=0.3), be.NormalPrior(std=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ensemble = be.fit(
            task,
            METHODS[kind],
            (x, x[:, 0]),
            epochs=40,
            batch_size=16,
            executor=be.Ranks(timeout=LIMIT),
            checkpoint=folder,
            checkpoint_every="2 steps",
            resume=True,
            progress=False,
            on_epoch=on_epoch,
        )
    digest = hashlib.sha256()
    for _, leaf in sorted(ensemble.state.members.params.items()):
        digest.update(leaf.numpy().tobytes())
    if own == 0:
        print("DIGEST", digest.hexdigest()[:16], flush=True)
    torch.distributed.destroy_process_group()


def _die_writing(number: int, share: int) -> None:
    """Let this process end at the file of that number, when so many hundredths of it are there."""
    plain, seen = tensor_files.save_file, itertools.count(1)

    def save_file(tensors: Any, path: Path, metadata: Any) -> None:
        last = next(seen) == number
        plain(tensors, path, metadata)
        if last:
            content = path.read_bytes()
            (path if share == 100 else path.with_name(".tmpAb3xYz")).write_bytes(content[: len(content) * share // 100])
            if share < 100:
                path.write_bytes(b"")
            os.kill(os.getpid(), signal.SIGKILL)

    tensor_files.save_file = save_file


def job(folder: Path, kind: str, disturbed: str = "", restarts: int = 0, writing: str = "") -> str:
    """What a job of two ranks on one host comes to."""
    command = [*TORCHRUN, "--standalone", f"--max-restarts={restarts}", "--nproc-per-node=2", __file__, "rank"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DISTURB": disturbed, "KILL_WRITING": writing}
    done = subprocess.run(
        [*command, str(folder), kind], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return _digest(done.stdout)


def _digest(told: str) -> str:
    found = [line.split()[1] for line in told.splitlines() if line.startswith("DIGEST")]
    return found[-1] if found else "nothing"


def kill(root: Path, times: int) -> None:
    """SIGKILL of either rank at random moments."""
    expected = {kind: job(root / kind, kind) for kind in METHODS}
    for number in range(times):
        kind = list(METHODS)[number % len(METHODS)]
        disturbed = f"{random.randrange(2)} {random.uniform(0, 4):.3f} {int(signal.SIGKILL)}"
        found = job(root / str(number), kind, disturbed, restarts=2)
        print(f"{kind:10} {disturbed:12} {'the same bits' if found == expected[kind] else 'OTHER BITS ' + found}")


def write(root: Path, times: int) -> None:
    """SIGKILL of either rank while it writes: its members, or what all share, nothing, half or all of the file."""
    expected = {kind: job(root / kind, kind) for kind in METHODS}
    for number in range(times):
        kind = list(METHODS)[number % len(METHODS)]
        writing = f"{number % 2} {random.randrange(2, 30)} {random.choice((0, 50, 100))}"
        found = job(root / str(number), kind, restarts=1, writing=writing)
        left = [one.name for one in (root / str(number)).glob(".writing-*")]
        same = "the same bits" if found == expected[kind] else f"OTHER BITS {found}"
        print(f"{kind:10} rank, file, % of it: {writing:8} {same}, left behind: {left}", flush=True)


def stop(root: Path) -> None:
    """A rank that hangs: the others end by the timeout, and the job starts again."""
    expected = job(root / "plain", "weight")
    found = job(root / "stopped", "weight", f"1 0.5 {int(signal.SIGSTOP)}", restarts=1)
    print("a rank that hangs:", "the same bits" if found == expected else f"OTHER BITS {found}")


def hosts(root: Path) -> None:
    """Two hosts with a link between them, which is cut in the middle of training."""
    names = list(HOSTS)
    try:
        _plug()
        expected, (found, _) = job(root / "plain", "weight"), _on_hosts(root / "hosts")
        print("two hosts:", "the same bits" if found == expected else f"OTHER BITS {found}")
        cut = threading.Thread(target=_cut_after, args=(root / "cut" / "checkpoint-000006",))
        cut.start()
        found, seconds = _on_hosts(root / "cut")
        cut.join()
        print(f"with the link cut: {found}, all over in {seconds:.0f} s")
        _in(names[0], "ip", "link", "set", "bee-first", "up")
        found, _ = _on_hosts(root / "cut")
        print("resumed:", "the same bits" if found == expected else f"OTHER BITS {found}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", f"bee-{name}"], check=False)


def _in(name: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", f"bee-{name}", *command], check=True)


def _plug() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "add", f"bee-{name}"], check=True)
    subprocess.run(["ip", "link", "add", "bee-first", "type", "veth", "peer", "name", "bee-second"], check=True)
    for name, address in HOSTS.items():
        subprocess.run(["ip", "link", "set", f"bee-{name}", "netns", f"bee-{name}"], check=True)
        _in(name, "ip", "addr", "add", f"{address}/24", "dev", f"bee-{name}")
        _in(name, "ip", "link", "set", f"bee-{name}", "up")
        _in(name, "ip", "link", "set", "lo", "up")


def _cut_after(folder: Path) -> None:
    end = time.monotonic() + 120
    while not folder.is_dir() and time.monotonic() < end:
        time.sleep(0.05)
    _in("first", "ip", "link", "set", "bee-first", "down")


def _on_hosts(folder: Path) -> tuple[str, float]:
    begin, nodes = time.monotonic(), []
    for number, name in enumerate(HOSTS):
        where = ["--nnodes=2", f"--node-rank={number}", f"--master-addr={HOSTS['first']}", "--master-port=29555"]
        command = ["ip", "netns", "exec", f"bee-{name}", *TORCHRUN, *where, "--nproc-per-node=1", __file__, "rank"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"bee-{name}"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        nodes.append(subprocess.Popen([*command, str(folder), "weight"], env=environment, **pipes))
    told = [node.communicate(timeout=300)[0] for node in nodes]
    return _digest(told[0]), time.monotonic() - begin


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as place:
            modes: dict[str, Any] = {"kill": kill, "write": write, "stop": stop, "hosts": hosts}
            modes[sys.argv[1]](Path(place), *map(int, sys.argv[2:]))
