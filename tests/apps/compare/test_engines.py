"""Real engines: a cluster of Dask, of Ray, and submitit, each with several processes of this machine.

They skip where their packages are not installed: pip install "bayesemble[dask,ray,slurm]".
"""

import os
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import joblib
import pytest

from bayesemble.apps.compare import engines
from bayesemble.apps.compare.compare import compare
from bayesemble.apps.compare.pool import perform_all
from bayesemble.apps.compare.request import Request
from bayesemble.apps.compare.results import Comparison
from bayesemble.core.errors import SettingError


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a test before anything is made for it."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


DASK, RAY, SUBMITIT = needs("distributed"), needs("ray"), needs("submitit")
DIGITS = Request(data="digits", methods="map,deep_ensemble,mc_dropout", members=3, epochs=30, seeds=1, rows=400)


@pytest.fixture(scope="module")
def by_loky(tmp_path_factory) -> Comparison:
    return compare(DIGITS, tmp_path_factory.mktemp("loky"), jobs=2, progress=False)


def stamps(root: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in root.glob("runs/*/*/result.json")}
    return {path: (one.st_ino, one.st_mtime_ns) for path, one in found.items()}


class Killer(threading.Thread):
    """Sends a signal to the process of a run that has a checkpoint, once another run is finished."""

    def __init__(self, root: Path, number: int = signal.SIGKILL) -> None:
        super().__init__(daemon=True)
        self.root, self.number, self.finished, self.run_killed = root, number, {}, None

    def run(self) -> None:
        while self.run_killed is None:
            time.sleep(0.02)
            self.finished = stamps(self.root)
            for lock in self.root.glob("runs/*/*/.bayesemble-lock") if self.finished else ():
                try:
                    process = int(lock.read_text().removeprefix("process ").partition("@")[0])
                except (OSError, ValueError):
                    continue
                if process != os.getpid() and any(lock.parent.glob("checkpoint-*")):
                    self.run_killed = lock.parent
                    os.kill(process, self.number)
                    return


@pytest.mark.parametrize("backend", [pytest.param("dask", marks=DASK), pytest.param("ray", marks=RAY)])
def test_a_cluster_that_loses_a_worker_gives_the_results_of_loky(backend, by_loky, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a token there
    killer = Killer(tmp_path / "out")
    killer.start()
    with engines.engine(backend):
        found = compare(DIGITS, tmp_path / "out", jobs=2, progress=False)
    assert killer.run_killed is not None
    assert [one.failure for one in found.results] == [None] * 3
    assert [one.scores for one in found.results] == [one.scores for one in by_loky.results], "to the bit"
    assert {path: stamp for path, stamp in stamps(tmp_path / "out").items() if path in killer.finished} == (
        killer.finished
    ), "what had finished was not run again"


@DASK
def test_an_ambient_backend_is_taken(by_loky, tmp_path):
    import distributed

    with distributed.Client(n_workers=1, threads_per_worker=2), joblib.parallel_config(backend="dask"):
        found = compare(DIGITS, tmp_path, progress=False)
    assert [one.scores for one in found.results] == [one.scores for one in by_loky.results]
    assert not any(path.name == "progress" for path in tmp_path.rglob("*"))


@SUBMITIT
def test_a_task_of_submitit_that_is_preempted_goes_on(by_loky, tmp_path):
    killer = Killer(tmp_path, signal.SIGUSR2)  # what SLURM is told to send before it ends a task
    killer.start()
    with engines.engine("submitit", "local", tmp_path) as where:
        found = compare(DIGITS, tmp_path, retries=0, engine=where, progress=False)
    assert killer.run_killed is not None
    assert any("Requeued job" in log.read_text() for log in (tmp_path / "submitit").glob("*.out"))
    assert [one.failure for one in found.results] == [None] * 3
    assert [one.scores for one in found.results] == [one.scores for one in by_loky.results]


def test_what_cannot_be_an_engine_is_refused(tmp_path):
    with (
        pytest.raises(SettingError, match="backend is one of loky, dask, ray, submitit, got 'spark'"),
        engines.engine("spark"),
    ):
        pass
    with pytest.raises(SettingError, match="name its backend too"), engines.engine(None, "tcp://127.0.0.1:8786"):
        pass
    with pytest.raises(SettingError, match="slurm or local, got 'here'"), engines.engine("submitit", "here"):
        pass
    with joblib.parallel_config(backend="threading"), pytest.raises(SettingError, match="processes, not threads"):
        perform_all([], 2, lambda job, result: None)
    with joblib.parallel_config(backend="loky"):
        assert engines.ambient() is None
    with joblib.parallel_config(backend="multiprocessing"):
        assert isinstance(engines.ambient(), engines.Joblib)
