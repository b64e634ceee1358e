import json

import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.openapi import document


@pytest.fixture(scope="module")
def registries(runs):
    one = Registry([f"price={runs['price'].folder}"], Options())
    two = Registry([f"{name}={run.folder}" for name, run in runs.items()], Options())
    yield one, two
    one.close()
    two.close()


def test_columns_and_answers_of_each_model_are_described(registries):
    found = document(registries[1], Options())
    json.dumps(found, allow_nan=False)
    for name in ("price", "kind"):
        operation = found["paths"][f"/models/{name}/predict"]["post"]
        row = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["rows"]["items"]
        assert set(row["properties"]) == {"size", "width", "city", "garden", "day"}
        answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
        fields = answer["properties"]["predictions"]["items"]["properties"]
        assert {"prediction", "epistemic" if name == "kind" else "epistemic_std", "unlike", "why", "abstain"} <= set(
            fields
        )
        assert {"200", "422", "413", "503"} <= set(operation["responses"])
        assert f"/v2/models/{name}/infer" in found["paths"]


def test_one_model_alone_has_short_paths(registries):
    assert "/predict" in document(registries[0], Options())["paths"]
    assert "/predict" not in document(registries[1], Options())["paths"]


def test_a_token_is_described_where_it_is_asked_for(registries):
    found = document(registries[0], Options(token="x"))
    assert found["paths"]["/predict"]["post"]["security"] == [{"bearer": []}]
    assert "401" in found["paths"]["/state"]["get"]["responses"]
    assert "security" not in found["paths"]["/v2/health/live"]["get"]
    assert "components" not in document(registries[0], Options())
