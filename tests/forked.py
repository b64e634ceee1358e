"""Test files in a process forked from one that has torch and the other packages loaded: no start is waited for."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

OPTIONS = ["-n", "0", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=600", "--tb=line", "-rfE"]
OPTIONS += ["-W", "ignore::SyntaxWarning"]  # a mistake is to be noticed by what it does, not by how it is written
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
LOADED = ("torch", "torch.func", "numpy", "scipy.stats", "scipy.optimize", "hypothesis", "pytest", "pytest_timeout")


def preload() -> None:
    """Loads what tests load anyway, but nothing of the package and nothing that moves a tensor."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("MPLBACKEND", "Agg")
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "bayesemble" not in sys.modules
    gc.collect()
    gc.freeze()  # what is loaded is not looked through again in each process


def fork_tests(tree: Path, files: list[str], plugin: Callable[[], object], seconds: float) -> tuple[int, str]:
    """What pytest returns and says; -1 if the time was over."""
    import tempfile

    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            _run(tree, files, plugin, said.fileno())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                with contextlib.suppress(ProcessLookupError):  # what a test left behind
                    os.killpg(child, signal.SIGKILL)
                said.seek(0)
                return os.waitstatus_to_exitcode(status), said.read()
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said.seek(0)
        return -1, said.read()


def _run(tree: Path, files: list[str], plugin: Callable[[], object], said: int) -> None:
    code = 70
    try:
        os.setpgid(0, 0)  # what a test starts ends with it
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(tree)
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = str(tree / "src")
        sys.path[:] = [path for path in sys.path if Path(path).name != "tests"]
        sys.path.insert(0, str(tree / "src"))
        for name in [name for name in sys.modules if name in ("forked", "executed_lines", "mutants")]:
            del sys.modules[name]
        import pytest

        code = int(pytest.main([*OPTIONS, *files], plugins=[plugin()]))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
