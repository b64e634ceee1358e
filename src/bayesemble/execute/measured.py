"""What `executor="measure"` found on this machine, kept for the next fit of the same network, members and batch.

One sealed JSON file, `measured.json` in the user's cache or the file that $BAYESEMBLE_MEASURED names, holds an executor
for each digest of all that the times depend on. It only saves measuring: whatever is wrong with it, it is done again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch

from bayesemble import __version__
from bayesemble.core import settings
from bayesemble.core.errors import BayesembleError
from bayesemble.core.files import cache_folder, read_json, understood, write_json
from bayesemble.core.members import State
from bayesemble.core.types import Batch, tensors_of
from bayesemble.execute.executor import Executor
from bayesemble.task.task import BoundTask

logger = logging.getLogger("bayesemble")

FILE = "BAYESEMBLE_MEASURED"  # an environment variable
_MOST = 500
_EXECUTORS = "executors"


def digest_of(task: BoundTask, state: State, batch: Batch, method: Any) -> str:
    """What the times depend on: network, likelihood, method, members, batch, versions, processor and threads."""
    leaves = {
        group: [(name, tuple(leaf.shape), str(leaf.dtype), str(leaf.device)) for name, leaf in found.items()]
        for group, found in state.groups().items()
    }
    rows = [(tuple(one.shape), str(one.dtype)) for one in tensors_of((batch.inputs, batch.targets))]
    place = platform.machine(), _processor(), os.cpu_count(), torch.get_num_threads()
    what = (str(task.module), task.likelihood, task.prior is None, method, leaves, rows)
    return hashlib.sha256(repr((__version__, torch.__version__, place, what)).encode()).hexdigest()[:40]


def recall(digest: str) -> tuple[Executor, str] | None:
    """The executor that was the quickest, and the words that say so; None if that is not known."""
    found = _read().get(digest)
    if found is None:
        return None
    try:
        with understood(path(), "holds an executor that this version does not know"):
            return settings.parse(found["executor"], Executor), str(found["reason"])
    except BayesembleError as error:
        warnings.warn(f"{error}; it is measured again", stacklevel=2)
        return None


def remember(digest: str, executor: Executor, reason: str) -> None:
    """Keep it, in place of what was found longest ago if there is much; a folder that takes no files keeps nothing."""
    try:
        known = _read(aloud=False)
        known.pop(digest, None)
        known[digest] = {"executor": settings.dump(executor), "reason": reason}
        write_json(path(), {_EXECUTORS: dict(list(known.items())[-_MOST:])})
    except BayesembleError as error:
        logger.info("what was measured is not kept: %s", error)


def forget_measured() -> None:
    """Forget what `executor="measure"` found on this machine, so that the next fit measures again."""
    path().unlink(missing_ok=True)


def path() -> Path:
    """Where it is kept."""
    given = os.environ.get(FILE)
    return Path(given) if given else cache_folder() / "measured.json"


def _read(aloud: bool = True) -> dict[str, Any]:
    if not path().exists():
        return {}
    try:
        with understood(path(), "does not hold what was measured"):
            return dict(read_json(path())[_EXECUTORS])
    except BayesembleError as error:
        if aloud:
            warnings.warn(f"{error}; what it held is measured again", stacklevel=3)
        return {}


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
