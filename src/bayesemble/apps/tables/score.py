"""Scores a table with an exported model: numpy and onnxruntime are all that it needs.

This file and those it imports are copied beside each exported model, so that cells are read as in training.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core.errors import BayesembleError, DataError
from bayesemble.core.files import read_json
from bayesemble.core.lazy import import_extra
from bayesemble.data.schema import Encoded, Schema
from bayesemble.data.table_files import listed, read_rows
from bayesemble.data.table_writing import write_rows

MODEL, SCHEMA = "model.onnx", "schema.json"
_ROWS_AT_ONCE = 1000
_DIGITS_BEYOND_DEVIATION = 6
SEPARATOR = " | "
"""Between the classes of a set."""
_STDS = {"std": "std", "aleatoric_std": "aleatoric", "epistemic_std": "epistemic"}

Answers = dict[str, npt.NDArray[Any]]
"""What the model says of rows, by the names of its outputs."""


def score(folder: Path, file: str | Path, out: str | Path, keep: Sequence[str] = ()) -> int:
    """Write the predictions of all rows of a file, and say how many there are.

    Args:
        folder: That of the exported model.
        file: CSV or Parquet; the target is not needed.
        out: CSV or Parquet, by its name.
        keep: Columns of the file that are copied.
    """
    about = read_json(folder / SCHEMA, "an exported model")
    schema, columns = Schema.from_json(about["schema"]), list(about["columns"])
    runtime = import_extra("onnxruntime", "the model needs onnxruntime", "onnxruntime numpy")
    session = runtime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    count = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for chunk in read_rows(file, _ROWS_AT_ONCE):
            if absent := [name for name in keep if name not in chunk.columns]:
                raise DataError(f"{file} has no columns {listed(absent)} to keep")
            encoded = schema.encode(chunk, with_targets=False)
            answers = session.run(outputs, dict(zip(inputs, _arrays(encoded), strict=True)))
            cells = cells_of(schema, dict(zip(outputs, answers, strict=True)))
            kept, values = [chunk.columns[name] for name in keep], [cells[name] for name in columns]
            yield from zip(chunk.rows, *kept, *values, encoded.unlike.tolist(), encoded.reasons, strict=True)
            count += len(chunk.rows)

    write_rows(out, ["row", *keep, *columns, "unlike", "why"], rows())
    return count


def cells_of(schema: Schema, answers: Answers) -> dict[str, list[Any]]:
    """The cells of each column that a prediction may have, in the units of the target."""
    if schema.task == "classification":
        probs = answers["probs"]
        by_class = {f"p_{label}": list(probs[:, place]) for place, label in enumerate(schema.target.categories)}
        doubt = {name: list(answers[name]) for name in ("entropy", "aleatoric", "epistemic")}
        names, decided = np.array(schema.target.categories, dtype=object), {}
        if "set" in answers:
            decided["set"] = [SEPARATOR.join(names[row]) for row in answers["set"]]
        if "abstain" in answers:
            decided["abstain"] = answers["abstain"].tolist()
        return {"prediction": schema.decode_targets(probs.argmax(-1)).tolist(), **by_class, **doubt, **decided}
    shift, scale = (0.0, 1.0) if schema.task == "count" else (schema.target.mean, schema.target.scale)
    decimals = _DIGITS_BEYOND_DEVIATION - math.floor(math.log10(schema.target.scale))
    cells: dict[str, list[Any]] = {}
    for name in ("mean", "low", "high"):
        if name in answers:
            cells[name] = np.round(shift + scale * answers[name].astype(np.float64), decimals).tolist()
    for column, name in _STDS.items():
        values = answers[name].astype(np.float64)
        cells[column] = list((scale * (values if name == "std" else np.sqrt(values))).astype(np.float32))
    return cells


def _arrays(rows: Encoded) -> list[npt.NDArray[Any]]:
    return [rows.numbers, rows.categories] if rows.categories.shape[1] else [rows.numbers]


def main(folder: Path) -> None:
    """The command line of `score.py`: one line of an error, or how many rows were scored."""
    parser = argparse.ArgumentParser(prog="score.py", description="Score the rows of a table with the model here.")
    parser.add_argument("file", help="CSV file, or Parquet where pyarrow is there; columns in any order")
    parser.add_argument("--out", default="predictions.csv", help="file to write")
    parser.add_argument("--keep", default="", help="columns of the file to copy, separated by commas")
    options = parser.parse_args()
    keep = [name.strip() for name in options.keep.split(",") if name.strip()]
    try:
        count = score(folder, options.file, options.out, keep)
    except BayesembleError as error:
        sys.exit(f"error: {error}")
    print(f"Predictions of {count:,} rows: {options.out}")
