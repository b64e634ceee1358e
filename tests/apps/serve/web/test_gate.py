import hmac

import pytest

pytest.importorskip("httpx")

from bayesemble.apps.serve.metrics import Metrics
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.web import gate
from bayesemble.apps.serve.web.gate import OPEN, Gate
from served_tables import ask


async def inner(scope, receive, send):
    if scope["path"] == "/broken":
        raise RuntimeError("secret words")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


@pytest.fixture
def metrics():
    return Metrics()


def test_without_a_token_everyone_is_let_in(metrics):
    app = Gate(inner, Options(), metrics)
    assert ask(app, "GET", "/state")[0] == 200
    assert metrics.total("bayesemble_requests_total", status="200") == 1


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Bearer right ", "bearer right", "Basic right", "right", "Bearer ü"]
)
def test_a_wrong_token_is_401(metrics, given):
    app = Gate(inner, Options(token="right"), metrics)
    headers = {} if given is None else {"authorization": given.encode()}
    status, found, back = ask(app, "GET", "/state", headers=headers)
    assert (status, back["www-authenticate"]) == (401, "Bearer")
    assert found == {"error": "a bearer token is needed"}


def test_the_right_token_is_compared_in_constant_time(metrics, monkeypatch):
    compared = []
    monkeypatch.setattr(gate.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    app = Gate(inner, Options(token="right"), metrics)
    assert ask(app, "GET", "/state", headers={"authorization": "Bearer right"})[0] == 200
    assert compared == [(b"Bearer right", b"Bearer right")]
    monkeypatch.undo()
    assert gate.hmac.compare_digest is hmac.compare_digest


def test_what_holds_nothing_of_a_model_is_open(metrics):
    app = Gate(inner, Options(token="right"), metrics)
    assert {ask(app, "GET", path)[0] for path in OPEN} == {200}


def test_a_fault_is_told_without_its_words(metrics, caplog):
    caplog.set_level("CRITICAL", logger="bayesemble.serve")
    status, found, _ = ask(Gate(inner, Options(), metrics), "GET", "/broken")
    assert status == 500
    assert "secret" not in str(found)
    assert metrics.total("bayesemble_requests_total", status="500") == 1
