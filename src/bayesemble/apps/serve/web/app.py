"""The routes of the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bayesemble import __version__
from bayesemble.apps.serve.batching import OverloadedError
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.rows import RowError, chunk_of_rows
from bayesemble.apps.serve.served import Served
from bayesemble.apps.serve.web import protocol
from bayesemble.apps.serve.web.gate import Gate
from bayesemble.apps.serve.web.openapi import document
from bayesemble.apps.serve.web.page import POLICY, api_page, live_page
from bayesemble.core.errors import BayesembleError
from bayesemble.core.lazy import import_extra

NEED = "bayesemble serve needs FastAPI", "'bayesemble[serve]'"


class RefusedError(Exception):
    """A request that is answered with another status than 200."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.content = status, {"error": message, **more}


def make_app(registry: Registry, options: Options) -> Any:
    """The service as an ASGI application; whoever runs it closes what it serves by its end."""
    fastapi, responses = import_extra("fastapi", *NEED), import_extra("fastapi.responses", *NEED)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        registry.start()
        try:
            yield
        finally:
            await asyncio.to_thread(registry.close)

    app = fastapi.FastAPI(title="bayesemble", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.openapi = lambda: document(registry, options)
    app.add_middleware(Gate, options=options, metrics=registry.metrics)
    routes = Routes(registry, options, responses.Response)
    for path, method, handler in routes.table():
        app.add_api_route(path, handler, methods=[method], response_class=responses.Response, response_model=None)

    for kind, handler in routes.refusals().items():
        app.add_exception_handler(kind, handler)
    return app


class Routes:
    """What is done for each path. FastAPI reads annotations: a request as it came, or parts of the path."""

    def __init__(self, registry: Registry, options: Options, response: type) -> None:
        self.registry, self.options, self._response = registry, options, response

    def table(self) -> list[tuple[str, str, Any]]:
        """Paths, methods and what is done."""
        request = import_extra("fastapi", *NEED).Request

        async def predict(request: Any) -> Any:
            return await self.predict(request, self._only())

        async def predict_by(request: Any, name: str) -> Any:
            return await self.predict(request, self._served(name))

        async def feedback(request: Any) -> Any:
            return await self.feedback(request, self._only())

        async def feedback_by(request: Any, name: str) -> Any:
            return await self.feedback(request, self._served(name))

        async def infer(request: Any, name: str) -> Any:
            return await self.infer(request, self._served(name))

        async def infer_version(request: Any, name: str, version: str) -> Any:
            return await self.infer(request, self._version(name, version))

        for one in (predict, predict_by, feedback, feedback_by, infer, infer_version):
            one.__annotations__["request"] = request

        async def models() -> Any:
            return self.reply({"models": [one.name for one in self.registry]})

        async def metadata(name: str) -> Any:
            return self.reply(protocol.metadata(name, self._served(name).model))

        async def metadata_version(name: str, version: str) -> Any:
            return self.reply(protocol.metadata(name, self._version(name, version).model))

        async def model_ready(name: str) -> Any:
            return self.reply({"name": self._served(name).name, "ready": True})

        async def ready_version(name: str, version: str) -> Any:
            return self.reply({"name": self._version(name, version).name, "ready": True})

        async def server() -> Any:
            return self.reply({"name": "bayesemble", "version": __version__, "extensions": ["binary_tensor_data"]})

        async def live() -> Any:
            return self.reply({"live": True})

        async def ready() -> Any:
            return self.reply({"ready": True})

        async def state() -> Any:
            return self.reply({"models": [one.state() for one in self.registry]})

        async def metrics() -> Any:
            return self._response(self.registry.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        async def page() -> Any:
            return self._page(live_page())

        async def docs() -> Any:
            return self._page(api_page())

        get, post = "GET", "POST"
        named = "/v2/models/{name}"
        return [
            ("/predict", post, predict),
            ("/models/{name}/predict", post, predict_by),
            ("/feedback", post, feedback),
            ("/models/{name}/feedback", post, feedback_by),
            ("/models", get, models),
            ("/v2/health/live", get, live),
            ("/v2/health/ready", get, ready),
            ("/v2", get, server),
            (named, get, metadata),
            (f"{named}/versions/{{version}}", get, metadata_version),
            (f"{named}/ready", get, model_ready),
            (f"{named}/versions/{{version}}/ready", get, ready_version),
            (f"{named}/infer", post, infer),
            (f"{named}/versions/{{version}}/infer", post, infer_version),
            ("/state", get, state),
            ("/metrics", get, metrics),
            ("/", get, page),
            ("/docs", get, docs),
        ]

    def refusals(self) -> dict[Any, Any]:
        """What is answered to requests that cannot be honoured, by error or status."""

        async def refused(_: Any, error: RefusedError) -> Any:
            return self.reply(error.content, error.status)

        async def bad_row(_: Any, error: RowError) -> Any:
            return self.reply({"error": str(error), "field": error.field, "row": error.row}, 422)

        async def bad_data(_: Any, error: BayesembleError) -> Any:
            return self.reply({"error": str(error), "field": None, "row": None}, 422)

        async def overloaded(_: Any, error: OverloadedError) -> Any:
            return self.reply({"error": str(error)}, 503, {"retry-after": str(error.retry_after)})

        async def nothing(request: Any, _: Any) -> Any:
            return self.reply({"error": f"there is nothing at {request.url.path}; see /docs"}, 404)

        async def wrong_method(request: Any, error: Any) -> Any:
            return self.reply({"error": f"{request.method} is not for {request.url.path}"}, 405, error.headers)

        known: dict[Any, Any] = {RefusedError: refused, RowError: bad_row, BayesembleError: bad_data}
        return known | {OverloadedError: overloaded, 404: nothing, 405: wrong_method}

    async def predict(self, request: Any, served: Served) -> Any:
        """Answers to rows as objects."""
        served.batcher.check_room()
        content, model = _parsed(await self._body(request)), served.model
        chunk = chunk_of_rows(content.get("rows"), model.schema, self.options.max_rows)
        answers = await served.answer(model, chunk)
        return self.reply({"model": served.name, "version": model.version, "predictions": answers})

    async def infer(self, request: Any, served: Served) -> Any:
        """Answers to tensors."""
        served.batcher.check_room()
        body, tail = protocol.split_body(await self._body(request), request.headers.get(protocol.BINARY_HEADER))
        content, model = _parsed(body), served.model
        chunk, outputs = protocol.read_inference(content, tail, model, self.options.max_rows)
        answers = await served.answer(model, chunk)
        head, tail = protocol.write_inference(served.name, model, answers, outputs, content.get("id"))
        if not tail:
            return self.reply(head)
        text = protocol.dumps(head)
        length = {protocol.BINARY_HEADER: str(len(text))}
        return self._response(text + tail, headers=length, media_type="application/octet-stream")

    async def feedback(self, request: Any, served: Served) -> Any:
        """Labels of rows that were answered before."""
        labels = _parsed(await self._body(request)).get("labels")
        if not isinstance(labels, list) or not 0 < len(labels) <= self.options.max_rows:
            raise RowError(f"a list of 1 to {self.options.max_rows:,} labels was needed", "labels")
        return self.reply(await asyncio.to_thread(served.feed_back, labels))

    def reply(self, content: dict[str, Any], status: int = 200, headers: Any = None) -> Any:
        """A response of JSON."""
        return self._response(protocol.dumps(content), status, headers, media_type="application/json")

    def _page(self, text: str) -> Any:
        return self._response(text, headers={"content-security-policy": POLICY}, media_type="text/html; charset=utf-8")

    def _served(self, name: str) -> Served:
        found = self.registry.find(name)
        if found is None:
            raise RefusedError(404, f"there is no model {name[:60]!r}; /models lists those that are here")
        return found

    def _version(self, name: str, version: str) -> Served:
        found = self._served(name)
        if found.model.version != version:
            raise RefusedError(404, f"{name} answers in version {found.model.version}, not {version[:20]!r}")
        return found

    def _only(self) -> Served:
        if (found := self.registry.only()) is None:
            raise RefusedError(404, "there are several models: say which by /models/NAME/...; /models lists them")
        return found

    async def _body(self, request: Any) -> bytes:
        """The body of a request, neither too long nor too slow."""
        most = self.options.max_bytes
        said = request.headers.get("content-length", "")
        if said.isascii() and said.isdigit() and int(said[:20]) > most:
            raise RefusedError(413, f"at most {most:,} bytes are taken, got {int(said[:20]):,}; send them in parts")

        async def read() -> bytes:
            parts, length = [], 0
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise RefusedError(413, f"at most {most:,} bytes are taken; send them in parts")
                parts.append(part)
            return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), self.options.seconds)
        except TimeoutError:
            raise RefusedError(408, f"the body took longer than {self.options.seconds:g} s") from None


def _parsed(body: bytes) -> dict[str, Any]:
    """The object in a body. NaN and numbers without end are read here, and refused by name where they stand."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise RowError(f"the body is no JSON: {words}") from None
    if not isinstance(content, dict):
        raise RowError("the body is a JSON object")
    return content
