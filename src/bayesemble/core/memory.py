"""How much memory there is, and how much this process has held; on Linux by what `/proc` says."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

MEGABYTE = 1024**2


def available_memory() -> float:
    """Bytes that can be had: what Linux says is available, else all there are, if that can be known."""
    available = _proc("meminfo", "MemAvailable")
    if available is not None:
        return available
    sysconf = getattr(os, "sysconf", None)
    return float(sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")) if sysconf else math.inf


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
