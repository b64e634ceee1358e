"""The description of the service that machines read (OpenAPI 3.1), with the columns of every run that it serves."""

from __future__ import annotations

from typing import Any

from bayesemble import __version__
from bayesemble.apps.serve.answers import Model
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.gate import OPEN
from bayesemble.apps.serve.web.protocol import metadata, output_names
from bayesemble.data.cells import LARGEST
from bayesemble.data.schema import Column

Json = dict[str, Any]
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_BAD = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "field": {"type": ["string", "null"], "description": "the field that was refused"},
        "row": {"type": ["integer", "null"], "description": "the row that was refused, from 0"},
    },
}
_OBJECT: Json = {"type": "object"}


def document(registry: Registry, options: Options) -> Json:
    """The whole description, of the models as they are now."""
    paths: Json = {}
    for one in registry:
        paths |= _paths(one.name, one.model, options)
    if (only := registry.only()) is not None:
        for what in ("predict", "feedback"):
            paths[f"/{what}"] = paths[f"/models/{only.name}/{what}"]
    paths |= {
        "/models": _get("The names of the models", _fields(models={"type": "array", "items": {"type": "string"}})),
        "/state": _get("What the live page shows: traffic, doubt, odd rows, alarms", _OBJECT),
        "/metrics": _get("Numbers for Prometheus", {"type": "string"}, "text/plain"),
        "/v2": _get("The server", _fields(name={"type": "string"}, version={"type": "string"})),
        "/v2/health/live": _get("Whether the server runs", _fields(live={"type": "boolean"})),
        "/v2/health/ready": _get("Whether all models can answer", _fields(ready={"type": "boolean"})),
    }
    found: Json = {
        "openapi": "3.1.0",
        "info": {"title": "bayesemble", "version": __version__, "description": "Answers that say their doubt."},
        "paths": paths,
    }
    if options.token is not None:
        found["components"] = {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}}
        for path, operations in paths.items():
            for operation in operations.values():
                if path not in OPEN:
                    operation["security"] = [{"bearer": []}]
                    operation["responses"]["401"] = _reply("There is no token, or a wrong one", _ERROR)
    return found


def _paths(name: str, model: Model, options: Options) -> Json:
    rows = {"type": "array", "minItems": 1, "maxItems": options.max_rows, "items": _row(model)}
    answers = _fields(
        model={"type": "string"}, version={"type": "string"}, predictions={"type": "array", "items": _answer(model)}
    )
    label = {
        "type": "object",
        "required": ["id", "label"],
        "properties": {"id": {"type": "string"}, "label": {"type": ["string", "number"]}},
    }
    labels = {"type": "array", "minItems": 1, "maxItems": options.max_rows, "items": label}
    taken = _fields(taken={"type": "integer"}, unknown={"type": "array", "items": {"type": "string"}})
    v2, about = f"/v2/models/{name}", f"of {model.schema.target.name}"
    inference = _fields(model_name={"type": "string"}, outputs={"type": "array", "items": _OBJECT})
    return {
        f"/models/{name}/predict": _post(f"Predictions {about}", _fields(rows=rows), answers),
        f"/models/{name}/feedback": _post(f"Labels {about} for earlier rows, by id", _fields(labels=labels), taken),
        v2: _get(f"The tensors {about}", _OBJECT),
        f"{v2}/ready": _get("Whether the model can answer", _fields(ready={"type": "boolean"})),
        f"{v2}/infer": _post(f"Predictions {about} as tensors", _inference(name, model, options), inference),
    }


def _row(model: Model) -> Json:
    columns = {column.name: _cell(column) for column in model.schema.columns}
    return {"type": "object", "required": list(columns), "properties": columns}


def _cell(column: Column) -> Json:
    if column.kind == "number":
        return {"type": ["number", "null"], "minimum": -LARGEST, "maximum": LARGEST}
    if column.kind == "boolean":
        return {"type": ["boolean", "null"]}
    if column.kind == "date":
        return {"type": ["string", "null"], "description": f"a date like {column.way}"}
    known = [label for label in column.categories if label][:20]
    return {"type": ["string", "null"], "examples": known, "maxLength": 10_000}


def _answer(model: Model) -> Json:
    kinds: dict[str, Json] = {
        "probabilities": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "set": {"type": "array", "items": {"type": "string"}, "description": "classes that hold it with the level"},
        "unlike": {"type": "boolean", "description": "whether the row is unlike the training data"},
        "why": {"type": "string", "description": "why it is unlike them"},
        "abstain": {"type": "boolean", "description": "whether the answer should not be used, by the risk chosen"},
        "abstain_why": {"type": "string"},
        "id": {"type": "string", "description": "for feedback"},
    }
    if model.schema.task == "classification":
        kinds["prediction"] = {"type": "string"}
    return _fields(**{name: kinds.get(name, {"type": ["number", "null"]}) for name in output_names(model)})


def _inference(name: str, model: Model, options: Options) -> Json:
    tensors = metadata(name, model)["inputs"]
    tensor = {
        "type": "object",
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"type": "string", "enum": [one["name"] for one in tensors]},
            "datatype": {"type": "string", "enum": sorted({one["datatype"] for one in tensors})},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": options.max_rows}},
            "data": {"type": "array"},
        },
    }
    inputs = {"type": "array", "minItems": len(tensors), "items": tensor}
    return {"type": "object", "required": ["inputs"], "properties": {"id": {"type": "string"}, "inputs": inputs}}


def _fields(**kinds: Json) -> Json:
    return {"type": "object", "required": list(kinds), "properties": kinds}


def _get(summary: str, schema: Json, kind: str = "application/json") -> Json:
    return {"get": {"summary": summary, "responses": {"200": _reply("As said", schema, kind)}}}


def _post(summary: str, body: Json, schema: Json) -> Json:
    refusals = {"408": "The body came too slowly", "413": "The body is too long", "503": "Too busy: see Retry-After"}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": _reply("As said", schema),
                "422": _reply("A field of a row cannot be understood", _BAD),
                **{status: _reply(words, _ERROR) for status, words in refusals.items()},
            },
        }
    }


def _reply(words: str, schema: Json, kind: str = "application/json") -> Json:
    return {"description": words, "content": {kind: {"schema": schema}}}
