"""Labels as clients send them, for rows that were answered before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesemble.apps.serve.rows import RowError, cell_text
from bayesemble.data.schema import Schema, as_labels
from bayesemble.data.table_files import Chunk, shown


@dataclass(frozen=True)
class Label:
    """What the target of a row turned out to be."""

    id: str
    target: float | int | None
    """The number of a class, or a number in its units; None for a class that the run does not know."""


def read_label(value: Any, number: int, schema: Schema) -> Label:
    """The label in an object with an id and a label; refused by its number (from 0) if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or "label" not in value:
        raise RowError("an object with an id, as the answer gave it, and a label was needed", row=number)
    target, given = schema.target, value["label"]
    classes = schema.task == "classification"
    if isinstance(given, bool) and classes:
        given = str(given).lower()
    text = cell_text(given, target, number)
    chunk = Chunk("the request", {target.name: [text]}, [number])
    if chunk.cells(target.name)[1][0]:
        raise RowError("the label is missing", target.name, number)
    if classes:
        labels = [text.strip()] if target.kind == "category" else as_labels(chunk.values(target.name, target.way))
        known = labels[0] in target.categories
        return Label(value["id"], target.categories.index(labels[0]) if known else None)
    amount = float(chunk.values(target.name, target.way)[0])
    if schema.task == "count" and not (0 <= amount <= 2**53 and amount == np.floor(amount)):
        raise RowError(f"a count 0, 1, 2, ... was needed, got {shown(text)}", target.name, number)
    return Label(value["id"], amount)
