"""A run on a table as a folder that needs nothing of this library:

MODEL/model.onnx     the ensemble, with its outputs by name
MODEL/schema.json    what columns mean and how they are scaled, and which columns predictions have
MODEL/score.py       python score.py new.csv --out predictions.csv, with numpy and onnxruntime alone
MODEL/code/          what score.py reads cells with: copies of files of this library
"""

from __future__ import annotations

import ast
import shutil
from dataclasses import dataclass
from pathlib import Path

import bayesemble
from bayesemble.apps.tables.run import TableRun
from bayesemble.apps.tables.score import MODEL, SCHEMA
from bayesemble.apps.tables.targets import columns_of
from bayesemble.core.errors import SettingError
from bayesemble.core.files import make_folder, replacing, write_json

CODE, SCRIPT = "code", "score.py"
_ENTRANCE = "bayesemble.apps.tables.score"
_NO_INTERVAL = ("low", "high")
_LAUNCHER = f'''"""Scores the rows of a table: python {SCRIPT} new.csv --out predictions.csv (numpy, onnxruntime)."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "{CODE}"))

from {_ENTRANCE} import main  # noqa: E402

if __name__ == "__main__":
    main(HERE)
'''


@dataclass(frozen=True)
class Exported:
    """What `export_table` wrote."""

    folder: str
    outputs: list[str]
    notes: list[str]


def export_table(run: TableRun, out: str | Path, *, level: float | None = None) -> Exported:
    """Write the folder; it appears when it is complete and its model says what the run says.

    Args:
        out: A new or an empty folder.
        level: Probability of the interval from `low` to `high`; None is that of the calibration, or 0.9.
    """
    folder, schema, notes = Path(out), run.schema, list(run.notes)
    check_new(folder)
    rules = run.rules(level)
    columns, outputs = columns_of(schema, rules.calibration), None
    if schema.task == "count":
        columns, outputs = (
            [name for name in columns if name not in _NO_INTERVAL],
            ["mean", "std", "aleatoric", "epistemic"],
        )
        notes.append("quantiles of counts have no counterpart in ONNX: predictions have no columns low and high")
    if run.ensemble.method.keeps_dropout:
        notes.append("units are dropped as `predict` drops them for a single row, the same in all rows")
    make_folder(folder.parent)
    with replacing(folder, SettingError) as written:
        written.mkdir()
        names = run.ensemble.export(written / MODEL, outputs, level=level)
        about = {"format": 1, "schema": schema.to_json(), "columns": columns, "level": rules.level}
        about |= {"outputs": names}
        write_json(written / SCHEMA, about)
        (written / SCRIPT).write_text(_LAUNCHER, encoding="utf-8")
        copy_code(written / CODE)
    return Exported(str(folder), names, notes)


def check_new(folder: Path) -> None:
    """Refuse to write a model over anything else."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} is there already, and is not an empty folder; choose another name")


def copy_code(folder: Path) -> None:
    """Copy the scorer and all it imports of this library, with packages that hold nothing else."""
    source = Path(bayesemble.__file__).parents[1]
    for path in _closure(source, source.joinpath(*_ENTRANCE.split(".")).with_suffix(".py")):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        for package in target.relative_to(folder).parents:
            if package.parts:
                (folder / package / "__init__.py").touch()


def _closure(source: Path, first: Path) -> list[Path]:
    """A file, and the files of this library that it imports, and those that they do."""
    found, left = [first], [first]
    while left:
        for node in ast.walk(ast.parse(left.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayesemble"):
                module = source.joinpath(*(node.module or "").split("."))
                paths = {module.with_suffix(".py"), *((module / alias.name).with_suffix(".py") for alias in node.names)}
                new = [path for path in sorted(paths) if path.is_file() and path not in found]
                found, left = found + new, left + new
    return found
