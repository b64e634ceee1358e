"""A program of torch as an ONNX file, with names that do not collide, and the way to run it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesemble.core.errors import ModelError
from bayesemble.core.lazy import import_extra
from bayesemble.core.types import Inputs

INPUTS = "inputs"
_NEED, _ADVICE = "an ONNX file needs {}", "'bayesemble[export]'; a .pt2 file needs nothing more"


Run = Callable[[Inputs], dict[str, Tensor]]
"""What a file says of rows."""


class Program(NamedTuple):
    """A program of torch, and what goes in and comes out is called."""

    of_torch: torch.export.ExportedProgram
    inputs: list[str]
    outputs: list[str]


def write(program: Program, path: Path) -> Run:
    """Write the file with all its weights inside, and give what runs it."""
    runtime = find_runtime()
    try:
        with _quiet():
            found = torch.onnx.export(program.of_torch, dynamo=True, verbose=False)
    except Exception as error:  # the exporter has many classes for what has no counterpart
        raise ModelError(
            f"not all of {', '.join(program.outputs)} can be written as ONNX: {_reason(error)}; name outputs that can "
            "(of counts, all but low and high), or write a .pt2 file"
        ) from error
    assert found is not None
    _rename(found.model.graph, program)
    found.save(path, external_data=False)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(rows: Inputs) -> dict[str, Tensor]:
        arrays = {name: leaf.numpy() for name, leaf in named_tensors(rows).items()}
        found = session.run(program.outputs, arrays)
        return dict(zip(program.outputs, map(torch.from_numpy, found), strict=True))

    return run


def _reason(error: BaseException) -> str:
    """What the innermost error says first: the exporter wraps it in advice for its own authors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def named_tensors(rows: Inputs) -> dict[str, Tensor]:
    """The tensors of inputs by the names that they have in a file: `inputs`, or `inputs_0`, ..., or their keys."""
    if isinstance(rows, dict):
        return rows
    if isinstance(rows, tuple):
        return {f"{INPUTS}_{number}": leaf for number, leaf in enumerate(rows)}
    return {INPUTS: rows}


def _rename(graph: Any, program: Program) -> None:
    """Give inputs and outputs their names, and all else others: an inner node may be called `mean` too."""
    for number, node in enumerate(graph):
        node.name = f"node_{number}"
        node.metadata_props.clear()  # lines and paths of this machine
        for place, value in enumerate(node.outputs):
            value.name = f"value_{number}_{place}"
            value.metadata_props.clear()
    for values, names in ((graph.inputs, program.inputs), (graph.outputs, program.outputs)):
        for value, name in zip(values, names, strict=True):
            value.name = name


def find_runtime() -> Any:
    """The package onnxruntime, if all is there that writing a file needs."""
    for module in ("onnx", "onnxscript"):  # which the exporter needs
        import_extra(module, _NEED.format(module), _ADVICE)
    return import_extra("onnxruntime", _NEED.format("onnxruntime"), _ADVICE)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints, warns and logs of packages that are not needed here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
