import math
import os
import sys
from pathlib import Path

import pytest

from bayesemble.core import memory
from bayesemble.core.memory import MEGABYTE, available_memory, how_many_fit, peak_memory, restart_peak

on_linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux has /proc")


def test_available_memory_is_some_of_all_there_is():
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    swap = memory._proc("meminfo", "SwapTotal") or 0.0
    assert 100 * MEGABYTE < available_memory() <= everything + swap


@on_linux
def test_the_peak_counts_what_was_held_for_a_moment_and_starts_anew():
    before = restart_peak()
    bytearray(b"x") * (64 * MEGABYTE)
    assert 60 * MEGABYTE < peak_memory() - before < 100 * MEGABYTE
    assert restart_peak() - before < 30 * MEGABYTE, "the moment is forgotten"


def test_without_proc_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(memory, "_proc", lambda file, name: None)
    monkeypatch.setattr(memory, "_below_group_limits", lambda root: math.inf)
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


def group(folder: Path, limit: str, usage: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon {usage - cached}\nactive_file {cached}\ninactive_file 0\n")


def free(root: Path, place: str) -> float:
    return memory._group_free(root, place, "memory.max", "memory.current", "")


def test_the_tightest_group_around_the_process_limits_it_and_cached_files_can_be_had(tmp_path):
    group(tmp_path / "job", "1000", 300)
    group(tmp_path / "job" / "step", "max", 200)
    group(tmp_path, "800", 700, cached=400)
    assert free(tmp_path, "/job/step") == 500
    group(tmp_path / "job", "1000", 950)
    assert free(tmp_path, "/job/step") == 50
    group(tmp_path / "job", "1000", 1500)
    assert free(tmp_path, "/job") == 0
    assert free(tmp_path / "none", "/") == math.inf


@on_linux
def test_a_limit_on_addresses_counts(monkeypatch):
    resource = pytest.importorskip("resource")
    used = memory._proc("self/status", "VmSize")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (int(used) + 500 * MEGABYTE, -1))
    assert 300 * MEGABYTE < available_memory() <= 500 * MEGABYTE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MEGABYTE, -1))
    assert available_memory() == 0


@pytest.mark.parametrize(
    ("room", "each", "number"), [(10, 3, 3), (9, 3, 3), (8, 3, 2), (2, 3, 1), (5, 0, 5), (0, 3, 1)]
)
def test_as_many_are_handled_at_a_time_as_fit_but_at_least_one(room, each, number):
    assert how_many_fit(room, each) == number
