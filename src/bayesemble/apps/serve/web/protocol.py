"""The Open Inference Protocol, version 2, over HTTP: what a model takes and gives as tensors, in JSON or as bytes.

Every column is a tensor of its name with the shape (row, 1) or (row,). Instead, one tensor (row, column) may hold all
columns in their order. Bytes after the JSON are the extension for binary data of Triton, whose client uses it unless
told otherwise:

    Inference-Header-Content-Length: bytes of the JSON
    input  "parameters": {"binary_data_size": n}, output "parameters": {"binary_data": true}
    request "parameters": {"binary_data_output": true}
    a text is its length in four bytes, the lowest first, and then its UTF-8
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from bayesemble.apps.serve.answers import Model
from bayesemble.apps.serve.rows import RowError, chunk_of_columns
from bayesemble.data.table_files import Chunk, listed, shown

BINARY_HEADER = "inference-header-content-length"
_OF_KIND = {"number": "FP64", "boolean": "BOOL", "date": "BYTES", "category": "BYTES"}
_NUMPY = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_TEXTS = ("prediction", "why", "abstain_why", "id")
_TRUTHS = ("unlike", "abstain")


def metadata(name: str, model: Model) -> dict[str, Any]:
    """What `GET /v2/models/NAME` says."""
    inputs = [{"name": one.name, "datatype": _OF_KIND[one.kind], "shape": [-1, 1]} for one in model.schema.columns]
    outputs = [
        {"name": one, "datatype": _datatype(one, model), "shape": _shape(one, model, -1)} for one in output_names(model)
    ]
    return {
        "name": name,
        "versions": [model.version],
        "platform": "bayesemble_table",
        "inputs": inputs,
        "outputs": outputs,
    }


def output_names(model: Model) -> list[str]:
    """The tensors of an answer: its fields, and the id for feedback."""
    return [*model.answer_names, "id"]


def read_inference(
    body: dict[str, Any], tail: bytes, model: Model, max_rows: int
) -> tuple[Chunk, list[dict[str, Any]]]:
    """The rows of an inference request, and the outputs it asks for; refused by name if it cannot be understood."""
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise RowError("a list of tensors was needed", "inputs")
    values: dict[str, list[Any]] = {}
    for place, tensor in enumerate(inputs):
        name, found, tail = _read_tensor(tensor, place, tail, max_rows)
        if name in values:
            raise RowError("is there twice", name)
        values[name] = found
    if tail:
        raise RowError(f"{len(tail):,} bytes follow that belong to no input", "inputs")
    names = [column.name for column in model.schema.columns]
    if len(values) == 1 and next(iter(values)) not in names:
        values = _split(inputs[0], next(iter(values.values())), names)
    return chunk_of_columns(values, model.schema, max_rows), _read_outputs(body, model)


def _split(tensor: dict[str, Any], values: list[Any], names: list[str]) -> dict[str, list[Any]]:
    """One tensor (row, column) as columns."""
    shape = tensor["shape"]
    if len(shape) != 2 or shape[1] != len(names):
        raise RowError(
            f"one tensor of the shape [rows, {len(names)}] was needed, or one for each of {listed(names)}; got {shape}",
            tensor["name"],
        )
    return {name: values[place :: len(names)] for place, name in enumerate(names)}


def _read_tensor(tensor: Any, place: int, tail: bytes, max_rows: int) -> tuple[str, list[Any], bytes]:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise RowError(f"tensor {place} has no name", "inputs")
    name, datatype, shape = tensor["name"], tensor.get("datatype"), tensor.get("shape")
    if not isinstance(datatype, str) or (datatype not in _NUMPY and datatype != "BYTES"):
        raise RowError(f"a datatype of {listed([*_NUMPY, 'BYTES'])} was needed", name)
    if not isinstance(shape, list) or len(shape) not in (1, 2) or not all(type(n) is int and n > 0 for n in shape):
        raise RowError("a shape of one or two whole numbers above 0 was needed", name)
    if shape[0] > max_rows:
        raise RowError(f"at most {max_rows:,} rows are taken at once, got {shape[0]:,}", name)
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if not isinstance(parameters := tensor.get("parameters") or {}, dict):
        raise RowError("parameters are an object", name)
    size = parameters.get("binary_data_size")
    if size is None:
        values = _flat(tensor.get("data"), name)
    else:
        if type(size) is not int or not 0 <= size <= len(tail):
            raise RowError(f"binary_data_size is {size}, but {len(tail):,} bytes are there", name)
        values, tail = _from_bytes(tail[:size], datatype, name), tail[size:]
    if len(values) != count:
        raise RowError(f"the shape {shape} has {count:,} values, got {len(values):,}", name)
    return name, _typed(values, datatype, name, shape), tail


def _flat(data: Any, name: str) -> list[Any]:
    if not isinstance(data, list):
        raise RowError("its data are a list", name)
    if data and all(isinstance(one, list) for one in data):
        return [value for row in data for value in row]
    return data


def _from_bytes(data: bytes, datatype: str, name: str) -> list[Any]:
    if datatype != "BYTES":
        kind = np.dtype(_NUMPY[datatype])
        if len(data) % kind.itemsize:
            raise RowError(f"{len(data):,} bytes are no whole number of {datatype}", name)
        return np.frombuffer(data, kind).tolist()
    found, place = [], 0
    while place < len(data):
        length = struct.unpack_from("<I", data, place)[0] if place + 4 <= len(data) else len(data)
        if place + 4 + length > len(data):
            raise RowError("a text is longer than its bytes", name)
        try:
            found.append(data[place + 4 : place + 4 + length].decode())
        except UnicodeDecodeError as error:
            raise RowError("a text is not UTF-8", name, len(found)) from error
        place += 4 + length
    return found


def _typed(values: list[Any], datatype: str, name: str, shape: list[int]) -> list[Any]:
    """Values that are what the datatype says; those of FP16 to FP64 may come as whole numbers."""
    allowed: tuple[type, ...] = {"BYTES": (str,), "BOOL": (bool,)}.get(datatype, (int,))
    allowed = (int, float) if datatype.startswith("FP") else allowed
    width = shape[1] if len(shape) == 2 else 1
    for number, value in enumerate(values):
        if type(value) not in allowed and value is not None:
            raise RowError(f"{datatype} was needed, got {shown(str(value))}", name, number // width)
    return values


def _read_outputs(body: dict[str, Any], model: Model) -> list[dict[str, Any]]:
    known, asked = output_names(model), body.get("outputs")
    parameters = body.get("parameters")
    binary = bool(parameters.get("binary_data_output")) if isinstance(parameters, dict) else False
    if asked is None or asked == []:
        return [{"name": name, "binary": binary} for name in known]
    if not isinstance(asked, list):
        raise RowError("outputs are a list", "outputs")
    found = []
    for one in asked:
        if not isinstance(one, dict) or one.get("name") not in known:
            name = one.get("name") if isinstance(one, dict) else one
            raise RowError(f"outputs are {listed(known)}, got {shown(str(name))}", "outputs")
        own = one.get("parameters")
        wish = own.get("binary_data", binary) if isinstance(own, dict) else binary
        found.append({"name": one["name"], "binary": bool(wish)})
    return found


def write_inference(
    name: str, model: Model, answers: list[dict[str, Any]], outputs: list[dict[str, Any]], id: Any
) -> tuple[dict[str, Any], bytes]:
    """The answer to an inference request: JSON, and the bytes that follow it."""
    tensors, blobs = [], []
    for wish in outputs:
        one = wish["name"]
        values = _values(one, model, [answer[one] for answer in answers])
        tensor = {"name": one, "datatype": _datatype(one, model), "shape": _shape(one, model, len(answers))}
        if wish["binary"]:
            blobs.append(_to_bytes(values, tensor["datatype"]))
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = values
        tensors.append(tensor)
    found = {"model_name": name, "model_version": model.version, "outputs": tensors}
    return (found | {"id": id} if isinstance(id, str) else found), b"".join(blobs)


def _values(name: str, model: Model, values: list[Any]) -> list[Any]:
    """The values of all rows, one after the other."""
    labels = model.schema.target.categories
    if name == "probabilities":
        return [shares[label] for shares in values for label in labels]
    if name == "set":
        return [label in chosen for chosen in values for label in labels]
    return values


def _to_bytes(values: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":
        texts = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array([np.nan if value is None else value for value in values], _NUMPY[datatype]).tobytes()


def _datatype(name: str, model: Model) -> str:
    if name in _TEXTS and not (name == "prediction" and model.schema.task != "classification"):
        return "BYTES"
    return "BOOL" if name in (*_TRUTHS, "set") else "FP64"


def _shape(name: str, model: Model, rows: int) -> list[int]:
    return [rows, len(model.schema.target.categories)] if name in ("probabilities", "set") else [rows, 1]


def split_body(body: bytes, header: str | None) -> tuple[bytes, bytes]:
    """The JSON of a request, and the bytes that follow it."""
    if header is None:
        return body, b""
    if not (header.isascii() and header.isdigit() and len(header) < 12 and int(header) <= len(body)):
        raise RowError("is not the length of the JSON in the body", BINARY_HEADER)
    return body[: int(header)], body[int(header) :]


def dumps(content: dict[str, Any]) -> bytes:
    """JSON as short as it can be; numbers are finite or null already."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
