"""From folders to a server that listens, until it is told to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayesemble.apps.serve.logs import set_up
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.app import make_app
from bayesemble.core.errors import BayesembleError
from bayesemble.core.lazy import import_extra

_LAST_REQUESTS = 0.25
"""Seconds after the end of listening in which requests are read on connections that are there."""


def serve(
    folders: Sequence[str | Path],
    options: Options,
    *,
    log_requests: bool = True,
    on_ready: Callable[[str, Registry], None] = lambda address, registry: None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; whatever was taken by then is answered first.

    Args:
        folders: Runs of `bayesemble fit`, each as FOLDER or NAME=FOLDER.
        options: Where it listens and what it allows.
        log_requests: Whether each request is a line of the log.
        on_ready: Called with the address once it listens.
    """
    import torch

    torch.set_num_threads(1)  # threads of one prediction would only get into the way of those of other models
    registry = Registry(folders, options)
    server = make_server(registry, options, on_ready)
    set_up(log_requests)
    server.run()
    if not server.started:
        raise BayesembleError(f"nothing can listen at {options.host}:{options.port}; the log says why")


def make_server(registry: Registry, options: Options, on_ready: Callable[[str, Registry], None]) -> Any:
    """A server of uvicorn for what is registered; it ends once its `should_exit` is true."""
    uvicorn = import_extra("uvicorn", "bayesemble serve needs uvicorn", "'bayesemble[serve]'")
    config = uvicorn.Config(
        make_app(registry, options),
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(2 * options.seconds)),
        server_header=False,
        ws="none",
    )
    server = uvicorn.Server(config)
    listening, ending = server.startup, server.shutdown

    async def startup(sockets: object = None) -> None:
        await listening(sockets=sockets)
        if server.started and server.servers:
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", registry)

    async def shutdown(sockets: object = None) -> None:
        for one in server.servers:
            one.close()
        await asyncio.sleep(_LAST_REQUESTS)
        await ending(sockets=sockets)

    server.startup, server.shutdown = startup, shutdown
    return server
