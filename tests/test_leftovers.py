"""What a soak looks at (`ranks_soak.py`): that it would see a leak, a process, a semaphore that is left."""

import os
import random
import subprocess
import sys
from multiprocessing import shared_memory as shared

import pytest

from leftovers import MARK, Held, growth, in_use, marked_processes, shared_memory


def test_growth_is_told_from_noise_and_from_a_warm_up():
    noise = random.Random(0)
    flat = [300 + noise.uniform(-3, 3) for _ in range(100)]
    assert growth([100.0] * 15 + flat)[0] < 0.01
    share, slope = growth([value + 0.3 * turn for turn, value in enumerate(flat)])
    assert share > 0.05
    assert slope == pytest.approx(0.3, abs=0.05)
    with pytest.raises(ValueError, match="needs 5 entries"):
        growth([1.0] * 5)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_held_and_left_is_seen():
    before, segments = Held.now(), shared_memory()
    with open(os.devnull):
        assert Held.now().descriptors == before.descriptors + 1
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | {MARK: "here"}, **pipes) as child:
        child.stdout.readline()  # it is there
        assert [name.split()[0] for name in marked_processes("here")] == [str(child.pid)]
        assert not marked_processes("elsewhere")
        child.stdin.close()
    assert not marked_processes("here")
    segment = shared.SharedMemory(create=True, size=8)
    try:
        assert f"/dev/shm/{segment.name}" in shared_memory() - segments
        assert in_use(f"/dev/shm/{segment.name}")
        segment.close()
        assert not in_use(f"/dev/shm/{segment.name}")
    finally:
        segment.unlink()
    assert f"/dev/shm/{segment.name}" not in shared_memory()
