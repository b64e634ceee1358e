"""How a process finds the others of its job: those of `torchrun`, or whatever has set the same variables.

A job that is restarted finds the store of the attempt before, with the addresses of processes that are gone; each
attempt therefore has a prefix of its own. Nothing waits longer than the timeout.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from bayesemble.core.errors import ExecutionError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_started() -> bool:
    """Whether this process is one of a job."""
    return dist.is_available() and (dist.is_initialized() or all(name in os.environ for name in _VARIABLES))


def rank_here() -> int:
    """The number of this process in its job; 0 of a process that is in none."""
    if not is_started():
        return 0
    return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])


def join(timeout: float, backend: str) -> None:
    """Meet the other processes, unless whoever called has done so."""
    if dist.is_initialized():
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt, limit = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), timedelta(seconds=timeout)
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # it keeps the store itself
    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            world,
            is_master=rank == 0 and not agent,
            timeout=limit,
        )
        own = PrefixStore(f"bayesemble attempt {attempt}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=limit)
    except (RuntimeError, ValueError) as error:
        words = str(error).strip().splitlines()[0]
        raise ExecutionError(f"rank {rank} of {world} did not meet the others within {timeout:g} s: {words}") from error
