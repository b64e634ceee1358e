import math
import os
import sys
from pathlib import Path

import pytest

from bayesemble.core import memory
from bayesemble.core.memory import MEGABYTE, available_memory, peak_memory, restart_peak

on_linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux has /proc")


def test_available_memory_is_some_of_all_there_is():
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 100 * MEGABYTE < available_memory() <= everything


@on_linux
def test_the_peak_counts_what_was_held_for_a_moment_and_starts_anew():
    before = restart_peak()
    bytearray(b"x") * (64 * MEGABYTE)
    assert 60 * MEGABYTE < peak_memory() - before < 100 * MEGABYTE
    assert restart_peak() - before < 30 * MEGABYTE, "the moment is forgotten"


def test_without_proc_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(memory, "_proc", lambda file, name: None)
    assert available_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 10 * MEGABYTE < peak_memory() < available_memory()
    kilobytes = peak_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_memory() * 1024 >= kilobytes, "where the system counts in bytes"
    monkeypatch.delattr(os, "sysconf")
    assert available_memory() == math.inf


def test_a_file_without_the_line_says_nothing():
    assert memory._proc("self/status", "NoSuchName") is None
    assert memory._proc("no/such/file", "VmHWM") is None
