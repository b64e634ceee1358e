"""Rivals in interpreters of their own: started with a case, told to train, asked how long it took."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np

SCRIPTS = Path(__file__).parent


class Rival:
    """A script of this folder, in an interpreter that has what it needs: `with Rival(...) as rival: rival.run()`."""

    def __init__(
        self, python: str, script: str, case: dict[str, Any], rows: tuple[Any, Any], threads: int | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "case.json").write_text(json.dumps(case))
        np.savez(folder / "rows.npz", x=np.asarray(rows[0]), y=np.asarray(rows[1]))
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_WAIT_POLICY": "PASSIVE"}
        if threads is not None:  # torch, and XLA in two ways
            own |= {"OMP_NUM_THREADS": str(threads), "NPROC": str(threads)}
            own |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {}
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [python, str(SCRIPTS / script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=own,
            cwd=folder,
        )
        try:
            self.first_seconds = self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, epochs: int = 1) -> float:
        """Train for so many epochs; the seconds that took inside."""
        assert self._process.stdin is not None
        print(epochs, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines() or ["nothing"]
            raise RuntimeError(said[-1])
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
