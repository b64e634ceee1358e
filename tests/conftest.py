"""Set before torch is imported: one thread per process, and threads that wait without spinning."""

import itertools
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from processor_time import ProcessorTime

_NUMBERS = itertools.count()
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTime())


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, which some tests send to themselves."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _global_random_state_is_left_alone() -> Iterator[None]:
    """The library must not seed or advance torch's global generator; tests use generators of their own."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "a test or the library moved torch's global random state"


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _nothing_measured_is_known(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a file of its own for what `executor="measure"` finds."""
    monkeypatch.setenv("BAYESEMBLE_MEASURED", str(_cache / f"{next(_NUMBERS)}.json"))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
