"""How much memory there is, and how much this process has held; on Linux by what `/proc` says."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

MEGABYTE = 1024**2
_NO_LIMIT = 2.0**60  # version 1 of control groups has a number so large for it


def how_many_fit(room: int, each: int) -> int:
    """How many things of a size are handled at a time: as many as fit into the room, but at least one."""
    return max(room // max(each, 1), 1)


def available_memory() -> float:
    """Bytes that can be had: what Linux says is available or can be swapped, else all there are, if that can be known.

    Limits of the process (`ulimit -v`) and of its control group (containers, batch systems) hold where they are lower.
    """
    available = _proc("meminfo", "MemAvailable")
    if available is not None:
        available += _proc("meminfo", "SwapFree") or 0.0
    else:
        sysconf = getattr(os, "sysconf", None)
        available = float(sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")) if sysconf else math.inf
    return min(available, _below_address_limit(), _below_group_limits(Path("/sys/fs/cgroup")))


def _below_address_limit() -> float:
    """Bytes of addresses that this process may still take."""
    try:
        import resource  # not on Windows
    except ImportError:
        return math.inf
    limit, used = resource.getrlimit(resource.RLIMIT_AS)[0], _proc("self/status", "VmSize")
    return math.inf if limit == resource.RLIM_INFINITY or used is None else max(limit - used, 0.0)


def _below_group_limits(root: Path) -> float:
    """Bytes left to the control group of this process and those around it; what files are cached in can be had too."""
    free = math.inf
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers:  # version 2
                free = min(free, _group_free(root, place, "memory.max", "memory.current", ""))
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
                free = min(free, _group_free(root / "memory", place, *names))
    return free


def _group_free(root: Path, place: str, limit: str, usage: str, prefix: str) -> float:
    free, group = math.inf, root / place.strip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # a group without a limit says "max"
            room = float((folder / limit).read_text()) - float((folder / usage).read_text())
            found = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = sum(float(found[f"{prefix}{name}"]) for name in ("active_file", "inactive_file"))
            free = min(free, max(room + cached, 0.0)) if room < _NO_LIMIT else free
        if folder == root:
            break
    return free


def restart_peak() -> float:
    """Bytes that this process holds now. Free memory is given back and the peak starts anew, where Linux lets us."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> float:
    """Most bytes that this process has held: on Linux since `restart_peak`, elsewhere since it began."""
    peak = _proc("self/status", "VmHWM")
    if peak is not None:
        return peak
    import resource  # not on Windows, which is why it comes so late

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024.0)


def _proc(file: str, name: str) -> float | None:
    """A number of bytes from a file of Linux, whose lines are `name:  number kB`; None where there is no such line."""
    with suppress(OSError, ValueError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * float(line.split()[1])
    return None
