"""Engines that runs go to: those of joblib, named here or by `joblib.parallel_config`, and SLURM by submitit.

An engine is called as `engine(function, tasks, processes)` and gives what the function returns for each task, in any
order; it raises an error at the end if a worker was lost. The tasks hold paths, never data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.parallel import get_active_backend

from bayesemble.core.errors import SettingError
from bayesemble.core.lazy import import_extra
from bayesemble.core.settings import require

BACKENDS = ("loky", "dask", "ray", "submitit")
_MOST_TIMEOUTS = 1000

Engine = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]], int | None], Iterator[Any]]


@dataclass(frozen=True)
class Joblib:
    """The engine that `joblib.parallel_config` names."""

    backend: Any

    def __call__(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], processes: int | None
    ) -> Iterator[Any]:
        """Results as they come, or all at the end where the engine has them no earlier."""
        as_they_come = "generator_unordered" if self.backend.supports_return_generator else "list"
        pool = Parallel(n_jobs=processes or -1, batch_size=1, return_as=as_they_come)
        yield from pool(delayed(function)(*task) for task in tasks)


@dataclass(frozen=True)
class Submitit:
    """SLURM, or processes of this machine, by the package submitit: an array of tasks.

    A task that SLURM ends, for want of time or for somebody more important, is queued again and goes on.
    """

    folder: Path
    """What submitit writes: scripts, logs, and what tasks return; all nodes must see it."""
    cluster: str | None = None
    """"slurm" or "local"; None is SLURM where there is one."""

    def __call__(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], processes: int | None
    ) -> Iterator[Any]:
        """Results as they come; an error of one task waits for the others."""
        submitit = _submitit()
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster, slurm_max_num_timeout=_MOST_TIMEOUTS)
        executor.update_parameters(name="bayesemble", cpus_per_task=1, timeout_min=60)
        if processes is not None:
            executor.update_parameters(slurm_array_parallelism=processes)
        with executor.batch():
            submitted = [executor.submit(_GoesOn(function), *task) for task in tasks]
        lost: Exception | None = None
        for job in submitit.helpers.as_completed(submitted):
            try:
                found = job.result()
            except Exception as error:
                lost = error
            else:
                yield found
        if lost is not None:
            raise lost


@dataclass(frozen=True)
class _GoesOn:
    """A function that submitit calls again with the same arguments where its process was ended."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """What is queued again: runs keep their own checkpoints."""
        return _submitit().helpers.DelayedSubmission(self, *arguments)


def ambient() -> Engine | None:
    """The engine that `joblib.parallel_config` names, if it is not joblib's own for processes; else None."""
    active, _ = get_active_backend()
    name = type(active).__name__
    if name == "ThreadingBackend":
        raise SettingError("runs need processes, not threads, which share warnings and seeds; use loky, dask or ray")
    return None if name in ("LokyBackend", "SequentialBackend") else Joblib(active)


@contextmanager
def engine(backend: str | None, address: str | None = None, folder: str | Path = ".") -> Iterator[Engine | None]:
    """The engine of a name, which is there as long as the block; None is that of joblib.

    Args:
        backend: "loky", "dask", "ray" or "submitit"; None takes what `joblib.parallel_config` says.
        address: That of a scheduler of Dask, such as "tcp://10.0.0.1:8786", or of the head of Ray, or "auto"; None
            starts one here. For submitit "slurm" or "local".
        folder: Where submitit may write.
    """
    require(backend in (None, *BACKENDS), f"backend is one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend in (None, "loky"):
        require(address is None, f"address={address!r} is that of a cluster; name its backend too: dask or ray")
        yield None
    elif backend == "submitit":
        require(address in (None, "slurm", "local"), f"the address for submitit is slurm or local, got {address!r}")
        _submitit()
        yield Submitit(Path(folder).resolve() / "submitit", address)
    else:
        with _dask(address) if backend == "dask" else _ray(address), parallel_config(backend=backend):
            yield ambient()


@contextmanager
def _dask(address: str | None) -> Iterator[None]:
    distributed = import_extra("distributed", "the engine dask is the package distributed", "bayesemble[dask]")
    options: dict[str, Any] = {"threads_per_worker": 1} if address is None else {"address": address}
    with distributed.Client(**options, set_as_default=True):
        yield


@contextmanager
def _ray(address: str | None) -> Iterator[None]:
    ray = import_extra("ray", "the engine ray is the package of that name", "bayesemble[ray]")
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address, log_to_driver=False)
    import_extra("ray.util.joblib", "joblib reaches Ray by its own module", "bayesemble[ray]").register_ray()
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _submitit() -> Any:
    return import_extra("submitit", "the engine submitit is the package of that name", "bayesemble[slurm]")
