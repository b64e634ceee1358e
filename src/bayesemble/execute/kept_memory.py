"""Memory that a step of training frees stays with the process for the next step, which asks for as much.

The C library of Linux (glibc) hands memory at the end of its heap back to the system as soon as it is free, and the
next step meets it again as pages that are not there yet: for convolutions of images, a tenth to a quarter of the time.
How much may be free before that happens is a setting of the whole process.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_ALL = 2**31 - 1
# The settings cannot be read, and setting one ends glibc's own search for both: these are the highest it would go to.
_USUAL_TRIM, _USUAL_MMAP = 64 << 20, 32 << 20
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_CHOSEN_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")  # others are no concern of ours

_LOCK = threading.Lock()
_inside = 0


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep what is freed inside the block, and give it to the system at the end.

    Blocks of 32 MiB or more are given back at once all the same: kept, they would leave holes that nothing fits into.
    Several threads may be inside; the last one that leaves gives the memory back. Nothing happens elsewhere than under
    glibc, or where somebody has chosen these settings by the environment.
    """
    global _inside
    with _LOCK:
        _inside += 1
        if _inside == 1 and _glibc():
            _glibc().mallopt(_MMAP_THRESHOLD, _USUAL_MMAP)
            _glibc().mallopt(_TRIM_THRESHOLD, _ALL)
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside and _glibc():
                _glibc().mallopt(_TRIM_THRESHOLD, _USUAL_TRIM)
                _glibc().malloc_trim(0)


def give_back() -> None:
    """Give what is free to the system at once, for what is done once leaves holes that steps have no use for."""
    if _glibc():
        _glibc().malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library, if it is one whose settings we may change."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = any(name in os.environ for name in _CHOSEN) or any(name in tunables for name in _CHOSEN_TUNABLES)
    if sys.platform != "linux" or chosen:
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
