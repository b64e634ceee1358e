import json
import subprocess
import sys

import pytest

import bayesemble as be
from bayesemble.execute import kept_memory as module
from bayesemble.execute.kept_memory import _glibc
from helpers import small_mlp, table

pytestmark = pytest.mark.skipif(_glibc() is None, reason="another C library, or one whose settings were chosen")

# In a process of its own: what others have left on the heap would be in the way.
SCRIPT = """
import ctypes, json, os, resource
from bayesemble.execute.kept_memory import kept_memory

BLOCKS, SIZE, PAGE = 16, 8 << 20, os.sysconf("SC_PAGE_SIZE")
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def step():
    blocks = [library.malloc(SIZE) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        library.free(block)

def fetched():
    "MiB that come from the system for memory that was in use just before."
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * PAGE / 2**20

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * PAGE / 2**20

found = {"before": fetched()}
with kept_memory():
    found["inside"], full = fetched(), resident()
    with kept_memory():
        pass
    found["after an inner block"] = fetched()
found["given back"] = full - resident()
found["after"] = fetched()
try:
    with kept_memory():
        raise ZeroDivisionError
except ZeroDivisionError:
    found["after an error"] = fetched()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def test_a_step_meets_the_memory_of_the_last_one_again(found):
    assert found["before"] > 100
    assert found["inside"] < 1


def test_it_is_given_back_at_the_end_and_no_more_is_kept_then(found):
    assert found["given back"] > 100
    assert found["after"] > 50
    assert found["after an error"] > 50


def test_only_the_last_that_leaves_gives_it_back(found):
    assert found["after an inner block"] < 1


def test_all_of_training_is_inside():
    inside = []
    task, method = be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(num_members=2)
    be.fit(task, method, table(), epochs=1, on_epoch=lambda *_: inside.append(module._inside))
    assert inside == [1]
    assert module._inside == 0


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "1", True),
        ("MALLOC_MMAP_THRESHOLD_", "1", True),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.trim_threshold=1", True),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1", True),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", False),
    ],
)
def test_what_somebody_chose_is_left_alone(name, value, left, monkeypatch):
    monkeypatch.setenv(name, value)
    assert (_glibc.__wrapped__() is None) == left
