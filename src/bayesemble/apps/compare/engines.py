"""Engines that runs go to: those of joblib, which are named here or by `joblib.parallel_config`, and SLURM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from joblib import parallel_config
from joblib.parallel import get_active_backend

from bayesemble.core.errors import MissingExtraError, SettingError
from bayesemble.core.settings import require

BACKENDS = ("loky", "dask", "ray")


def engine_elsewhere() -> Any:
    """The engine that `joblib.parallel_config` names, if it is not joblib's own for processes; else None."""
    active, _ = get_active_backend()
    name = type(active).__name__
    if name == "ThreadingBackend":
        raise SettingError("runs need processes, not threads, which share warnings and seeds; use loky, dask or ray")
    return None if name in ("LokyBackend", "SequentialBackend") else active


@contextmanager
def engine(backend: str | None, address: str | None = None) -> Iterator[None]:
    """Have joblib use an engine inside the block: one that is running at an address, or (None) a new one here.

    Args:
        backend: "loky", "dask" or "ray"; None leaves what `joblib.parallel_config` says.
        address: That of the scheduler of Dask, such as "tcp://10.0.0.1:8786", or of the head of Ray, or "auto".
    """
    require(
        backend in (None, *BACKENDS), f"backend is one of {', '.join(BACKENDS)}, got {backend!r}"
    )
    if backend in (None, "loky"):
        require(address is None, f"address={address!r} is that of a cluster; say backend dask or ray with it")
    if backend is None:
        yield
    elif backend == "loky":
        with parallel_config(backend="loky"):
            yield
    else:
        with _dask(address) if backend == "dask" else _ray(address):
            yield


@contextmanager
def _dask(address: str | None) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError('Dask is not installed; pip install "bayesemble[dask]"') from error
    options: dict[str, Any] = {"threads_per_worker": 1} if address is None else {"address": address}
    with Client(**options, set_as_default=True), parallel_config(backend="dask"):
        yield


@contextmanager
def _ray(address: str | None) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise MissingExtraError('Ray is not installed; pip install "bayesemble[ray]"') from error
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
    register_ray()
    try:
        with parallel_config(backend="ray"):
            yield
    finally:
        if ours:
            ray.shutdown()
