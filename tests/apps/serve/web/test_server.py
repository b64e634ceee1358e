import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.server import make_server, serve
from bayesemble.core.errors import BayesembleError
from served_tables import draw_rows

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")


def test_the_end_answers_what_was_taken_and_refuses_the_rest(runs):
    registry = Registry([f"one={runs['price'].folder}"], Options(port=0))
    ready: list[str] = []
    server = make_server(registry, registry.options, lambda address, _: ready.append(address))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not ready:
        time.sleep(0.01)
    assert ready[0].startswith("http://127.0.0.1:")
    model = registry.only().model
    computing, may = threading.Event(), threading.Event()
    answer = model.answer

    def slowly(chunk):
        computing.set()
        assert may.wait(20)
        return answer(chunk)

    object.__setattr__(model, "answer", slowly)
    body = {"rows": draw_rows(3, 1)}
    with httpx.Client(base_url=ready[0], timeout=30) as client, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.post, "/predict", json=body)]
        assert computing.wait(20)  # alone: two that come together would be one batch, and fewer would wait
        waiting += [pool.submit(client.post, "/predict", json=body) for _ in range(7)]
        while registry.only().batcher.waiting < 21:  # the others wait behind the first
            time.sleep(0.01)
        server.should_exit = True  # what SIGTERM does
        time.sleep(0.2)
        may.set()
        assert [reply.result().status_code for reply in waiting] == [200] * 8
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(ready[0] + "/v2/health/live")


def test_a_port_that_is_taken_is_said(runs, capsys, untouched):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises((BayesembleError, SystemExit)):
            serve([str(runs["price"].folder)], Options(port=port))
