import asyncio
import json
import math

import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.app import make_app
from served_tables import ask, draw_rows, without_ids

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

ROWS = draw_rows(30, 40)


@pytest.fixture(scope="module")
def registry(runs):
    made = Registry([f"{name}={run.folder}" for name, run in runs.items()], Options(max_bytes=20_000, max_rows=100))
    yield made
    made.close()


@pytest.fixture(scope="module")
def app(registry):
    return make_app(registry, registry.options)


def post(app, path, content):
    return ask(app, "POST", path, content if isinstance(content, bytes) else json.dumps(content).encode())


def test_rows_are_answered(app, registry):
    for name in ("price", "kind"):
        status, found, _ = post(app, f"/models/{name}/predict", {"rows": ROWS})
        model = registry.find(name).model
        assert (status, found["model"], found["version"]) == (200, name, "1")
        assert all(list(one) == [*model.answer_names, "id"] for one in found["predictions"])


def test_requests_at_once_get_the_bits_of_requests_one_by_one(app):
    alone = [post(app, "/models/price/predict", {"rows": [row]})[1]["predictions"][0] for row in ROWS]

    async def storm():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await asyncio.gather(*(client.post("/models/price/predict", json={"rows": [row]}) for row in ROWS))

    together = [reply.json()["predictions"][0] for reply in asyncio.run(storm())]
    assert without_ids(together) == without_ids(alone)


@pytest.mark.parametrize(
    ("body", "field", "row"),
    [
        (b'{"rows": [{"size": NaN}]}', "size", 0),
        (b'{"rows": [{"size": 1e999}]}', "size", 0),
        (b'{"rows": [{"size": -Infinity}]}', "size", 0),
        (b'{"rows": [{"size": 1}]}', "width", 0),
        (b'{"rows": []}', "rows", None),
        (b'{"rows": {}}', "rows", None),
        (b"{}", "rows", None),
        (b"[]", None, None),
        (b"null", None, None),
        (b"", None, None),
        (b"{", None, None),
        (b"\xff", None, None),
        (b'{"rows": ' + b"[" * 9_000, None, None),
        (b'{"rows": [{"size": ' + b"1" * 9_000 + b"}]}", None, None),
    ],
)
def test_what_cannot_be_understood_is_422_and_names_its_place(app, body, field, row):
    status, found, _ = post(app, "/models/price/predict", body)
    assert (status, found["field"], found["row"]) == (422, field, row)
    assert found["error"]


def test_limits(app):
    assert post(app, "/models/price/predict", {"rows": [ROWS[0]] * 101})[0] == 422
    status, found, _ = post(app, "/models/price/predict", b" " * 20_001)
    assert (status, "20,000 bytes" in found["error"]) == (413, True)


def test_paths_and_methods(app):
    assert post(app, "/predict", {"rows": ROWS})[0] == 404  # there are two
    assert post(app, "/models/none/predict", {"rows": ROWS})[0] == 404
    assert ask(app, "GET", "/nothing")[:2] == (404, {"error": "there is nothing at /nothing; see /docs"})
    status, found, headers = ask(app, "GET", "/models/price/predict")
    assert (status, headers["allow"]) == (405, "POST")
    assert found["error"]
    assert ask(app, "GET", "/models")[1] == {"models": ["price", "kind"]}


def test_a_single_model_needs_no_name(runs):
    registry = Registry([f"one={runs['kind'].folder}"], Options())
    status, found, _ = post(make_app(registry, registry.options), "/predict", {"rows": ROWS})
    registry.close()
    assert (status, len(found["predictions"])) == (200, 30)


def test_feedback(app):
    _, found, _ = post(app, "/models/kind/predict", {"rows": ROWS})
    labels = [{"id": one["id"], "label": row["kind"]} for one, row in zip(found["predictions"], ROWS, strict=True)]
    assert post(app, "/models/kind/feedback", {"labels": labels})[1]["taken"] == 30
    assert post(app, "/models/kind/feedback", {"labels": labels})[1]["taken"] == 0
    assert post(app, "/models/kind/feedback", {"labels": [{"id": "x", "label": math.nan}]})[0] == 422
    assert post(app, "/models/kind/feedback", {"labels": []})[0] == 422


def test_the_open_inference_protocol(app):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/price/ready", "/v2/models/price/versions/1/ready"):
        assert ask(app, "GET", path)[0] == 200
    assert ask(app, "GET", "/v2")[1]["extensions"] == ["binary_tensor_data"]
    assert ask(app, "GET", "/v2/models/none/ready")[0] == 404
    assert ask(app, "GET", "/v2/models/price/versions/7")[0] == 404
    about = ask(app, "GET", "/v2/models/price")[1]
    inputs = [one | {"shape": [30], "data": [row[one["name"]] for row in ROWS]} for one in about["inputs"]]
    _, expected, _ = post(app, "/models/price/predict", {"rows": ROWS})
    for path in ("/v2/models/price/infer", "/v2/models/price/versions/1/infer"):
        status, found, _ = post(app, path, {"id": "mine", "inputs": inputs})
        assert (status, found["id"], found["model_name"]) == (200, "mine", "price")
        outputs = {one["name"]: one["data"] for one in found["outputs"]}
        for name in ("prediction", "low", "high", "epistemic_std", "unlike", "why", "abstain"):
            assert outputs[name] == [one[name] for one in expected["predictions"]]


def test_a_full_queue_is_503_with_a_time_to_come_back(runs):
    registry = Registry([f"one={runs['price'].folder}"], Options(max_rows=30, queue_rows=30))
    app, served = make_app(registry, registry.options), registry.only()
    body = json.dumps({"rows": ROWS}).encode()

    async def storm():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await asyncio.gather(*(client.post("/predict", content=body) for _ in range(20)))

    replies = asyncio.run(storm())
    served.close()
    statuses = {reply.status_code for reply in replies}
    assert statuses == {200, 503}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status_code == 503)
    assert post(app, "/predict", body)[0] == 503  # it is closed


def test_a_body_that_comes_too_slowly_is_408(runs):
    registry = Registry([f"one={runs['price'].folder}"], Options(seconds=0.1))
    app = make_app(registry, registry.options)

    async def slowly():
        yield b'{"rows": '
        await asyncio.sleep(5)
        yield b"[]}"

    async def go():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.post("/predict", content=slowly())

    assert asyncio.run(go()).status_code == 408
    registry.close()


def test_pages_metrics_and_state(app):
    status, text, headers = ask(app, "GET", "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'bayesemble_requests_total{path="/models/{name}/predict",status="422"}' in text
    for path in ("/", "/docs"):
        status, text, headers = ask(app, "GET", path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
    assert [one["name"] for one in ask(app, "GET", "/state")[1]["models"]] == ["price", "kind"]
