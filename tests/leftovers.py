"""What processes hold and leave behind, read off /proc: memory, descriptors, processes, shared memory, files."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "BAYESEMBLE_SOAK"  # a variable that all processes of a soak inherit


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    memory: int
    """Resident bytes."""
    descriptors: int
    sockets: int
    threads: int

    @classmethod
    def now(cls) -> "Held":
        """By this process."""
        own = Path("/proc/self")
        targets = []
        for entry in os.listdir(own / "fd"):
            try:
                targets.append(os.readlink(own / "fd" / entry))
            except OSError:  # the one by which the folder was listed
                continue
        pages = int((own / "statm").read_text().split()[1])
        sockets = sum(target.startswith("socket:") for target in targets)
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(targets), sockets, len(os.listdir(own / "task")))


def marked_processes(mark: str) -> list[str]:
    """Processes other than this one that inherited the mark: what is left of jobs that are over, zombies too."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            dead = words[0] == "Z" and int(words[1]) == os.getpid()
            if dead or f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"{folder.name} ({(folder / 'comm').read_text().strip()})")
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


def shared_memory() -> set[str]:
    """Named semaphores and shared memory of the machine, of POSIX and of System V."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for kind in ("sem", "shm", "msg"):
        table = Path("/proc/sysvipc", kind)
        if table.exists():
            found |= {f"{kind} {line.split()[1]}" for line in table.read_text().splitlines()[1:]}
    return found


def in_use(segment: str) -> bool:
    """Whether a living process has this shared memory or semaphore of POSIX mapped."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and segment in (folder / "maps").read_text():
                return True
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return False


def growth(series: Sequence[float], warm_up: float = 0.2) -> tuple[float, float]:
    """How much a series grows once it is warm: most above its level then, as a share of it, and the slope per entry.

    The level is the median of the first fifth after the warm-up, and so is the value of each stretch of that length.
    """
    warm = list(series[int(warm_up * len(series)) :])
    if len(warm) < 5:
        raise ValueError(f"growth needs 5 entries after the warm-up, these are {len(warm)}")
    length = len(warm) // 5
    levels = [statistics.median(warm[start : start + length]) for start in range(0, len(warm) - length + 1, length)]
    return max(levels) / levels[0] - 1, statistics.linear_regression(range(len(warm)), warm).slope
