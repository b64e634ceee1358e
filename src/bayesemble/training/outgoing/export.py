"""An ensemble as a file that other programs run: torch's own format, or ONNX.

    model.pt2     torch.export.load("model.pt2").module()(x)["probs"]
    model.onnx    onnxruntime.InferenceSession("model.onnx").run(["probs"], {"inputs": x})

The networks stand in it one after another, for any number of rows. What was written is read again, run on 1, 2 and 7
rows and compared with `predict`; only then does the file get its name.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesemble.core.arrays import as_inputs, check_rows
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.files import make_folder, replacing
from bayesemble.core.settings import require
from bayesemble.core.types import Inputs, map_tensors, tensors_of
from bayesemble.predictive import Predictive
from bayesemble.training.outgoing import onnx_files
from bayesemble.training.outgoing.module import EnsembleModule, module_of
from bayesemble.training.outgoing.networks import Tangent, as_call
from bayesemble.training.outgoing.onnx_files import Program, Run, named_tensors
from bayesemble.training.outgoing.readings import DECISIONS, OUTPUTS, beside_threshold, read, tolerances

_BATCHES = (1, 2, 7)
_TRACED = 3  # rows; torch takes 1 for a number that never changes
_SHARE = 1e-5
"""By how much a file may differ from `predict`, as a share of what is rounded."""


class Draws(NamedTuple):
    """Which networks a file has, as `predict` has them."""

    num: int | None
    seed: int


def export(
    ensemble: Any, path: Path, outputs: Sequence[str] | None, draws: Draws, level: float | None, inputs: Any
) -> list[str]:
    """Write a file, and give the names of its outputs; see `Ensemble.export`."""
    kinds = {".pt2": _write_pt2, ".onnx": onnx_files.write}
    require(path.suffix in kinds, f"a file is called .pt2 or .onnx, by what it shall be; got {path.name!r}")
    if path.suffix == ".onnx":
        onnx_files.find_runtime()  # refuses before anything is worked out
    module = module_of(ensemble, outputs, *draws, level)
    if any(isinstance(network, Tangent) for network in module.members):
        raise SettingError(
            "these draws are networks made linear around their members, which torch cannot write for any number of "
            "rows; use Laplace(predict='samples'), or select='output'"
        )
    rows = _rows(ensemble.task, inputs)
    blank = map_tensors(torch.zeros_like, _first(rows, _TRACED))  # torch keeps these in the file: no training rows
    program = _exported(module, blank)
    make_folder(path.parent)
    with replacing(path, SettingError) as written:
        _check(ensemble, module, kinds[path.suffix](program, written), rows, draws)
    return program.outputs


def _rows(task: Any, inputs: Any) -> Inputs:
    """Seven rows like those that are to be predicted."""
    if inputs is None and task.example is None:
        raise SettingError("a file is tried on rows before it gets its name, and this ensemble has none: pass inputs=x")
    found = as_inputs(task.example if inputs is None else inputs, task.dtype)
    check_rows(found, None)
    most = max(_BATCHES)

    def repeated(leaf: Tensor) -> Tensor:
        return leaf[torch.arange(most) % len(leaf)].contiguous()

    return map_tensors(repeated, found)


def _first(rows: Inputs, num: int) -> Inputs:
    return map_tensors(lambda leaf: leaf[:num].clone(), rows)


class _ByName(nn.Module):
    """A module whose inputs have names that can be seen: torch does not export `**inputs` for any number of rows."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module

        def forward(**inputs: Tensor) -> Any:
            return module(**inputs)

        kind = inspect.Parameter.KEYWORD_ONLY
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        self.forward = forward


def _exported(module: EnsembleModule, rows: Inputs) -> Program:
    """The module as a program for any number of rows."""
    positional, named = as_call(rows)
    any_number = {0: torch.export.Dim("batch")}
    shapes = {"inputs": tuple(any_number for _ in positional)} if positional else dict.fromkeys(named, any_number)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch itself
            outputs = list(module(*positional, **named))
            whole = _ByName(module, names=list(named)) if named else module
            found = torch.export.export(whole, positional, named, dynamic_shapes=shapes)
    except Exception as error:  # torch has no class of its own for what it cannot follow
        kind = type(module.members[0]).__name__
        raise ModelError(f"torch cannot export {kind} for any number of rows: {_line(error)}") from error
    for node in found.graph.nodes:
        node.meta.pop("stack_trace", None)  # lines and paths of this machine
    return Program(found, list(named_tensors(rows)), outputs)


def _write_pt2(program: Program, path: Path) -> Run:
    with path.open("wb") as file:  # by its name, torch would ask for one that ends in .pt2
        torch.export.save(program.of_torch, file)
    with path.open("rb") as written:
        module = torch.export.load(written).module()

    def run(rows: Inputs) -> dict[str, Tensor]:
        positional, named = as_call(rows)
        found: dict[str, Tensor] = module(*positional, **named)
        return found

    return run


def _check(ensemble: Any, module: EnsembleModule, run: Run, rows: Inputs, draws: Draws) -> None:
    """Refuse a file that does not say what `predict` says."""
    for num in _BATCHES:
        some = _first(rows, num)
        try:
            with torch.no_grad():
                found, raw = run(some), module.member_outputs(*as_call(some)[0], **as_call(some)[1])
        except Exception as error:  # of onnxruntime, or of torch
            raise ModelError(f"what was written cannot run on {num} rows: {_line(error)}") from error
        predictive = predicted(ensemble, some, draws)
        allowed = tolerances(predictive, list(found), _SHARE)
        for name, value in read(predictive, raw.cpu(), list(found), module.rules).items():
            if name in DECISIONS:
                beside, threshold = beside_threshold(predictive, name, module.rules)
                value = torch.where((beside - threshold).abs() <= _SHARE, found[name], value)  # rounding decides there
            size = allowed[name] if name != OUTPUTS else _SHARE * max(1.0, float(value.abs().max()))
            same = found[name].shape == value.shape
            away = float((found[name].double() - value.double()).abs().max()) if same else float("nan")
            if not away <= size:
                raise ModelError(
                    f"what was written is not what predict says: on {num} rows {name} differs by {away:.2g}, and "
                    f"{size:.2g} is rounding; the file was not kept"
                )


def predicted(ensemble: Any, rows: Inputs, draws: Draws) -> Predictive:
    """What `predict` says; of Monte Carlo dropout, of each row by itself."""

    def of(some: Inputs) -> Predictive:
        found: Predictive = ensemble.predict(some, num_draws=draws.num, seed=draws.seed)
        return found

    if not ensemble.method.keeps_dropout:
        return of(rows)
    num = len(tensors_of(rows)[0])
    parts = [of(map_tensors(lambda leaf, row=row: leaf[row : row + 1], rows)) for row in range(num)]  # type: ignore[misc]
    return parts[0].concat(parts)


def _line(error: Exception) -> str:
    """The first line of a message that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
