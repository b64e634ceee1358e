import json
import struct

import numpy as np
import pytest

from bayesemble.apps.serve.rows import RowError, chunk_of_rows
from bayesemble.apps.serve.web.protocol import (
    dumps,
    metadata,
    output_names,
    read_inference,
    split_body,
    write_inference,
)
from served_tables import draw_rows

ROWS = draw_rows(4, 50)


def tensors(model):
    return [
        one | {"shape": [4, 1], "data": [[row[one["name"]]] for row in ROWS]} for one in metadata("m", model)["inputs"]
    ]


def as_bytes(values, datatype):
    if datatype == "BYTES":
        texts = [(value or "").encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array(values, {"FP64": "<f8", "FP32": "<f4", "BOOL": "?"}[datatype]).tobytes()


@pytest.fixture(scope="module")
def model(models):
    return models["price"]


def test_tensors_are_read_as_rows_are(model):
    expected = chunk_of_rows(ROWS, model.schema, 10)
    chunk, outputs = read_inference({"inputs": tensors(model)}, b"", model, 10)
    assert chunk.columns == expected.columns
    assert [one["name"] for one in outputs] == output_names(model)
    flat = [one | {"shape": [4], "data": [value for (value,) in one["data"]]} for one in tensors(model)]
    assert read_inference({"inputs": flat[::-1]}, b"", model, 10)[0].columns == expected.columns


def test_bytes_are_read_as_json_is(model):
    inputs, tail = [], b""
    for one in tensors(model):
        blob = as_bytes([value for (value,) in one.pop("data")], one["datatype"])
        inputs.append(one | {"parameters": {"binary_data_size": len(blob)}})
        tail += blob
    found = read_inference({"inputs": inputs}, tail, model, 10)[0]
    assert found.columns == chunk_of_rows(ROWS, model.schema, 10).columns
    for wrong in (tail[:-1], tail + b"x"):
        with pytest.raises(RowError):
            read_inference({"inputs": inputs}, wrong, model, 10)


def test_one_tensor_may_hold_all_columns(model):
    names = [column.name for column in model.schema.columns]
    texts = [["" if row[name] is None else str(row[name]) for name in names] for row in ROWS]
    whole = {"name": "input-0", "datatype": "BYTES", "shape": [4, 5], "data": texts}
    found = read_inference({"inputs": [whole]}, b"", model, 10)[0]
    assert found.columns["city"] == [row["city"] or "" for row in ROWS]
    with pytest.raises(RowError, match=r"\[rows, 5\]"):
        read_inference({"inputs": [whole | {"shape": [5, 4]}]}, b"", model, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"name": None},
        {"name": 3},
        {"datatype": "FP128"},
        {"datatype": []},
        {"datatype": "INT8", "data": [1.5] * 4},
        {"shape": [5, 1]},
        {"shape": [-4, -1]},
        {"shape": [2, 2, 1]},
        {"shape": []},
        {"shape": "4"},
        {"shape": [10**9]},
        {"shape": [True, 4]},
        {"data": None},
        {"data": [1, 2, 3]},
        {"data": ["much"] * 4},
        {"data": [float("nan")] * 4},
        {"data": [[[1]]] * 4},
        {"data": [None, [1], 2, 3]},
        {"parameters": 3},
        {"parameters": {"binary_data_size": 8}},
        {"parameters": {"binary_data_size": -1}},
    ],
)
def test_tensors_that_cannot_be_understood_are_refused(model, change):
    first, *others = tensors(model)
    with pytest.raises(RowError):
        read_inference({"inputs": [first | change, *others]}, b"", model, 10)


@pytest.mark.parametrize("inputs", [None, [], {}, [3], "x"])
def test_what_are_no_inputs_is_refused(model, inputs):
    with pytest.raises(RowError):
        read_inference({"inputs": inputs}, b"", model, 10)


def test_tensors_twice_or_lacking_are_refused(model):
    found = tensors(model)
    for wrong in ([*found, found[0]], found[1:]):
        with pytest.raises(RowError):
            read_inference({"inputs": wrong}, b"", model, 10)


@pytest.mark.parametrize("outputs", [3, [3], [{"name": "nothing"}], [{}]])
def test_outputs_that_are_not_there_are_refused(model, outputs):
    with pytest.raises(RowError):
        read_inference({"inputs": tensors(model), "outputs": outputs}, b"", model, 10)


@pytest.mark.parametrize("target", ["price", "kind"])
def test_answers_as_bytes_are_those_of_json(models, target):
    model = models[target]
    chunk = chunk_of_rows(ROWS, model.schema, 10)
    answers = [one | {"id": str(i)} for i, one in enumerate(model.answer(chunk).answers)]
    wish = {"inputs": tensors(model), "parameters": {"binary_data_output": True}}
    _, outputs = read_inference(wish, b"", model, 10)
    head, tail = write_inference("m", model, answers, outputs, "7")
    plain, none = write_inference("m", model, answers, [one | {"binary": False} for one in outputs], None)
    assert (head["id"], "id" in plain, none) == ("7", False, b"")
    json.loads(dumps(head))
    for one, other in zip(head["outputs"], plain["outputs"], strict=True):
        size = one["parameters"]["binary_data_size"]
        assert tail[:size] == as_bytes(other["data"], one["datatype"])
        assert len(other["data"]) == np.prod(one["shape"])
        tail = tail[size:]
    assert tail == b""
    if target == "kind":
        probs = next(one for one in plain["outputs"] if one["name"] == "probabilities")
        assert probs["shape"] == [4, 2]
        assert sum(probs["data"][:2]) == pytest.approx(1)


def test_the_length_of_the_json():
    assert split_body(b"{}abc", "2") == (b"{}", b"abc")
    assert split_body(b"{}", None) == (b"{}", b"")
    for wrong in ("3", "-1", "x", "", "²", "9" * 30):
        with pytest.raises(RowError):
            split_body(b"{}", wrong)
