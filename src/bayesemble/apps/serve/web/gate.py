"""What every request passes: the token, the clock, the count and the log; and what goes wrong is told in JSON."""

from __future__ import annotations

import hmac
import time
from typing import Any

from bayesemble.apps.serve.logs import logger, tell
from bayesemble.apps.serve.metrics import Metrics
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.web.protocol import dumps

OPEN = frozenset(["/", "/docs", "/v2/health/live", "/v2/health/ready"])
"""Paths without a token: they hold nothing of a model. The pages ask for the token themselves."""


class Gate:
    """An ASGI application around another."""

    def __init__(self, app: Any, options: Options, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._token = None if options.token is None else f"Bearer {options.token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] in OPEN or self._is_let_in(scope):
                await self._app(scope, receive, sending)
            else:
                await _reply(sending, 401, "a bearer token is needed", [(b"www-authenticate", b"Bearer")])
        except Exception as error:
            if type(error).__name__ == "ClientDisconnect":
                status = 499
            else:
                logger.exception("a request failed")
                if not status:
                    await _reply(sending, 500, "something went wrong here; the log says more")
        self._note(scope, status, time.perf_counter() - begin)

    def _is_let_in(self, scope: Any) -> bool:
        if self._token is None:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._token)

    def _note(self, scope: Any, status: int, took: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._metrics.add("bayesemble_requests_total", path=path, status=str(status))
        self._metrics.observe("bayesemble_request_seconds", took, path=path)
        client = scope.get("client")
        tell(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            milliseconds=round(1000 * took, 3),
            client=client[0] if client else None,
        )


async def _reply(send: Any, status: int, message: str, headers: Any = ()) -> None:
    body = dumps({"error": message})
    length = (b"content-length", str(len(body)).encode())
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
